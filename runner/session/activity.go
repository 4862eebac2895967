package session

import (
	"sync"
	"time"
)

// activity decides whether a Session is idle: for how long no byte went in or out of a terminal or exec, and no exec
// or headless run was in progress. A shell at its prompt and services of the start script don't count (issue 2 item 6). An exec with a
// terminal counts by its bytes, since it may be a shell.
type activity struct {
	mu     sync.Mutex
	last   time.Time
	busy   int
	closed bool
}

// touch is a byte in or out.
func (a *activity) touch() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = time.Now()
}

// begin and end bracket an exec in progress. begin is false once the Session goes to sleep.
func (a *activity) begin(counts bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.last = time.Now()
	if counts {
		a.busy++
	}
	return true
}

func (a *activity) end(counted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if counted { // a terminal that is closed, perhaps because the Session is to sleep, is no activity
		a.last = time.Now()
		a.busy--
	}
}

// hold and release bracket a headless run, from when the Runner has heard of it: the Session is wanted, up or not.
func (a *activity) hold() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy++
}

func (a *activity) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = time.Now()
	a.busy--
}

// since tells whether there was any after at.
func (a *activity) since(at time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.busy > 0 || a.last.After(at)
}

func (a *activity) isOpen() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.closed
}

func (a *activity) idle() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.idleLocked()
}

func (a *activity) idleLocked() time.Duration {
	if a.busy > 0 {
		return 0
	}
	return time.Since(a.last)
}

// close refuses whatever begins from now on, unless the Session has been idle for less than that.
func (a *activity) close(least time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if least > 0 && a.idleLocked() < least {
		return false
	}
	a.closed = true
	return true
}

func (a *activity) open() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed, a.last = false, time.Now()
}
