package envspec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
)

// Key is a SHA-256 in hexadecimal. What is hashed is, in ASCII but for the values:
//
//	the name of the encoding and a newline: "claude-hub build key 1" or "claude-hub test key 1"
//	for each field, in the order of the table in change.go: name, "=", length in bytes, ":", value, newline
//	for each Variable that reaches the build, in the order of their names, a field likewise, named "variable NAME"; its value
//	is in a test key "plain:" and the value, "sensitive:" and the value's id, or "link:" and the name of the Shared variable,
//	and in a build key "value:" and the value's id
//
// A field that is empty is left out, so that a field that is new in a later version moves no key of a Spec that
// doesn't use it. Specs are normalized first.
type Key string

// TestKey says what a Test build tests: everything that needs one, as written in the Spec (so the image's reference,
// not its digest). A draft may be applied when a Test build of exactly its key passed. The values of Plain Variables must be
// in s: a Spec that is [Detach]ed has another key.
func TestKey(s Spec) Key {
	s = Normalize(s)
	e := newEncoder("claude-hub test key 1")
	for _, f := range fields {
		if f.affects != Nothing {
			e.field(f.name, f.value(s))
		}
	}
	for _, v := range s.Variables {
		switch {
		case !v.AtBuild():
		case v.Link != "":
			e.field("variable "+v.Name, "link:"+v.Link)
		case v.Sensitive:
			e.field("variable "+v.Name, "sensitive:"+v.ValueID)
		default:
			e.field("variable "+v.Name, "plain:"+v.Value)
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
	// Values names, for each Variable that the bootstrap receives, its value by id: by name → id. A Link's is that of the
	// Shared variable's value, so that a new shared value moves the key of every Spec that uses it at build.
	Values map[string]string
}

// BuildKey says whether two builds are the same: same key, same snapshot. Of the Spec's Variables only what in.Values says
// counts, so that a Spec with and without values has one key.
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
	for _, name := range slices.Sorted(maps.Keys(in.Values)) {
		e.field("variable "+name, "value:"+in.Values[name])
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
