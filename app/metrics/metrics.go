// Package metrics counts what the Hub does and shows it as Prometheus reads it. docs/metrics.md lists every name; none has a
// label of a Repo or of a person. Counters are this process's since its start; what is the same for all Hubs of a database is
// asked when somebody looks.
//
// The numbers are kept in a registry of rcrowley/go-metrics, since go-githubapp's own are: its names have no labels, so ours are
// part of the name there.
package metrics

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	gometrics "github.com/rcrowley/go-metrics"

	"github.com/claude-hub/claude-hub/app/github"
)

// Gauge is asked when somebody looks.
type Gauge struct {
	Name, Help string
	Ask        func(ctx context.Context) (float64, error)
}

// Metrics is one process's. Its methods may be called from many goroutines. A nil one counts nothing.
type Metrics struct {
	registry gometrics.Registry
	version  string
	began    time.Time

	mu     sync.Mutex
	gauges []Gauge
}

// New makes an empty one. version is of claude-hub.
func New(version string) *Metrics {
	return &Metrics{registry: gometrics.NewRegistry(), version: version, began: time.Now()}
}

// Registry is where go-githubapp counts; nil of a nil Metrics.
func (m *Metrics) Registry() gometrics.Registry {
	if m == nil {
		return nil
	}
	return m.registry
}

// Ask adds gauges.
func (m *Metrics) Ask(gauges ...Gauge) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gauges = append(m.gauges, gauges...)
}

// Request counts an answer of this Hub. class is the kind of route, status the answer's, 0 when there was none.
func (m *Metrics) Request(class string, status int, took time.Duration) {
	m.count("http_requests_total", "class", class, "status", statusClass(status))
	m.time("http_request_seconds", took, "class", class)
}

// Delivery counts what became of a webhook.
func (m *Metrics) Delivery(outcome string) { m.count("deliveries_total", "outcome", outcome) }

// GitHub counts a request to GitHub: github.Options.Observe.
func (m *Metrics) GitHub(o github.Observed) {
	m.count("github_requests_total", "operation", o.Operation, "status", statusClass(o.Status))
	m.time("github_request_seconds", o.Took, "operation", o.Operation)
}

// TestBuild counts one that ended.
func (m *Metrics) TestBuild(outcome string) { m.count("test_builds_total", "outcome", outcome) }

func (m *Metrics) count(name string, labels ...string) {
	if m != nil {
		gometrics.GetOrRegisterCounter(key(name, labels), m.registry).Inc(1)
	}
}

// samples are of about the last five minutes, as go-metrics' own Timer's.
const samples, decay = 1028, 0.015

func (m *Metrics) time(name string, took time.Duration, labels ...string) {
	if m == nil {
		return
	}
	made := func() gometrics.Histogram { return gometrics.NewHistogram(gometrics.NewExpDecaySample(samples, decay)) }
	if h, ok := m.registry.GetOrRegister(key(name, labels), made).(gometrics.Histogram); ok {
		h.Update(took.Nanoseconds())
	}
	// A sample forgets, and a sum may not.
	gometrics.GetOrRegisterCounter(key(name+"_sum", labels), m.registry).Inc(took.Nanoseconds())
}

// key is a name in the registry: name{label="value"}, as Prometheus writes it.
func key(name string, labels []string) string {
	if len(labels) == 0 {
		return name
	}
	var b strings.Builder
	b.WriteString(name)
	for i := 0; i < len(labels); i += 2 {
		b.WriteByte(map[bool]byte{true: '{', false: ','}[i == 0])
		b.WriteString(labels[i] + "=" + quoted(labels[i+1]))
	}
	b.WriteByte('}')
	return b.String()
}

var escapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func quoted(s string) string { return `"` + escapes.Replace(s) + `"` }

func statusClass(status int) string {
	if status < 100 || status > 599 {
		return "none"
	}
	return strconv.Itoa(status/100) + "xx"
}

// prefix is before every name of our own.
const prefix = "claude_hub_"

// family is all lines of one name.
type family struct {
	name, help, kind string
	lines            []string
}

