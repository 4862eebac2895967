package agent

import "runtime"

// thread is a thread of the agent that differs from the others, by a filter on its calls or by whom it acts as. It lives as long
// as the agent: the Go runtime neither ends it nor starts others from it.
type thread struct{ calls chan func() }

// newThread makes one; with an error of setup there is none.
func newThread(setup func() error) (*thread, error) {
	t := &thread{calls: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := setup()
		ready <- err
		if err != nil {
			return // and the thread ends, as it was never unlocked
		}
		for f := range t.calls {
			f()
		}
	}()
	return t, <-ready
}

// do runs f on the thread, to its end.
func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}
