package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"maps"

	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/store"
)

// maxTails bounds the streams whose newest bytes are in memory; of others they are read from the store.
const maxTails = 1024

// tail is the newest bytes of a stream, as the Runner sent them: a value that began there and goes on is found only if what was
// masked of it can still be read.
type tail struct {
	fence, next int64
	raw         []byte
	set         *redact.Set // with which they were looked at
}

// tails are those of all logs that grow, by assignment. They belong to the one goroutine that writes.
type tails struct {
	stored map[string]tail
	fresh  map[string]tail // of the transaction that runs
}

// commit makes those of the transaction that ended well the stored ones.
func (t *tails) commit() {
	if t.stored == nil || len(t.stored) > maxTails {
		t.stored = map[string]tail{}
	}
	maps.Copy(t.stored, t.fresh)
	t.fresh = nil
}

// of is the tail of a stream that ends at l.next.
func (t *tails) of(f *Fleet, tx *store.Tx, id string, l logRow) (tail, error) {
	for _, m := range []map[string]tail{t.fresh, t.stored} {
		if s, ok := m[id]; ok && s.fence == l.fence && s.next == l.next {
			return s, nil
		}
	}
	s := tail{fence: l.fence, next: l.next}
	if l.next == l.base {
		return s, nil
	}
	// A Hub that has just been started: what was masked before stays masked.
	var start, size int64
	var packed []byte
	err := tx.Row(lastChunkSQL, id).Scan(&start, &size, &packed)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && start+size != l.next:
		return s, nil
	case err != nil:
		return s, fmt.Errorf("read the last chunk of log of assignment %s: %w", id, err)
	}
	data, err := f.unpack(id, storedChunk{start, size, packed})
	if err != nil {
		return s, nil // join says that it is damaged
	}
	s.raw = after(nil, data[min(max(l.base-start, 0), int64(len(data))):])
	return s, nil
}

// hideAcross masks what stands across the end of a stream as it is stored and what comes of job behind it, which is q.Data from
// index known on: the one part in the store, the other in job.
func (f *Fleet) hideAcross(tx *store.Tx, id string, l logRow, job *appendJob, known int) error {
	t, err := f.appends.tails.of(f, tx, id, l)
	if err != nil {
		return err
	}
	fresh := job.q.GetData()[known:]
	spans, names := border(job.set, t.raw, fresh, t.set != job.set)
	job.across = hits{n: len(spans), names: names}
	for _, s := range spans {
		if s.To > 0 {
			job.fill(known, known+s.To)
		}
		if err := f.fillStored(tx, id, l.next+int64(s.From), l.next+int64(min(s.To, 0))); err != nil {
			return err
		}
	}
	f.appends.tails.fresh[id] = tail{fence: l.fence, next: l.next + int64(len(fresh)), raw: after(t.raw, fresh), set: job.set}
	return nil
}

// fill masks bytes of the data, and has the pieces they are in compressed again.
func (job *appendJob) fill(from, to int) {
	if len(job.data) > 0 && &job.data[0] == &job.q.GetData()[0] {
		job.data = bytes.Clone(job.data)
	}
	fill(job.data[from:to])
	at := 0
	for i := range job.pieces {
		p := &job.pieces[i]
		end := at + len(p.raw)
		p.raw = job.data[at:end]
		if from < end && to > at {
			p.packed = nil
		}
		at = end
	}
}

// fillStored masks the stored bytes [from, to) of a log, those that are still there.
func (f *Fleet) fillStored(tx *store.Tx, id string, from, to int64) error {
	for to > from {
		chunks, err := store.All(tx, func(scan func(...any) error) (c storedChunk, err error) { return c, scan(&c.start, &c.size, &c.packed) },
			chunkBeforeSQL, id, to)
		if err != nil {
			return fmt.Errorf("read the log of assignment %s: %w", id, err)
		}
		if len(chunks) == 0 || chunks[0].start+chunks[0].size <= from {
			return nil
		}
		c := chunks[0]
		data, err := f.unpack(id, c)
		if err != nil {
			f.log.Error().Err(err).Str("assignment", id).Int64("offset", c.start).Msg("a stored chunk of log is damaged; a value in it could not be masked")
		} else {
			before := bytes.Clone(data)
			fill(data[max(from-c.start, 0):min(to-c.start, int64(len(data)))])
			if !bytes.Equal(before, data) {
				if _, err := tx.Exec(growChunkSQL, id, c.start, len(data), f.appends.encoder.EncodeAll(data, nil)); err != nil {
					return fmt.Errorf("mask a value in the log of assignment %s: %w", id, err)
				}
			}
		}
		to = c.start
	}
	return nil
}
