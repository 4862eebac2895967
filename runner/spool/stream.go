package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/claude-hub/claude-hub/runner/redact"
)

// tailBytes of a stream stay on disk although the Hub has them, for Tail.
const tailBytes = 64 << 10

// Stream is the log of an assignment under one fence. Offsets count redacted bytes, as the Hub stores them.
type Stream struct {
	s   *Spool
	key streamKey
	dir string

	mu       sync.Mutex
	segments []*segment // oldest first; the last one is written to
	raw      []rawEnd
	finished bool  // an end record is there
	acked    int64 // the offset the Hub expects next
	endAcked bool
	removed  bool
	refused  bool
	at       cursor

	shipping sync.Mutex // one Next at a time
}

// cursor is where a record begins, so that Next need not read a segment from its start.
type cursor struct {
	g           *segment
	pos, offset int64
}

func openStream(s *Spool, key streamKey, dir string) (*Stream, error) {
	st := &Stream{s: s, key: key, dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries { // sorted by name, and so by offset
		start, ok := parseSegment(e.Name())
		if !ok {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if start < st.end() {
			// It was made after the segment before it lost its end to a power cut and grew again: nothing is known of it.
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		g, whole, err := openSegment(path, start, st.seen)
		if err != nil {
			return nil, err
		}
		if !whole {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		st.segments = append(st.segments, g)
	}
	if len(st.segments) == 0 {
		g, err := createSegment(dir, 0, nil)
		if err != nil {
			return nil, err
		}
		st.segments = []*segment{g}
	}
	st.acked = st.segments[0].start
	return st, nil
}

func (st *Stream) seen(r record) error {
	switch r.kind {
	case recordStart:
		var s segmentStart
		if err := json.Unmarshal(r.data, &s); err != nil {
			return errTorn
		}
		st.raw = s.Raw
	case recordData:
		st.note(r.source, r.raw)
	case recordEnd:
		st.finished = true
	}
	return nil
}

func (st *Stream) note(source string, end int64) {
	st.raw = slices.DeleteFunc(st.raw, func(r rawEnd) bool { return r.Source == source })
	st.raw = append(st.raw, rawEnd{source, end})
	if len(st.raw) > maxSources {
		st.raw = slices.Clone(st.raw[len(st.raw)-maxSources:])
	}
}

func (st *Stream) active() *segment { return st.segments[len(st.segments)-1] }

func (st *Stream) end() int64 {
	if len(st.segments) == 0 {
		return 0
	}
	return st.active().end
}

// Assignment is whose log this is.
func (st *Stream) Assignment() string { return st.key.assignment }

// Fence is the fence the stream is under.
func (st *Stream) Fence() int64 { return st.key.fence }

// End is the offset behind the last byte.
func (st *Stream) End() int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.end()
}

// Writer appends what comes from one source, such as one process. Its methods may be called from many goroutines.
type Writer struct {
	st     *Stream
	source string
}

// Writer answers the Writer of a source. Sources are told apart only for RawEnd; their bytes are one stream. The raw
// ends of the 8 sources that wrote last are remembered.
func (st *Stream) Writer(source string) *Writer { return &Writer{st, source} }

// Append adds text, which covers the source's raw output up to rawEnd. Either both are stored or neither. It doesn't
// wait for the disk: a kill -9 loses nothing, a power cut perhaps what was not sent.
func (w *Writer) Append(text redact.Text, rawEnd int64) error {
	return w.st.append(record{kind: recordData, source: w.source, raw: rawEnd, data: []byte(text.String())})
}

// RawEnd is up to where the source's raw output is covered, 0 for an unknown source: where to read on after a restart.
func (w *Writer) RawEnd() int64 {
	w.st.mu.Lock()
	defer w.st.mu.Unlock()
	for _, r := range w.st.raw {
		if r.Source == w.source {
			return r.End
		}
	}
	return 0
}

// Finish says that nothing follows. Appending after it takes that back.
func (st *Stream) Finish() error {
	st.mu.Lock()
	finished := st.finished
	st.mu.Unlock()
	if finished {
		return nil
	}
	return st.append(record{kind: recordEnd})
}

func (st *Stream) append(r record) error {
	b, err := r.encode()
	if err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.removed {
		return fmt.Errorf("append to the log of assignment %s: it was removed", st.key.assignment)
	}
	if g := st.active(); g.end > g.start && g.size+int64(len(b)) > st.s.o.Segment {
		if err := st.roll(g.end); err != nil {
			return fmt.Errorf("spool the log of assignment %s: %w", st.key.assignment, err)
		}
	}
	g := st.active()
	if err := g.write(b); err != nil {
		return fmt.Errorf("spool the log of assignment %s: %w", st.key.assignment, err)
	}
	switch r.kind {
	case recordData:
		g.end += int64(len(r.data))
		st.note(r.source, r.raw)
		st.finished, st.endAcked = false, false
	case recordEnd:
		st.finished = true
	}
	st.s.changed()
	return nil
}

// roll begins a segment at start.
func (st *Stream) roll(start int64) error {
	g, err := createSegment(st.dir, start, st.raw)
	if err != nil {
		return err
	}
	st.segments = append(st.segments, g)
	if err := st.trim(); err != nil {
		return err
	}
	return st.dropMiddle()
}

// trim deletes segments the Hub has, but for the newest bytes of the stream.
func (st *Stream) trim() error {
	n := 0
	for n < len(st.segments)-1 && st.segments[n].end <= min(st.acked, st.end()-tailBytes) {
		n++
	}
	return st.drop(0, n)
}

// dropMiddle deletes what is neither in the first nor in the last half of the limit.
func (st *Stream) dropMiddle() error {
	waiting := func() (n int64) {
		for _, g := range st.segments {
			if g.end > st.acked {
				n += g.size
			}
		}
		return n
	}
	for limit := st.s.limit.Load(); waiting() > limit; {
		i, head := 0, int64(0)
		for ; i < len(st.segments)-1; i++ {
			if g := st.segments[i]; g.end > st.acked {
				if head += g.size; head > limit/2 {
					break
				}
			}
		}
		if i == 0 || i >= len(st.segments)-1 {
			return nil
		}
		if err := st.drop(i, i+1); err != nil {
			return err
		}
	}
	return nil
}

func (st *Stream) drop(from, to int) error {
	var errs []error
	for _, g := range st.segments[from:to] {
		if st.at.g == g {
			st.at = cursor{}
		}
		errs = append(errs, g.f.Close(), os.Remove(g.path))
	}
	st.segments = slices.Delete(st.segments, from, to)
	return errors.Join(errs...)
}

// Piece is a part of a stream on its way to the Hub.
type Piece struct {
	Offset  int64
	Data    []byte
	Skipped bool // what the Hub lacks before Offset is gone from this disk
	End     bool // nothing follows
}

// Next answers the piece, of at most limit bytes, at the offset the Hub expects. ok is false when the Hub has
// everything. What it answers is on disk, synced. The same piece comes again until Ack.
func (st *Stream) Next(limit int) (p Piece, ok bool, err error) {
	st.shipping.Lock()
	defer st.shipping.Unlock()
	if err := st.sync(); err != nil {
		return Piece{}, false, fmt.Errorf("sync the log of assignment %s: %w", st.key.assignment, err)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.removed || st.refused {
		return Piece{}, false, nil
	}
	p.Offset = st.acked
	nothing := true // behind what the Hub has
	for _, g := range st.segments {
		if g.end <= p.Offset || g.start == g.end {
			continue
		}
		nothing = false
		if g.start > p.Offset+int64(len(p.Data)) {
			if len(p.Data) > 0 {
				break
			}
			p.Offset, p.Skipped = g.start, true
		}
		if p.Data, err = st.read(g, p.Offset+int64(len(p.Data)), p.Data, limit); err != nil {
			return Piece{}, false, fmt.Errorf("read the spooled log of assignment %s: %w", st.key.assignment, err)
		}
		if p.Offset+int64(len(p.Data)) < g.end {
			break // the limit is reached, or the rest came after the sync
		}
	}
	if nothing && p.Offset < st.end() {
		p.Offset, p.Skipped = st.end(), true // all of it was dropped: the Hub is only told where it goes on
	}
	p.End = st.finished && p.Offset+int64(len(p.Data)) == st.end()
	return p, len(p.Data) > 0 || nothing && p.Skipped || p.End && !st.endAcked, nil
}

// sync makes what is written so far durable, without holding up appends.
func (st *Stream) sync() error {
	type todo struct {
		g    *segment
		size int64
	}
	st.mu.Lock()
	var all []todo
	for _, g := range st.segments {
		if g.synced < g.size && !st.removed {
			all = append(all, todo{g, g.size})
		}
	}
	st.mu.Unlock()
	for _, t := range all {
		created := t.g.synced == 0
		err := t.g.f.Sync()
		if err == nil && created {
			err = syncDir(st.dir)
		}
		if errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrNotExist) {
			continue // dropped meanwhile
		}
		if err != nil {
			return err
		}
		st.mu.Lock()
		t.g.synced = t.size
		st.mu.Unlock()
	}
	return nil
}

// read appends to b what g holds from offset on and is synced, until b has limit bytes.
func (st *Stream) read(g *segment, offset int64, b []byte, limit int) ([]byte, error) {
	at := st.at
	if at.g != g || at.offset > offset {
		at = cursor{g, 0, g.start}
	}
	in := g.reader(at.pos)
	for len(b) < limit && at.pos < g.synced {
		r, n, err := readRecord(in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if r.kind == recordData {
			end := at.offset + int64(len(r.data))
			if end > offset {
				part := r.data[offset-at.offset:]
				part = part[:min(len(part), limit-len(b))]
				b = append(b, part...)
				offset += int64(len(part))
				if offset < end {
					break
				}
			}
			at.offset = end
		}
		at.pos += n
	}
	st.at = at
	return b, nil
}

// Ack notes that the Hub expects next, and whether it knows of the end. What it has is trimmed.
func (st *Stream) Ack(next int64, ended bool) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.removed || st.refused {
		return nil
	}
	defer st.s.changed()
	st.acked = next
	if next > st.end() {
		// The Hub has more than this disk: the spool was deleted or is an older copy. What is appended goes on behind it.
		finished := st.finished
		if err := st.roll(next); err != nil {
			return fmt.Errorf("go on with the log of assignment %s at %d: %w", st.key.assignment, next, err)
		}
		if finished {
			b, err := record{kind: recordEnd}.encode()
			if err == nil {
				err = st.active().write(b)
			}
			if err != nil {
				return fmt.Errorf("end the log of assignment %s: %w", st.key.assignment, err)
			}
		}
	}
	st.endAcked = ended && st.finished && next == st.end()
	if err := st.trim(); err != nil {
		return fmt.Errorf("trim the log of assignment %s: %w", st.key.assignment, err)
	}
	return nil
}

// Refuse notes that the Hub will take no more of the stream. Appending still works and keeps only RawEnd and Tail, so
// that what runs needs not know. The next process asks the Hub once more.
func (st *Stream) Refuse() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.removed || st.refused {
		return nil
	}
	st.refused, st.acked = true, math.MaxInt64
	st.s.changed()
	if err := st.trim(); err != nil {
		return fmt.Errorf("trim the log of assignment %s: %w", st.key.assignment, err)
	}
	return nil
}

// Acked is the offset up to which the Hub has the stream, or will never take it.
func (st *Stream) Acked() int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.removed {
		return math.MaxInt64
	}
	return st.acked
}

// Waiting says that Next has something for the Hub.
func (st *Stream) Waiting() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return !st.removed && !st.refused && (st.acked < st.end() || st.finished && !st.endAcked)
}

