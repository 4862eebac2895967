package model

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// op is one operation of the plan: on the Session of a slot, or a kill.
type op struct {
	n    int // its place in the plan
	slot int // -1: a kill
	what string
	with [2]string // of a pair: what is asked at once
	size int       // of what is written
	seed uint64    // of what is written
	pick int       // which of several files

	hub, runner bool // of a kill
	outage      time.Duration
}

func (o op) String() string {
	switch {
	case o.what == "pair":
		return fmt.Sprintf("op %d: %s and %s at once", o.n, o.with[0], o.with[1])
	case o.hub && o.runner:
		return fmt.Sprintf("op %d: kill -9 of Hub and Runner, for %s", o.n, o.outage.Round(time.Millisecond))
	case o.hub:
		return fmt.Sprintf("op %d: kill -9 of the Hub, for %s", o.n, o.outage.Round(time.Millisecond))
	case o.runner:
		return fmt.Sprintf("op %d: kill -9 of the Runner, for %s", o.n, o.outage.Round(time.Millisecond))
	}
	return fmt.Sprintf("op %d: %s", o.n, o.what)
}

// weight of an operation among others.
type weight struct {
	what string
	n    int
}

var (
	whileRunning = []weight{
		{"write", 24}, {"write-dependency", 12}, {"remove", 4}, {"rename", 4}, {"chmod", 6}, {"link", 5}, {"drop-dependencies", 2}, {"move-dependencies", 2},
		{"read", 8}, {"exec", 4}, {"run", 6}, {"sleep", 8}, {"restart", 5}, {"nap", 3}, {"archive", 2}, {"pair", 8}, {"new", 2}, {"version", 1},
	}
	whileAsleep = []weight{{"wake", 12}, {"run", 3}, {"pair", 3}, {"restart", 1}, {"new", 1}}
	atOnce      = []weight{{"sleep", 4}, {"wake", 4}, {"restart", 3}, {"archive", 1}, {"write", 4}, {"run", 2}}
	// killEvery makes one of so many operations a kill.
	killEvery = 14
)

// draw makes the plan of a seed. All of it is drawn before anything begins: what the operations meet varies with the machine, what they
// are does not.
func draw(seed uint64, ops, sessions int) []op {
	r := rand.New(rand.NewPCG(seed, 0x6d6f64656c))
	choose := func(from []weight) string {
		all := 0
		for _, w := range from {
			all += w.n
		}
		n := r.IntN(all)
		for _, w := range from {
			if n -= w.n; n < 0 {
				return w.what
			}
		}
		panic("unreachable")
	}
	asleep := make([]bool, sessions)
	plan := make([]op, 0, ops)
	for n := range ops {
		if r.IntN(killEvery) == 0 {
			kill := op{n: n, slot: -1, what: "kill", outage: time.Duration(r.Int64N(int64(time.Second)))}
			switch r.IntN(5) {
			case 0, 1, 2:
				kill.runner = true
			case 3:
				kill.hub = true
			default:
				kill.hub, kill.runner = true, true
			}
			plan = append(plan, kill)
			continue
		}
		o := op{n: n, slot: r.IntN(sessions), size: 1 << r.IntN(17), seed: r.Uint64(), pick: r.IntN(1 << 20)}
		if r.IntN(20) == 0 {
			o.size = r.IntN(2) << 20 // nothing, or a megabyte
		}
		if asleep[o.slot] {
			o.what = choose(whileAsleep)
		} else {
			o.what = choose(whileRunning)
		}
		if o.what == "pair" {
			o.with = [2]string{choose(atOnce), choose(atOnce)}
		}
		asleep[o.slot] = o.what == "sleep"
		plan = append(plan, o)
	}
	return plan
}