var help = map[string]string{
	"http_requests_total":    "Requests that this Hub answered, by kind of route and class of status.",
	"http_request_seconds":   "How long answers took, by kind of route.",
	"deliveries_total":       "GitHub's webhooks, by what became of them.",
	"github_requests_total":  "Requests to GitHub, by operation and class of status.",
	"github_request_seconds": "How long GitHub took until its answer began, by operation.",
	"test_builds_total":      "Test builds that ended, by outcome.",
}

// Text is everything in Prometheus's text format 0.0.4. A gauge that can't be asked is left out and counted.
func (m *Metrics) Text(ctx context.Context) string {
	families := map[string]*family{}
	at := func(name, kind, help string) *family {
		f := families[name]
		if f == nil {
			f = &family{name: name, help: help, kind: kind}
			families[name] = f
		}
		return f
	}
	m.mu.Lock()
	gauges := slices.Clone(m.gauges)
	m.mu.Unlock()
	for _, g := range gauges {
		v, err := g.Ask(ctx)
		if err != nil {
			m.count("metrics_errors_total", "name", g.Name)
			continue
		}
		f := at(prefix+g.Name, "gauge", g.Help)
		f.lines = append(f.lines, f.name+" "+number(v))
	}
	m.registry.Each(func(key string, v any) {
		name, labels := key, ""
		if i := strings.IndexByte(key, '{'); i >= 0 {
			name, labels = key[:i], key[i:]
		}
		switch v := v.(type) {
		case gometrics.Counter:
			if strings.HasPrefix(key, "github.") {
				f := at(strings.ReplaceAll(key, ".", "_")+"_total", "counter", "Of go-githubapp: "+key+".")
				f.lines = append(f.lines, f.name+" "+strconv.FormatInt(v.Count(), 10))
				return
			}
			if of, ok := strings.CutSuffix(name, "_seconds_sum"); ok {
				f := at(prefix+of+"_seconds", "summary", help[of+"_seconds"])
				f.lines = append(f.lines, prefix+name+labels+" "+number(float64(v.Count())/1e9))
				return
			}
			f := at(prefix+name, "counter", cmp.Or(help[name], "Gauges that could not be asked."))
			f.lines = append(f.lines, f.name+labels+" "+strconv.FormatInt(v.Count(), 10))
		case gometrics.Gauge: // only go-githubapp has any: github.rate.limit[installation:7]
			name, of, _ := strings.Cut(strings.TrimSuffix(key, "]"), "[installation:")
			f := at(strings.ReplaceAll(name, ".", "_"), "gauge", "Of go-githubapp: "+name+", of an installation as GitHub said it last; 0 is the App itself.")
			f.lines = append(f.lines, f.name+"{installation="+quoted(of)+"} "+strconv.FormatInt(v.Value(), 10))
		case gometrics.Histogram:
			f := at(prefix+name, "summary", help[name])
			s := v.Snapshot()
			for i, q := range s.Percentiles(quantiles) {
				f.lines = append(f.lines, f.name+strings.TrimSuffix(labels, "}")+`,quantile="`+number(quantiles[i])+`"} `+number(q/1e9))
			}
			f.lines = append(f.lines, f.name+"_count"+labels+" "+strconv.FormatInt(v.Count(), 10))
		}
	})
	for _, own := range m.own() {
		families[own.name] = own
	}
	var b strings.Builder
	for _, f := range slices.SortedFunc(maps.Values(families), func(a, b *family) int { return strings.Compare(a.name, b.name) }) {
		slices.Sort(f.lines)
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s\n", f.name, f.help, f.name, f.kind, strings.Join(f.lines, "\n"))
	}
	return b.String()
}

var quantiles = []float64{0.5, 0.9, 0.99}

// own is of the process.
func (m *Metrics) own() []*family {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	one := func(name, help, labels string, v float64) *family {
		return &family{name: prefix + name, help: help, kind: "gauge", lines: []string{prefix + name + labels + " " + number(v)}}
	}
	return []*family{
		one("info", "The version of claude-hub.", "{version="+quoted(m.version)+"}", 1),
		one("start_time_seconds", "When this Hub was started, in seconds since 1970.", "", float64(m.began.Unix())),
		one("goroutines", "Goroutines of this Hub.", "", float64(runtime.NumGoroutine())),
		one("memory_bytes", "Memory that this Hub's Go runtime has from the system.", "", float64(mem.Sys-mem.HeapReleased)),
	}
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
