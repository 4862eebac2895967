package kill

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// slots is how many Sessions there are at most.
const slots = 3

// longEvery makes every so many rounds one with a Runner that is away for longer than a lease.
const longEvery = 25

// longOutage is beyond a lease of 60 s and what the Hub allows on top of it.
const longOutage = 80 * time.Second

// plan is what one round does. All of it is drawn before the round begins.
type plan struct {
	number   int
	build    buildPlan
	sessions [slots][]op
	kills    []killPlan
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "a Test build that %s", p.build.kind)
	if p.build.apply {
		b.WriteString(" and is applied")
	}
	for slot, ops := range p.sessions {
		var names []string
		for _, o := range ops {
			names = append(names, o.what)
		}
		fmt.Fprintf(&b, "; session %d: %s", slot, strings.Join(names, " "))
	}
	for _, kp := range p.kills {
		fmt.Fprintf(&b, "; kill %s %s after %s, for %s", kp.who(), kp.jitter.Round(time.Millisecond), kp.on, kp.outage.Round(time.Millisecond))
	}
	return b.String()
}

// What a Test build is meant to come to.
const (
	passes    = "passes"
	fails     = "fails"
	endsEarly = "is cancelled"
)

type buildPlan struct {
	kind                         string
	burst, bootLines, startLines int
	cancelOn                     string
	cancelAfter                  time.Duration
	apply                        bool
}

// op is one thing that is done with a Session, after a pause.
type op struct {
	what  string // start, write, talk, sleep, wake, nap, delete
	pause time.Duration
	size  int    // of what is written
	seed  uint64 // of what is written
}

type killPlan struct {
	hub, runner, hubFirst    bool
	on                       string
	jitter, fallback, outage time.Duration
}

func (kp killPlan) who() string {
	switch {
	case kp.hub && kp.runner:
		return "both"
	case kp.hub:
		return "the Hub"
	}
	return "the Runner"
}

// planner draws rounds from a seed. It knows which Sessions there are, as the rounds before leave them.
type planner struct {
	r     *rand.Rand
	state [slots]string // "", running, asleep
}

func newPlanner(seed uint64) *planner { return &planner{r: rand.New(rand.NewPCG(seed, 0x6b696c6c))} }

func (p *planner) upTo(d time.Duration) time.Duration { return time.Duration(p.r.Int64N(int64(d))) }

func (p *planner) pick(from ...string) string { return from[p.r.IntN(len(from))] }

func (p *planner) round(number int) plan {
	out := plan{number: number, build: p.build()}
	for slot := range out.sessions {
		out.sessions[slot] = p.session(slot)
	}
	if number%longEvery == longEvery-1 {
		out.kills = []killPlan{{runner: true, on: "build: bootstrap", jitter: p.upTo(time.Second), fallback: 20 * time.Second, outage: longOutage}}
		return out
	}
	for range 1 + p.r.IntN(3) {
		out.kills = append(out.kills, p.kill())
	}
	return out
}

func (p *planner) build() buildPlan {
	b := buildPlan{kind: passes, burst: p.r.IntN(300), bootLines: 10 + p.r.IntN(30), startLines: 5 + p.r.IntN(15), apply: p.r.IntN(10) < 7}
	switch p.r.IntN(10) {
	case 0, 1:
		b.kind, b.apply = endsEarly, false
		b.cancelOn = p.pick("build: image", "build: bootstrap", "build: snapshot", "build: clone", "build: start")
		b.cancelAfter = p.upTo(700 * time.Millisecond)
	case 2:
		b.kind, b.apply = fails, false
	}
	return b
}

func (p *planner) session(slot int) (ops []op) {
	add := func(what string) {
		ops = append(ops, op{what: what, pause: p.upTo(600 * time.Millisecond), size: 1 << p.r.IntN(19), seed: p.r.Uint64()})
	}
	for range 3 + p.r.IntN(4) {
		switch p.state[slot] {
		case "":
			add("start")
			p.state[slot] = "running"
		case "running":
			switch n := p.r.IntN(20); {
			case n < 8:
				add("write")
			case n < 11:
				add("talk")
			case n < 15:
				add("sleep")
				p.state[slot] = "asleep"
			case n < 18:
				add("nap")
			case len(ops) > 0:
				add("delete")
				p.state[slot] = ""
				return ops
			}
		case "asleep":
			add("wake")
			p.state[slot] = "running"
		}
	}
	return ops
}

func (p *planner) kill() killPlan {
	kp := killPlan{hubFirst: p.r.IntN(2) == 0, fallback: p.upTo(4 * time.Second), outage: p.upTo(2 * time.Second)}
	switch p.r.IntN(3) {
	case 0:
		kp.hub = true
	case 1:
		kp.runner = true
	case 2:
		kp.hub, kp.runner = true, true
	}
	kp.on = p.pick("nothing", "build: save", "build: begin", "build: image", "build: bootstrap", "build: snapshot", "build: clone", "build: start", "build: final",
		"build: apply", "build: cancel", "start", "write", "talk", "sleep", "wake", "nap", "delete")
	if *only != "" {
		kp.on, kp.fallback = *only, 20*time.Second
	}
	kp.jitter = p.upTo(50 * time.Millisecond)
	if p.r.IntN(2) == 0 {
		kp.jitter = p.upTo(time.Second)
	}
	return kp
}

// long tells that its Runner is away for longer than a lease.
func (p plan) long() bool {
	for _, kp := range p.kills {
		if kp.runner && kp.outage >= longOutage {
			return true
		}
	}
	return false
}
