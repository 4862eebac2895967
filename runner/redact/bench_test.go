package redact

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/redact/redacttest"
)

// BenchmarkRedact measures one stream on one core. The peers are written for the benchmark after what others do:
// "partial" is Buildkite's list of partial matches, "replacer" is strings.NewReplacer for each write, which does not
// find what is split; "copy" is the cost of the benchmark itself. Both peers are given the same forms.
func BenchmarkRedact(b *testing.B) {
	log := redacttest.Log(1 << 20)
	for _, n := range []int{0, 1, 100, 1000} {
		values := redacttest.Values(n)
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
				peer := redacttest.NewPartial(all)
				run("partial", peer.Write)
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
	values := redacttest.Values(1000)
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

// BenchmarkGroup measures one line of a process's log, with so many assignments of five values each.
func BenchmarkGroup(b *testing.B) {
	line := string(redacttest.Log(300))
	for _, n := range []int{1, 10, 100, 1000} {
		var group Group
		values := redacttest.Values(5 * n)
		for i := range n {
			var set Set
			for _, v := range values[5*i : 5*i+5] {
				if err := set.Add("V", []byte(v)); err != nil {
					b.Fatal(err)
				}
			}
			group.Join(&set)
		}
		b.Run(fmt.Sprintf("sets=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				group.Text(line)
			}
		})
	}
}