// Done says that the stream is finished and the Hub has all of it, or refused it.
func (st *Stream) Done() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.finished && (st.refused || st.endAcked)
}

// Tail answers the last lines of the stream from an offset on, at most 64 KiB of them. It was redacted when it was
// appended; a sink that takes a redact.Text has it redacted again.
func (st *Stream) Tail(lines int, from int64) (string, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if lines <= 0 || st.removed {
		return "", nil
	}
	from = max(from, st.end()-tailBytes)
	var b []byte
	for _, g := range st.segments {
		if g.end <= from {
			continue
		}
		part, err := tail(g, from)
		if err != nil {
			return "", fmt.Errorf("read the last lines of assignment %s: %w", st.key.assignment, err)
		}
		b = append(b, part...)
	}
	text := strings.TrimSuffix(string(b), "\n")
	for i := len(text); ; {
		if i = strings.LastIndexByte(text[:i], '\n'); i < 0 {
			return text, nil
		}
		if lines--; lines == 0 {
			return text[i+1:], nil
		}
	}
}

func tail(g *segment, from int64) (b []byte, err error) {
	offset := g.start
	for in := g.reader(0); ; {
		r, _, err := readRecord(in)
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		if r.kind != recordData {
			continue
		}
		if end := offset + int64(len(r.data)); end > from {
			b = append(b, r.data[max(from-offset, 0):]...)
		}
		offset += int64(len(r.data))
	}
}

// Remove deletes the stream, sent or not. Appending to it fails from then on.
func (st *Stream) Remove() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.removed {
		return nil
	}
	st.removed = true
	err := st.closeFiles()
	st.s.forgetStream(st)
	if err := errors.Join(err, os.RemoveAll(st.dir)); err != nil {
		return fmt.Errorf("remove the log of assignment %s: %w", st.key.assignment, err)
	}
	return nil
}

func (st *Stream) close() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.removed {
		return nil
	}
	st.removed = true
	return st.closeFiles()
}

func (st *Stream) closeFiles() error {
	var errs []error
	for _, g := range st.segments {
		errs = append(errs, g.f.Close())
	}
	return errors.Join(errs...)
}
