package redact

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"
)

// logLines is output as tests, npm and HTTP servers print it, a third of it coloured.
func logLines(size int) []byte {
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

func benchValues(n int) []string {
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

// BenchmarkRedact measures one stream on one core. The peers are written for the benchmark after what others do:
// "partial" is Buildkite's list of partial matches, "replacer" is strings.NewReplacer for each write, which does not
// find what is split; "copy" is the cost of the benchmark itself. Both peers are given the same forms.
func BenchmarkRedact(b *testing.B) {
	log := logLines(1 << 20)
	for _, n := range []int{0, 1, 100, 1000} {
		values := benchValues(n)
		var set Set
		var all []string
		for i, v := range values {
			if err := set.Add(fmt.Sprint("V", i), []byte(v)); err != nil {
				b.Fatal(err)
			}
			for _, f := range forms([]byte(v)) {
				all = append(all, string(f))
			}
		}
		for _, size := range []int{100, 32 << 10} {
			run := func(name string, write func([]byte)) {
				b.Run(fmt.Sprintf("values=%d/write=%d/%s", n, size, name), func(b *testing.B) {
					b.SetBytes(int64(len(log)))
					b.ReportAllocs()
					n, begin := 0, cpuTime(b)
					for b.Loop() {
						n++
						for i := 0; i < len(log); i += size {
							write(log[i:min(i+size, len(log))])
						}
					}
					b.ReportMetric(float64(n*len(log))/1e6/(cpuTime(b)-begin).Seconds(), "MB/cpu-s")
				})
			}
			var got int
			w := set.Writer(func(t Text) error { got += t.Len(); return nil })
			run("this", func(p []byte) {
				if _, err := w.Write(p); err != nil {
					b.Fatal(err)
				}
			})
			run("copy", func(p []byte) { got += len(string(p)) })
			if n == 0 {
				continue
			}
			if n <= 100 {
				peer := newPartial(all)
				run("partial", peer.write)
			}
			var pairs []string
			for _, f := range all {
				pairs = append(pairs, f, Mask)
			}
			rep := strings.NewReplacer(pairs...)
			run("replacer", func(p []byte) { got += len(rep.Replace(string(p))) })
		}
	}
}

func cpuTime(tb testing.TB) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkAdd measures what a value costs before a process may have it.
func BenchmarkAdd(b *testing.B) {
	values := benchValues(1000)
	for b.Loop() {
		var set Set
		for i, v := range values {
			if err := set.Add(fmt.Sprint("V", i), []byte(v)); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(values)), "ns/value")
}

// partial follows every partial match byte by byte, as Buildkite's replacer does.
type partial struct {
	byFirst [256][]string
	live    []partialMatch
	buf     []byte
	out     int
}

type partialMatch struct {
	needle string
	m      int
}

func newPartial(needles []string) *partial {
	p := &partial{}
	for _, n := range needles {
		p.byFirst[n[0]] = append(p.byFirst[n[0]], n)
	}
	return p
}

func (p *partial) write(b []byte) {
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
