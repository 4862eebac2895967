package redact

import "bytes"

// Shapes are what is hidden though nobody added it: GitHub's tokens, also in the stateless format of 2026 whose length
// is not fixed (facts/github.md), and private keys in PEM.

const (
	// shapeGap is how far apart two bytes of a shape may be in the stream. A token has no white space in it at all.
	shapeGap = 4096
	// tokenMax is longer than any token GitHub describes, stateless ones included. A longer run of such characters is
	// masked in parts of this length.
	tokenMax = 2048
	// pemMax is longer than the PEM of an RSA key of 8192 bits.
	pemMax   = 16 << 10
	pemLabel = 48
)

type shape struct {
	prefix, name string
	least        int // text bytes after the prefix of a token
	more         string
	pem          bool
}

var shapes = [...]shape{
	{prefix: "ghp_", name: "a GitHub token", least: 30},
	{prefix: "gho_", name: "a GitHub token", least: 30},
	{prefix: "ghu_", name: "a GitHub token", least: 30},
	{prefix: "ghs_", name: "a GitHub token", least: 30, more: ".-"},
	{prefix: "ghr_", name: "a GitHub token", least: 30},
	{prefix: "github_pat_", name: "a GitHub token", least: 22},
	{prefix: "-----BEGIN", name: "a private key", pem: true},
}

// tokenPrefix is what the first shapes begin with. They are shorter than a window, so they are not in the table of a
// Set but recognised by isToken, and they are a Set's first needles, in this order.
const tokenPrefix = "gh?_"

// tokenBits is what isToken compares: the four bytes but the third.
const tokenBits = uint32('g') | uint32('h')<<8 | uint32('_')<<24

// isToken looks at four bytes, the first one lowest.
func isToken(v uint32) bool {
	if v&0xff00ffff != tokenBits {
		return false
	}
	return bytes.IndexByte([]byte("pousr"), byte(v>>16)) >= 0
}

// token is the index of the needle for a window of which isToken is true.
func token(v uint32) int32 { return int32(bytes.IndexByte([]byte("pousr"), byte(v>>16))) }

func alnum(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z'
}

func (s *shape) holds(b byte) bool {
	return alnum(b) || b == '_' || bytes.IndexByte([]byte(s.more), b) >= 0
}

// pem reads a PEM block after "-----BEGIN". White space is not in the text, so lines don't matter; what a log puts
// before each line, and "\n" as two bytes, is taken as part of the block.
type pem struct {
	label  []byte
	dashes int
	phase  uint8 // 0 label, 1 dashes after it, 2 body, 3 end label and dashes
	n      int
}

type verdict uint8

const (
	more verdict = iota // the shape may go on
	none                // this is no such shape
	over                // the shape ended before this byte
	full                // the shape ended with this byte
)

func (p *pem) next(b byte) verdict {
	p.n++
	switch p.phase {
	case 0:
		if b == '-' {
			if !bytes.Contains(p.label, []byte("PRIVATEKEY")) {
				return none
			}
			p.phase, p.dashes = 1, 1
			return more
		}
		if len(p.label) == pemLabel || !(b >= 'A' && b <= 'Z' || b >= '0' && b <= '9') {
			return none
		}
		p.label = append(p.label, b)
		return more
	case 1:
		if b != '-' {
			return none
		}
		if p.dashes++; p.dashes == 5 {
			p.phase, p.dashes = 2, 0
		}
		return more
	}
	if p.n > pemMax {
		return over
	}
	if b == '-' {
		p.dashes++
		if p.phase == 3 && p.dashes == 5 {
			return full
		}
		return more
	}
	if p.phase == 2 && p.dashes >= 5 {
		switch b {
		case 'E':
			p.phase = 3
		case 'B':
			return over // another block begins, which is read on its own
		}
	}
	p.dashes = 0
	if alnum(b) || bytes.IndexByte([]byte(`+/=:,.\|>#%_`), b) >= 0 {
		return more
	}
	return over
}

// begun reports that the header was read: what follows is key material.
func (p *pem) begun() bool { return p.phase >= 2 }
