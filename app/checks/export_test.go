package checks

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// RunOnce does what is due now, and says when something will be.
func (r *Reconciler) RunOnce(ctx context.Context) (next time.Time, err error) { return r.runOnce(ctx) }

// KillAt has r die when a step comes to a point ("claimed create", "did create" …), as a kill of its process would have it.
// Call it before anything runs.
func (r *Reconciler) KillAt(point string) (killed func() bool) {
	var dead atomic.Bool
	r.at = func(p string) error {
		if p == point || dead.Load() {
			dead.Store(true)
			return errors.New("killed")
		}
		return nil
	}
	return dead.Load
}

// The limits that tests go by.
const (
	Lease  = lease
	Settle = settle
)

// StopAt has r stand still when a step comes to a point, until it is woken up.
func (r *Reconciler) StopAt(point string) (asleep <-chan struct{}, wakeUp func()) {
	there, on := make(chan struct{}), make(chan struct{})
	r.at = func(p string) error {
		if p == point {
			close(there)
			<-on
		}
		return nil
	}
	return there, func() { close(on) }
}

// Step does one step in an installation, whether or not one is due.
func (r *Reconciler) Step(ctx context.Context, installation int64) error {
	app, err := r.holder.App()
	if err != nil {
		return err
	}
	return r.oneStep(ctx, app, installation)
}
