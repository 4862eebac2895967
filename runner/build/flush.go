package build

import (
	"context"
	"time"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// flushEvery is how often what a bootstrap wrote is brought to the host's storage while it runs. The kernel alone would
// begin after seconds; then a person waits for all of it in the snapshot.
const flushEvery = time.Second

// flush brings a disk to the host's storage now and then. done, called when the script has ended, has it do so at once;
// flushed stops it and returns when nothing of it is under way any more. Errors don't matter here: the snapshot syncs for itself.
func (b *Builder) flush(ctx context.Context, d sandbox.Disk) (done, flushed func()) {
	ctx, stop := context.WithCancel(ctx)
	ended, idle := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(idle)
		tick := time.NewTicker(flushEvery)
		defer tick.Stop()
		for last := false; !last; {
			select {
			case <-tick.C:
			case <-ended:
				last = true
			case <-ctx.Done():
				return
			}
			if err := b.engine.Flush(ctx, d); err != nil {
				b.cfg.Log.Debug().Err(err).Msg("a build's disk could not be flushed while its bootstrap ran")
			}
		}
	}()
	return func() { close(ended) }, func() {
		stop()
		<-idle
	}
}
