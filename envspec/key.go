package envspec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
)

// Key is a SHA-256 in hexadecimal. What is hashed is, in ASCII but for the values:
//
//	the name of the encoding and a newline: "claude-hub build key 1" or "claude-hub test key 1"
//	for each field, in the order of the table in change.go: name, "=", length in bytes, ":", value, newline
//
// A field that is empty is left out, so that a field that is new in a later version moves no key of a Spec that
// doesn't use it. Specs are normalized first.
type Key string

// TestKey says what a Test build tests: everything that needs one, as written in the Spec (so the image's reference,
// not its digest). A draft may be applied when a Test build of exactly its key passed.
func TestKey(s Spec) Key {
	s = Normalize(s)
	e := newEncoder("claude-hub test key 1")
	for _, f := range fields {
		if f.affects != Nothing {
			e.field(f.name, f.value(s))
		}
	}
	return e.key()
}

// BuildInput is what a snapshot is made of. The Runner fills it in, which resolves the image.
type BuildInput struct {
	Spec        Spec
	ImageDigest string // of the image for Platform, "sha256:…"; it stands for the reference
	Platform    string // "linux/amd64"
	ClaudeCode  string // the version that is put into the build; "" when none is
}

// BuildKey says whether two builds are the same: same key, same snapshot.
func BuildKey(in BuildInput) Key {
	s := Normalize(in.Spec)
	e := newEncoder("claude-hub build key 1")
	e.field("image digest", in.ImageDigest)
	e.field("platform", in.Platform)
	e.field("claude code", in.ClaudeCode)
	for _, f := range fields {
		if f.affects == Build && f.name != "image" {
			e.field(f.name, f.value(s))
		}
	}
	return e.key()
}

type encoder struct{ h hash.Hash }

func newEncoder(name string) encoder {
	e := encoder{sha256.New()}
	io.WriteString(e.h, name+"\n") //nolint:errcheck // a hash takes everything
	return e
}

func (e encoder) field(name, value string) {
	if value != "" {
		fmt.Fprintf(e.h, "%s=%d:%s\n", name, len(value), value)
	}
}

func (e encoder) key() Key { return Key(hex.EncodeToString(e.h.Sum(nil))) }
