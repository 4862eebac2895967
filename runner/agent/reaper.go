package agent

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// reaper owns every wait of the agent. A second one, os/exec's Wait for instance, loses exit codes: PID 1 must wait for
// any child, and whoever waits first gets it (facts/sandbox.md §2.9: 453 of 4,000 were lost).
type reaper struct {
	mu       sync.Mutex // held over fork and registration, and over each wait4, so that no exit is seen before its pid
	children map[int]chan syscall.WaitStatus
	forks    *thread // that everything is forked from; nil: any
}

func newReaper() *reaper { return &reaper{children: map[int]chan syscall.WaitStatus{}} }

// run reaps for ever.
func (r *reaper) run() {
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, syscall.SIGCHLD)
	for {
		for r.one() {
		}
		<-sig
	}
}

func (r *reaper) one() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ws syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG|syscall.WALL, nil)
	if err == syscall.EINTR {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if ch := r.children[pid]; ch != nil {
		delete(r.children, pid)
		ch <- ws
	}
	return true
}

// fork starts argv0; its exit status arrives on the channel. watched: from forks.
func (r *reaper) fork(argv0 string, argv []string, attr *syscall.ProcAttr, watched bool) (int, <-chan syscall.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pid int
	var err error
	forks := func() { pid, err = syscall.ForkExec(argv0, argv, attr) }
	if r.forks != nil && watched {
		r.forks.do(forks)
	} else {
		forks()
	}
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	r.children[pid] = ch
	return pid, ch, nil
}

// kill signals a child that fork started, if it isn't reaped yet: its pid can't belong to another process meanwhile.
func (r *reaper) kill(pid int, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[pid] == nil {
		return ErrEnded
	}
	return syscall.Kill(pid, sig)
}
