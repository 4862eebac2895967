package spool

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// Report is the newest state change of an assignment. Texts in Detail went through the redactor.
type Report struct {
	ID         string          `json:"id"`
	Fence      int64           `json:"fence"`
	Generation int64           `json:"generation"`
	Seq        int64           `json:"seq"`
	State      string          `json:"state"`
	Detail     json.RawMessage `json:"detail"`
}

type reportSlot struct {
	newest Report
	sent   bool // acknowledged in this process; after a restart it is sent once more, which changes nothing on the Hub
}

const reportSuffix = ".json"

func (s *Spool) loadReports() error {
	entries, err := os.ReadDir(s.reportDir())
	if err != nil {
		return fmt.Errorf("read the spooled reports: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(s.reportDir(), e.Name())
		if !strings.HasSuffix(e.Name(), reportSuffix) {
			_ = os.Remove(path) // a write that did not come to its rename
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read a spooled report: %w", err)
		}
		var r Report
		if err := json.Unmarshal(b, &r); err != nil || r.ID+reportSuffix != e.Name() {
			// Only a power cut between an unsynced progress report and its sync leaves one. The next report replaces it.
			_ = os.Remove(path)
			continue
		}
		s.reports[r.ID] = &reportSlot{newest: r}
	}
	return nil
}

// PutReport stores r as the newest report of its assignment, in place of the one before, sent or not, and sets its Seq:
// one more than the last of the same fence; where none is known, which may be because it was refused or lost to a power
// cut, the time in ms, which is beyond any that the Hub has seen. A new State is on disk, synced, when it returns; a repeated one (progress)
// survives kill -9 but perhaps not a power cut. A report that must reach the Hub by itself is followed by another
// state only after it was sent (Sent).
func (s *Spool) PutReport(r Report) (Report, error) {
	if !safeID.MatchString(r.ID) {
		return Report{}, fmt.Errorf("%q is no id of an assignment", r.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Report{}, os.ErrClosed
	}
	slot := s.reports[r.ID]
	r.Seq = time.Now().UnixMilli()
	durable := true
	if slot != nil {
		switch {
		case slot.newest.Fence == r.Fence:
			r.Seq = slot.newest.Seq + 1
			durable = slot.newest.State != r.State
		case slot.newest.Fence > r.Fence:
			return Report{}, fmt.Errorf("assignment %s has reported under the newer fence %d already", r.ID, slot.newest.Fence)
		}
	}
	if len(r.Detail) == 0 {
		r.Detail = json.RawMessage("{}")
	}
	b, err := json.Marshal(r)
	if err != nil {
		return Report{}, fmt.Errorf("encode a report: %w", err)
	}
	path := filepath.Join(s.reportDir(), r.ID+reportSuffix)
	if err := replace(path, b, durable); err != nil {
		return Report{}, fmt.Errorf("spool the report of assignment %s: %w", r.ID, err)
	}
	s.reports[r.ID] = &reportSlot{newest: r}
	close(s.change)
	s.change = make(chan struct{})
	return r, nil
}

func replace(path string, b []byte, durable bool) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && durable {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil && durable {
		err = syncDir(filepath.Dir(path))
	}
	return err
}

// Unsent lists the newest reports that were not acknowledged, by assignment.
func (s *Spool) Unsent() []Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Report
	for _, slot := range s.reports {
		if !slot.sent {
			all = append(all, slot.newest)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].ID < all[j].ID })
	return all
}

// Newest is the newest report of an assignment, and whether the Hub has acknowledged it.
func (s *Spool) Newest(assignment string) (r Report, sent, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := s.reports[assignment]
	if slot == nil {
		return Report{}, false, false
	}
	return slot.newest, slot.sent, true
}

// Sent notes that the Hub has acknowledged r. It stays on disk, for its Seq, until Forget or Refused.
func (s *Spool) Sent(r Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot := s.reports[r.ID]; slot != nil && slot.newest.Fence == r.Fence && slot.newest.Seq == r.Seq {
		slot.sent = true
		close(s.change)
		s.change = make(chan struct{})
	}
}

// Refused deletes a report that the Hub will never take, unless a newer one has come.
func (s *Spool) Refused(r Report) error {
	return s.dropReport(r.ID, func(slot *reportSlot) bool { return slot.newest.Fence == r.Fence && slot.newest.Seq == r.Seq })
}

func (s *Spool) dropReport(id string, match func(*reportSlot) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := s.reports[id]
	if slot == nil || !match(slot) {
		return nil
	}
	delete(s.reports, id)
	close(s.change)
	s.change = make(chan struct{})
	if err := os.Remove(filepath.Join(s.reportDir(), id+reportSuffix)); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("delete a spooled report: %w", err)
	}
	return nil
}
