// Package redacttest is what redaction is measured with: output as programs print it, values, and a peer.
package redacttest

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
)

// Mask stands for what the peer found.
const Mask = "[REDACTED]"

// Log is output as tests, npm and HTTP servers print it, a third of it coloured.
func Log(size int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for b.Len() < size {
		switch r.IntN(7) {
		case 0:
			fmt.Fprintf(&b, "=== RUN   TestHandler_%d/case_%d\n", r.IntN(1000), r.IntN(50))
		case 1:
			fmt.Fprintf(&b, "    handler_test.go:%d: got status %d, want 200 (id=%016x)\n", r.IntN(900), 200+r.IntN(300), r.Uint64())
		case 2:
			fmt.Fprintf(&b, "npm \x1b[33mWARN\x1b[0m deprecated package-%x@%d.%d.%d: this version is no longer supported\n",
				r.IntN(1<<20), r.IntN(9), r.IntN(30), r.IntN(9))
		case 3:
			fmt.Fprintf(&b, "10.0.%d.%d - - [30/Nov/2026:17:%02d:%02d +0000] \"GET /api/v1/items/%d?page=%d HTTP/1.1\" 200 %d\n",
				r.IntN(255), r.IntN(255), r.IntN(60), r.IntN(60), r.IntN(1e6), r.IntN(99), r.IntN(1e5))
		case 4:
			fmt.Fprintf(&b, " \x1b[32m✓\x1b[0m renders the list of %d items \x1b[2m(%d ms)\x1b[0m\n", r.IntN(99), r.IntN(999))
		case 5:
			fmt.Fprintf(&b, "Get:%d http://mirror.example/debian bookworm/main amd64 libx%d-dev amd64 1:%d.%d-1 [%d kB]\n",
				r.IntN(900), r.IntN(99), r.IntN(9), r.IntN(99), r.IntN(9999))
		case 6:
			fmt.Fprintf(&b, "{\"level\":\"info\",\"ts\":%d.%06d,\"msg\":\"request done\",\"trace\":\"%032x\"}\n",
				1764500000+r.IntN(1e6), r.IntN(1e6), r.Uint64())
		}
	}
	return b.Bytes()[:size]
}

// Values are n Sensitive values: three of four are 40 hexadecimal digits, the fourth is a password with punctuation.
func Values(n int) []string {
	r := rand.New(rand.NewPCG(3, 4))
	out := make([]string, n)
	for i := range out {
		b := make([]byte, 20)
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		out[i] = hex.EncodeToString(b)
		if i%4 == 3 { // a password with punctuation, which has many more forms
			out[i] = fmt.Sprintf("p%x/&'\"+ $%x\\é", b[:6], b[6:12])
		}
	}
	return out
}

// Partial follows every partial match byte by byte, as Buildkite's replacer does.
type Partial struct {
	byFirst [256][]string
	live    []partialMatch
	buf     []byte
	out     int
}

type partialMatch struct {
	needle string
	m      int
}

// NewPartial looks for needles, which are not empty.
func NewPartial(needles []string) *Partial {
	p := &Partial{}
	for _, n := range needles {
		p.byFirst[n[0]] = append(p.byFirst[n[0]], n)
	}
	return p
}

// Write takes the next of the stream.
func (p *Partial) Write(b []byte) {
	for _, c := range b {
		p.buf = append(p.buf, c)
		live := p.live[:0]
		for _, m := range p.live {
			if m.needle[m.m] != c {
				continue
			}
			if m.m++; m.m == len(m.needle) {
				p.buf = append(p.buf[:len(p.buf)-m.m], Mask...)
				continue
			}
			live = append(live, m)
		}
		for _, n := range p.byFirst[c] {
			live = append(live, partialMatch{n, 1})
		}
		p.live = live
		if len(live) == 0 {
			p.out += len(p.buf)
			p.buf = p.buf[:0]
		}
	}
}
