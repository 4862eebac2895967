package agent

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestNoExitCodeIsLostAmongThousandsOfExecsAndOrphans(t *testing.T) {
	t.Parallel()
	total := 4000
	if testing.Short() {
		total = 400
	}
	b := boot(t, image{})
	const workers = 8
	var wg sync.WaitGroup
	var mu sync.Mutex
	wrong := 0
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := w; i < total; i += workers {
				want, line := i%200, fmt.Sprintf("exit %d", i%200)
				if i%10 == 0 {
					line = "(sh -c 'exit 9' & ) & " + line // a double fork: its orphans are PID 1's
				}
				id := fmt.Sprintf("x%d", i)
				_, err := b.Start(ctx(t), Cmd{ID: id, Argv: []string{"sh", "-c", line}})
				var e Exit
				if err == nil {
					e, err = b.Wait(ctx(t), id)
				}
				if err == nil {
					err = b.Forget(ctx(t), id)
				}
				if err != nil || e.Code != want {
					mu.Lock()
					wrong++
					mu.Unlock()
					t.Errorf("%s: %+v %v, want %d", id, e, err, want)
				}
			}
		}()
	}
	wg.Wait()
	if wrong > 0 {
		t.Errorf("%d of %d exit codes lost", wrong, total)
	}
	until(t, "the reaping of all orphans", func() (bool, string) {
		out := b.sh("grep -h State: /proc/[0-9]*/status 2>/dev/null | grep -c Z || true")
		return strings.TrimSpace(out) == "0", out
	})
	if now, _ := b.rss(); now > 30<<20 {
		t.Errorf("the agent has %d MB", now>>20)
	}
}

func TestAScriptThatForks10000ProcessesIsReaped(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	// Double forks, so that it is the agent that has to reap them, while another command wants an answer.
	id := b.start(Cmd{Script: script(`i=0; while [ $i -lt 10000 ]; do (true & ) ; i=$((i+1)); done; exit 8`)})
	b.sh("true")
	if e := b.wait(id); e.Code != 8 {
		t.Errorf("%+v", e)
	}
	until(t, "the reaping of all", func() (bool, string) {
		out := b.sh("ls -d /proc/[0-9]* | wc -l")
		return strings.TrimSpace(out) <= "4" && len(strings.TrimSpace(out)) == 1, out
	})
}
