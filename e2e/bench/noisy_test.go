package bench

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/store"
)

// bombs are what a Session does to its Sandbox while another one's is asked. Each goes on until its Sandbox is stopped.
var bombs = []struct{ row, line string }{
	{"noisy_processes", "b() { b | b & }; while :; do b; sleep 0.1; done"},
	{"noisy_memory", "while :; do tail /dev/zero; done"},
	{"noisy_disk", "while :; do dd if=/dev/zero of=/big bs=1M; rm -f /big; done"},
	{"noisy_inodes", "while :; do mkdir -p /i && (cd /i && seq 1 200000 | xargs touch); rm -rf /i; done"},
	{"noisy_log", "yes 0123456789012345678901234567890123456789"},
	{"noisy_cpu", "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait"},
}

// noisy is how long /bin/true takes in a quiet Session, from the Runner's asking until its answer, at the 99th
// percentile: alone, beside a Session with each bomb, and the worst of those. Both have what limits Sessions have by default, so
// nothing but the engine's own measures keeps the loud one down.
func noisy(t *testing.T, b *bench) {
	h := b.host(t)
	r := h.recipe("")
	h.build(r)
	quiet := h.start(r)
	defer quiet.remove()
	samples := 20
	if b.peers {
		samples = 500
	}
	p99 := func() float64 {
		var took []float64
		for range samples {
			began := time.Now()
			quiet.run("/bin/true")
			took = append(took, ms(time.Since(began)))
		}
		slices.Sort(took)
		return took[(len(took)*99+99)/100-1]
	}
	record("noisy_alone", "ms", []float64{p99()}, "", nil)
	var worst float64
	for _, bomb := range bombs {
		loud := h.start(r)
		id := store.NewID()
		if _, err := loud.c.Start(context.Background(), agent.Cmd{ID: id, Argv: []string{"bash", "-c", bomb.line}}); err != nil {
			t.Fatalf("%s: %v", bomb.row, err)
		}
		var reader sync.WaitGroup
		reader.Go(func() { drain(loud.c, id) })
		idle(t) // until the bomb is at its height
		v := p99()
		record(bomb.row, "ms", []float64{v}, "", nil)
		worst = max(worst, v)
		if _, err := loud.c.Hello(context.Background()); err != nil {
			t.Errorf("%s: the agent beside the bomb doesn't answer: %v", bomb.row, err)
		}
		loud.remove()
		reader.Wait()
	}
	record("noisy", "ms", []float64{worst}, "", nil)
}

// drain reads what a command says until it is no more, as a Runner does.
func drain(c *agent.Client, id string) {
	r, err := c.Output(context.Background(), id, agent.Out, 0)
	if err != nil {
		return
	}
	defer r.Close()
	buf := make([]byte, 64<<10)
	for at := int64(0); ; {
		n, err := r.Read(buf)
		if err != nil {
			return
		}
		at += int64(n)
		if err := c.Ack(context.Background(), id, agent.Out, at); err != nil {
			return
		}
	}
}

func noisyRows() []string {
	rows := []string{"noisy", "noisy_alone"}
	for _, b := range bombs {
		rows = append(rows, b.row)
	}
	return rows
}
