package image

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Phases of a Progress, in their order.
const (
	PhaseResolve  = "resolve"  // asking what the reference means
	PhaseDownload = "download" // fetching layers; those that have come are unpacked meanwhile
	PhaseUnpack   = "unpack"   // all layers have come, some aren't unpacked yet
	PhaseDone     = "done"
)

// Progress is one picture of a Pull or an Import, aggregated over all layers (facts/web.md §1.4).
type Progress struct {
	Phase string `json:"phase"`
	// Bytes of TotalBytes: fetched in PhaseDownload, read by the unpacking in PhaseUnpack; compressed, and only of layers
	// that weren't here already. TotalBytes is a lower bound while TotalKnown is false.
	Bytes      int64 `json:"bytes"`
	TotalBytes int64 `json:"total_bytes"`
	TotalKnown bool  `json:"total_known"`
	// Layers of TotalLayers are unpacked or were here already.
	Layers      int `json:"layers"`
	TotalLayers int `json:"total_layers"`
	// Rate is bytes per second over about the last three seconds; 0 when it isn't known.
	Rate  float64 `json:"rate"`
	local bool    // imported: no registry is asked
}

// String is the progress as a person reads it: "412 of ≥ 1,240 MB · 7/11 layers · 38 MB/s".
func (p Progress) String() string {
	if p.Phase == PhaseResolve && p.local {
		return "reading it"
	}
	if p.Phase == PhaseResolve {
		return "asking the registry"
	}
	atLeast := ""
	if !p.TotalKnown {
		atLeast = "≥ "
	}
	text := fmt.Sprintf("%s of %s%s MB · %d/%d layers", megabytes(p.Bytes), atLeast, megabytes(p.TotalBytes), p.Layers, p.TotalLayers)
	if p.Phase == PhaseDone && p.TotalBytes == 0 {
		text = fmt.Sprintf("%d/%d layers, all already here", p.Layers, p.TotalLayers)
	}
	if p.Rate > 0 && p.Phase != PhaseDone {
		text += fmt.Sprintf(" · %s MB/s", megabytes(int64(p.Rate)))
	}
	return text
}

func megabytes(n int64) string {
	mb := float64(n) / 1e6
	if mb > 0 && mb < 10 {
		return fmt.Sprintf("%.1f", mb)
	}
	v := fmt.Sprintf("%.0f", mb)
	for i := len(v) - 3; i > 0; i -= 3 {
		v = v[:i] + "," + v[i:]
	}
	return v
}

// reportEvery keeps reports at two a second.
const reportEvery = 500 * time.Millisecond

// tracker counts what the layers' goroutines do and reports it from one goroutine.
type tracker struct {
	fetched, unpacked   atomic.Int64
	total               atomic.Int64
	fetching, known     atomic.Int64 // layers still to be fetched; layers whose need is known
	layers, totalLayers atomic.Int64
	resolved            atomic.Bool
	report              func(Progress)
	local               bool // an import
	stop                chan struct{}
	done                sync.WaitGroup
	samples             []sample
}

type sample struct {
	at    time.Time
	bytes int64
	phase string
}

func track(report func(Progress), local bool) *tracker {
	t := &tracker{report: report, local: local, stop: make(chan struct{})}
	if report == nil {
		return t
	}
	report(t.now())
	t.done.Add(1)
	go func() {
		defer t.done.Done()
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				report(t.now())
			case <-t.stop:
				return
			}
		}
	}()
	return t
}

// end stops the reports; a success is reported once more, as done.
func (t *tracker) end(ok bool) {
	close(t.stop)
	t.done.Wait()
	if ok && t.report != nil {
		p := t.now()
		p.Phase, p.Rate, p.TotalKnown = PhaseDone, 0, true
		t.report(p)
	}
}

func (t *tracker) now() Progress {
	p := Progress{local: t.local, TotalBytes: t.total.Load(), Layers: int(t.layers.Load()), TotalLayers: int(t.totalLayers.Load())}
	p.TotalKnown = t.resolved.Load() && t.known.Load() >= t.totalLayers.Load()
	switch {
	case !t.resolved.Load():
		p.Phase = PhaseResolve
	case t.fetching.Load() > 0 || !p.TotalKnown:
		p.Phase, p.Bytes = PhaseDownload, t.fetched.Load()
	default:
		p.Phase, p.Bytes = PhaseUnpack, t.unpacked.Load()
	}
	now := sample{time.Now(), p.Bytes, p.Phase}
	if len(t.samples) > 0 && t.samples[0].phase != p.Phase {
		t.samples = nil
	}
	t.samples = append(t.samples, now)
	for len(t.samples) > 7 {
		t.samples = t.samples[1:]
	}
	if took := now.at.Sub(t.samples[0].at).Seconds(); took > 0.1 {
		p.Rate = max(0, float64(now.bytes-t.samples[0].bytes)/took)
	}
	return p
}
