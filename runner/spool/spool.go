// Package spool keeps on the Runner's disk what the Hub has not acknowledged: the log of each assignment and its newest
// report (design.md §5). It is the only place where output of a Sandbox reaches the Runner's disk, and it takes only
// what went through the redactor.
//
// A log stream (an assignment under one fence) is a folder of segments of framed, checksummed records. It survives
// kill -9 at any point: a torn last record is cut when the spool is opened again. What is handed out for shipping was
// synced to disk first, so that an end the Hub has acknowledged is never beyond the spool's own, even after a power cut.
package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Options of a Spool. Zero values mean the defaults.
type Options struct {
	Segment int64 // bytes after which a segment is full; 4 MiB
	Limit   int64 // bytes of one stream that may wait for the Hub, beyond which the middle is dropped; 256 MiB
}

// ErrInUse: another process has this spool open.
var ErrInUse = errors.New("this spool is in use by another Runner process on this host")

// Spool is an open spool. Its methods may be called from many goroutines.
type Spool struct {
	dir   string
	o     Options
	limit atomic.Int64 // Options.Limit, or what KeepAtLeast raised it to
	lock  *os.File

	mu      sync.Mutex
	streams map[streamKey]*Stream
	reports map[string]*reportSlot
	change  chan struct{}
	closed  bool
}

type streamKey struct {
	assignment string
	fence      int64
}

var (
	safeID     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)
	streamName = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_-]{0,99})\.([0-9]{1,19})$`)
)

// Open opens the spool in dir, made if missing and readable by its owner only, with everything an earlier process
// left. ErrInUse: another process has it.
func Open(dir string, o Options) (*Spool, error) {
	if o.Segment <= 0 {
		o.Segment = 4 << 20
	}
	if o.Limit <= 0 {
		o.Limit = 256 << 20
	}
	o.Segment = min(o.Segment, max(o.Limit/8, 1))
	s := &Spool{dir: dir, o: o, streams: map[streamKey]*Stream{}, reports: map[string]*reportSlot{}, change: make(chan struct{})}
	s.limit.Store(o.Limit)
	for _, d := range []string{dir, s.logs(), s.reportDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make the spool: %w", err)
		}
	}
	var err error
	if s.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("open the spool's lock: %w", err)
	}
	if err := flock(s.lock); err != nil {
		_ = s.lock.Close()
		return nil, err
	}
	if err := errors.Join(s.loadStreams(), s.loadReports()); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// KeepAtLeast raises the limit of each stream so that n bytes of log fit: what the Hub would keep whole is not to be lost
// here while it is away.
func (s *Spool) KeepAtLeast(n int64) {
	n = 2*n + 2*s.o.Segment // short pieces take as much again for what stands beside them
	for {
		now := s.limit.Load()
		if n <= now || s.limit.CompareAndSwap(now, n) {
			return
		}
	}
}

// flock tries for a moment: a process that is just being forked holds its parent's files, this lock too, until its exec.
func flock(f *os.File) error {
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock the spool: %w", err)
		case time.Now().After(deadline):
			return ErrInUse
		}
	}
}

func (s *Spool) logs() string      { return filepath.Join(s.dir, "log") }
func (s *Spool) reportDir() string { return filepath.Join(s.dir, "report") }

// Close closes all files. What is in the spool stays.
func (s *Spool) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	streams := s.streams
	s.mu.Unlock()
	var errs []error
	for _, st := range streams {
		errs = append(errs, st.close())
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// Changed is closed when there may be something new to send.
func (s *Spool) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change
}

func (s *Spool) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.change)
	s.change = make(chan struct{})
}

func (s *Spool) loadStreams() error {
	entries, err := os.ReadDir(s.logs())
	if err != nil {
		return fmt.Errorf("read the spool: %w", err)
	}
	for _, e := range entries {
		m := streamName.FindStringSubmatch(e.Name())
		if m == nil || !e.IsDir() {
			continue
		}
		fence, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil {
			continue
		}
		if _, err := s.Stream(m[1], fence); err != nil {
			return err
		}
	}
	return nil
}

// Stream answers the log stream of an assignment under a fence: the one that is there, or a new and empty one.
func (s *Spool) Stream(assignment string, fence int64) (*Stream, error) {
	if !safeID.MatchString(assignment) || fence < 0 {
		return nil, fmt.Errorf("%q is no id of an assignment", assignment)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	key := streamKey{assignment, fence}
	if st := s.streams[key]; st != nil {
		return st, nil
	}
	st, err := openStream(s, key, filepath.Join(s.logs(), assignment+"."+strconv.FormatInt(fence, 10)))
	if err != nil {
		return nil, fmt.Errorf("open the spooled log of %s: %w", assignment, err)
	}
	s.streams[key] = st
	return st, nil
}

// Streams lists all streams, in no order.
func (s *Spool) Streams() []*Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Stream, 0, len(s.streams))
	for _, st := range s.streams {
		all = append(all, st)
	}
	return all
}

// Forget deletes everything of an assignment, sent or not: its streams and its report.
func (s *Spool) Forget(assignment string) error {
	return s.forget(assignment, func(*Stream) bool { return true }, func(*reportSlot) bool { return true })
}

func (s *Spool) forget(assignment string, stream func(*Stream) bool, report func(*reportSlot) bool) error {
	var errs []error
	for _, st := range s.Streams() {
		if st.key.assignment == assignment && stream(st) {
			errs = append(errs, st.Remove())
		}
	}
	return errors.Join(append(errs, s.dropReport(assignment, report))...)
}

// Tidy forgets every assignment that keep doesn't want and that has nothing to send: its streams are Done and its
// report was sent.
func (s *Spool) Tidy(keep func(assignment string) bool) error {
	s.mu.Lock()
	done := map[string]bool{}
	for id, slot := range s.reports {
		done[id] = slot.sent
	}
	s.mu.Unlock()
	for _, st := range s.Streams() {
		earlier, known := done[st.key.assignment]
		done[st.key.assignment] = (earlier || !known) && st.Done()
	}
	var errs []error
	for id, over := range done {
		if over && !keep(id) {
			errs = append(errs, s.forget(id, (*Stream).Done, func(slot *reportSlot) bool { return slot.sent }))
		}
	}
	return errors.Join(errs...)
}

func (s *Spool) forgetStream(st *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[st.key] == st {
		delete(s.streams, st.key)
		close(s.change)
		s.change = make(chan struct{})
	}
}

// syncDir makes names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
