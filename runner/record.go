package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/session"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// record is all that one assignment needs to go on after the Runner's process was killed. It holds no output and no
// value of a Variable.
type record struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
	// What the Hub wanted last.
	Want       string `json:"want"`
	Generation int64  `json:"generation"`
	Fence      int64  `json:"fence"`
	Deadline   int64  `json:"deadline,omitempty"`

	Payload json.RawMessage `json:"payload,omitempty"`
	Of      int64           `json:"of,omitempty"`  // the generation that Payload is of
	Did     int64           `json:"did,omitempty"` // the newest generation that was acted on to its end
	State   string          `json:"state"`         // reported last
	Ended   bool            `json:"ended,omitempty"`
	Outcome string          `json:"outcome,omitempty"` // of a Test build that has ended: the State that is reported when it is cleaned up
	Failure *wire.Failure   `json:"failure,omitempty"`
	Phases  []wire.Phase    `json:"phases,omitempty"`
	Notes   []string        `json:"notes,omitempty"`
	Seq     int64           `json:"seq,omitempty"`

	Marks   build.Marks   `json:"marks"`   // a Test build's
	Session session.State `json:"session"` // a Session's
	Run     runState      `json:"run"`     // a headless run's
}

func (r *Runner) recordPath(id string) string { return filepath.Join(r.records, id+".json") }

// writeRecord replaces a record. Whole it is after a kill in any case; durable also after a power cut.
func (r *Runner) writeRecord(rec record, durable bool) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := build.WriteFile(r.recordPath(rec.ID), b, durable); err != nil {
		return fmt.Errorf("the Runner can't store its state: %w", err)
	}
	return nil
}

// redacted is rec as it may be written: texts of programs and agents may repeat a value.
func (rec record) redacted(text func(string) string) record {
	failure := func(f *wire.Failure) *wire.Failure {
		if f == nil {
			return nil
		}
		c := *f
		c.Message, c.LastLines = text(c.Message), text(c.LastLines)
		return &c
	}
	rec.Failure, rec.Session.StartFailed = failure(rec.Failure), failure(rec.Session.StartFailed)
	rec.Marks.Failed, rec.Session.Build.Failed = failure(rec.Marks.Failed), failure(rec.Session.Build.Failed)
	rec.Run.Exit = maskedExit(rec.Run.Exit, text)
	rec.Phases, rec.Notes = slices.Clone(rec.Phases), slices.Clone(rec.Notes)
	for i := range rec.Phases {
		rec.Phases[i].Note = text(rec.Phases[i].Note)
	}
	for i := range rec.Notes {
		rec.Notes[i] = text(rec.Notes[i])
	}
	return rec
}

// mark is what of a record must not be lost to a power cut: a Workspace that is cloned again, an outcome that comes twice.
type mark struct {
	fence     int64
	ended     bool
	base      string
	workspace bool
	disk      int64
}

func (rec record) mark() mark {
	return mark{rec.Fence, rec.Ended, rec.Marks.Base, rec.Session.Workspace, rec.Session.DiskSize}
}

func (r *Runner) readRecords() ([]record, error) {
	entries, err := os.ReadDir(r.records)
	if err != nil {
		return nil, err
	}
	var all []record
	var errs []error
	for _, e := range entries {
		path := filepath.Join(r.records, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			os.Remove(path) // a write that was killed
			continue
		}
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		b, err := os.ReadFile(path)
		var rec record
		if err == nil {
			err = json.Unmarshal(b, &rec)
		}
		if err != nil || rec.ID+".json" != e.Name() {
			// A power cut on a file system that loses what was renamed. The Hub's list brings the assignment back; what is on
			// a Session's disk is found there.
			r.log.Error().Err(err).Str("file", path).Msg("the state of an assignment can't be read; it is put aside and begun again")
			errs = append(errs, os.Rename(path, path+".damaged"))
			continue
		}
		all = append(all, rec)
	}
	return all, errors.Join(errs...)
}
