package runner

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/runner/session"
)

// restTime is how long Sandboxes have to end by themselves when the host goes down: within the 90 s that systemd gives a service.
const restTime = 75 * time.Second

// hostEnds tells whether systemd takes this host down.
func hostEnds() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	said, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output() // fails whenever it isn't "running"
	return strings.TrimSpace(string(said)) == "stopping"
}

// rest stops what runs in Sandboxes as a sleep does, containers with their grace time: what the host kills otherwise. The Hub still
// wants these Sessions awake, so the next start of the Runner boots them again. All workers have ended.
func (r *Runner) rest() {
	ctx, cancel := context.WithTimeout(context.Background(), restTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, w := range r.workers {
		if w.machine == nil || !w.machine.State().Awake {
			continue
		}
		wg.Go(func() {
			if err := w.machine.Sleep(ctx, 0); err != nil && !errors.Is(err, session.ErrBusy) {
				w.log.Warn().Err(err).Msg("the host goes down, and this Session's Sandbox could not be stopped in good order")
			}
		})
	}
	wg.Wait()
}
