package fleet

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

const (
	maxAppend    = 4 << 20  // bytes of one AppendLog
	maxOffset    = 1 << 53  // of a stream
	maxChunk     = 1 << 20  // bytes of one stored chunk, before compression
	smallChunk   = 64 << 10 // appends are joined up to here
	batchBytes   = 8 << 20  // of appends in one transaction
	appendWindow = 30 * time.Second
)

// AppendLog stores a piece of the stream q.Id and q.Fence name, once, and answers the offset expected next; what it
// covers is durable. Bytes that are stored already are passed over; a piece beyond the end is not stored unless
// q.Skipped says that the bytes between are gone on the Runner. Appends of several streams share a transaction.
// ErrFenced, ErrUnknown and ErrInvalid are final; after any other error, send it again.
//
// A log longer than the LogLimit keeps the first and the last half of it; readers see the gap.
//
// Sensitive values of the assignment that stand in it are masked before they are stored, with as many bytes: offsets stay. Of one
// that comes in two pieces the first part was stored before; it is masked there then.
func (f *Fleet) AppendLog(ctx context.Context, runner string, q *wire.AppendLogRequest) (*wire.AppendLogResponse, error) {
	f.contacts.touch(runner, f.now())
	if q.GetOffset() < 0 || q.GetOffset() > maxOffset || q.GetFence() < 1 || len(q.GetData()) > maxAppend {
		return nil, fmt.Errorf("%w: a piece of log has an offset and a fence, and at most %d bytes", ErrInvalid, maxAppend)
	}
	if !storable(q.GetId()) {
		return nil, ErrUnknown
	}
	set, err := f.guard.setOf(ctx, runner, q.GetId())
	if err != nil {
		return nil, err
	}
	job := &appendJob{ctx: ctx, runner: runner, q: q, set: set, done: make(chan struct{})}
	job.data, job.hits.n, job.hits.names = hide(set, q.GetData())
	job.pieces = f.appends.cut(job.data, f.o.LogLimit)
	f.appends.add(job)
	select {
	case <-job.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if job.err != nil {
		return nil, job.err
	}
	f.guard.tell(ctx, runner, q.GetId(), "log", job.hits.n+job.across.n, append(job.hits.names, job.across.names...))
	return &wire.AppendLogResponse{Next: job.next}, nil
}

type appendJob struct {
	ctx    context.Context // of the caller: what nobody waits for any more is not written
	runner string
	q      *wire.AppendLogRequest
	set    *redact.Set
	data   []byte  // q.Data, or a masked copy of it
	pieces []piece // of data, compressed before the transaction
	hits   hits    // in q.Data alone
	across hits    // and across where it begins
	next   int64
	err    error
	done   chan struct{}
}

type piece struct{ raw, packed []byte }

// appender gathers appends while a transaction runs, and writes them in the next one.
type appender struct {
	f       *Fleet
	encoder *zstd.Encoder
	decoder *zstd.Decoder
	tails   tails // for who writes a batch

	mu      sync.Mutex
	idle    *sync.Cond
	queue   []*appendJob
	running bool
}

func (p *appender) init(f *Fleet) {
	p.f, p.idle = f, sync.NewCond(&p.mu)
	var err error
	p.encoder, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(maxChunk), zstd.WithLowerEncoderMem(true))
	if err == nil {
		p.decoder, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(4*maxChunk))
	}
	if err != nil {
		panic(fmt.Sprintf("fleet: zstd refuses its options: %v", err)) // constant options
	}
}

// cut makes chunks small enough that head and tail can be told apart in a log of limit bytes.
func (p *appender) cut(data []byte, limit int64) []piece {
	size := int(min(int64(maxChunk), max(limit/8, 1)))
	var pieces []piece
	for len(data) > 0 {
		n := min(len(data), size)
		pieces = append(pieces, piece{raw: data[:n], packed: p.encoder.EncodeAll(data[:n], make([]byte, 0, n/4+64))})
		data = data[n:]
	}
	return pieces
}

func (p *appender) add(job *appendJob) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, job)
	if !p.running {
		p.running = true
		go p.work()
	}
}

// wait returns when nothing is queued.
func (p *appender) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running {
		p.idle.Wait()
	}
}

func (p *appender) work() {
	for {
		p.mu.Lock()
		var batch []*appendJob
		for size := 0; len(p.queue) > 0 && size < batchBytes; p.queue = p.queue[1:] {
			if p.queue[0].ctx.Err() == nil {
				batch = append(batch, p.queue[0])
				size += len(p.queue[0].q.GetData())
			}
		}
		if len(batch) == 0 && len(p.queue) == 0 {
			p.queue, p.running = nil, false
			p.idle.Broadcast()
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if len(batch) == 0 {
			continue
		}
		p.write(batch)
		for _, job := range batch {
			close(job.done)
		}
	}
}

// write stores a batch in one transaction of its own: it belongs to no single caller, so no caller's context ends it.
func (p *appender) write(batch []*appendJob) {
	ctx, cancel := context.WithTimeout(context.Background(), appendWindow)
	defer cancel()
	began := time.Now()
	err := p.f.db.Write(ctx, func(tx *store.Tx) error {
		p.tails.fresh = map[string]tail{}
		for _, job := range batch {
			job.err = nil
			var next int64
			err := guarded(func() (err error) {
				next, err = p.f.appendIn(tx, job)
				return err
			})
			switch {
			case errors.Is(err, ErrFenced), errors.Is(err, ErrUnknown):
				job.err = err
			case err != nil:
				return err
			default:
				job.next = next
			}
		}
		return nil
	})
	switch {
	case err == nil:
		p.tails.commit()
	case len(batch) > 1 && time.Since(began) < time.Second: // one that can't be stored must hold up no other
		for _, job := range batch {
			p.write([]*appendJob{job})
		}
	default:
		for _, job := range batch {
			if job.err == nil {
				job.err = fmt.Errorf("store a piece of log: %w", err)
			}
		}
	}
}

// logRow is where a log stands. Offsets are of the whole log; base is where the newest fence's stream begins in it.
type logRow struct {
	fence, base, next, kept int64
	ended                   bool
}

func (f *Fleet) appendIn(tx *store.Tx, job *appendJob) (next int64, err error) {
	id, q := job.q.GetId(), job.q
	var fence int64
	var l logRow
	var lf, base, end, kept sql.NullInt64
	var ended sql.NullBool
	err = tx.Row(logForAppendSQL, id, job.runner).Scan(&fence, &lf, &base, &end, &kept, &ended)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return 0, ErrUnknown
	case err != nil:
		return 0, fmt.Errorf("read the log of assignment %s: %w", id, err)
	case q.GetFence() != fence:
		return 0, ErrFenced
	}
	l = logRow{lf.Int64, base.Int64, end.Int64, kept.Int64, ended.Bool}
	before, known := l, lf.Valid
	if l.fence < fence {
		// Nothing can be appended under the older fence any more, so its stream's end is where this one begins.
		l = logRow{fence: fence, base: l.next, next: l.next, kept: l.kept}
	}
	pos := l.base + q.GetOffset()
	switch {
	case pos > l.next && !q.GetSkipped():
		return l.next - l.base, nil
	case pos > l.next:
		l.next = pos
	}
	if known := l.next - pos; known >= 0 && known < int64(len(q.GetData())) {
		if err := f.hideAcross(tx, id, l, job, int(known)); err != nil {
			return 0, err
		}
	}
	for _, piece := range job.pieces {
		if err := f.storePiece(tx, id, &l, pos, piece); err != nil {
			return 0, err
		}
		pos += int64(len(piece.raw))
	}
	if l.next > before.next {
		l.ended = false
	}
	if q.GetEnd() && pos == l.next {
		l.ended = true
	}
	if known && l == before {
		return l.next - l.base, nil
	}
	if err := f.dropMiddle(tx, id, &l); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(saveLogSQL, id, l.fence, l.base, l.next, l.kept, l.ended); err != nil {
		return 0, fmt.Errorf("save the log of assignment %s: %w", id, err)
	}
	tx.Wake(LogTopic(id))
	return l.next - l.base, nil
}

// storePiece stores what of a piece at pos is new.
func (f *Fleet) storePiece(tx *store.Tx, id string, l *logRow, pos int64, p piece) error {
	end := pos + int64(len(p.raw))
	if end <= l.next {
		return nil
	}
	if pos < l.next {
		p.raw, p.packed, pos = p.raw[l.next-pos:], nil, l.next
	}
	joined, err := f.join(tx, id, l, pos, p.raw)
	if err != nil {
		return err
	}
	if !joined {
		if p.packed == nil {
			p.packed = f.appends.encoder.EncodeAll(p.raw, nil)
		}
		if _, err := tx.Exec(insertChunkSQL, id, pos, len(p.raw), p.packed); err != nil {
			return fmt.Errorf("store a chunk of log of assignment %s: %w", id, err)
		}
	}
	l.next = end
	l.kept += int64(len(p.raw))
	return nil
}

// join adds a small piece to the last chunk when that is small too, so that a slow log isn't a row for each line.
func (f *Fleet) join(tx *store.Tx, id string, l *logRow, pos int64, raw []byte) (bool, error) {
	limit := min(smallChunk, max(f.o.LogLimit/8, 1))
	if pos == 0 || int64(len(raw)) > limit/2 {
		return false, nil
	}
	var start, size int64
	var packed []byte
	err := tx.Row(lastChunkSQL, id).Scan(&start, &size, &packed)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the last chunk of log of assignment %s: %w", id, err)
	case start+size != pos, size+int64(len(raw)) > limit:
		return false, nil
	}
	whole, err := f.appends.decoder.DecodeAll(packed, make([]byte, 0, limit))
	if err != nil {
		f.log.Error().Err(err).Str("assignment", id).Int64("offset", start).Msg("a stored chunk of log is damaged; the log goes on after it")
		return false, nil
	}
	whole = append(whole, raw...)
	if _, err := tx.Exec(growChunkSQL, id, start, len(whole), f.appends.encoder.EncodeAll(whole, nil)); err != nil {
		return false, fmt.Errorf("store a chunk of log of assignment %s: %w", id, err)
	}
	return true, nil
}

// dropMiddle deletes the oldest chunks behind the head until the limit is kept.
func (f *Fleet) dropMiddle(tx *store.Tx, id string, l *logRow) error {
	head := f.o.LogLimit / 2
	for l.kept > f.o.LogLimit {
		type chunk struct{ start, size int64 }
		chunks, err := store.All(tx, func(scan func(...any) error) (c chunk, err error) { return c, scan(&c.start, &c.size) }, middleSQL, id, head, 256)
		if err != nil {
			return fmt.Errorf("look for the middle of the log of assignment %s: %w", id, err)
		}
		if len(chunks) == 0 {
			return nil
		}
		end := head
		for _, c := range chunks {
			if l.kept <= f.o.LogLimit {
				break
			}
			l.kept -= c.size
			end = c.start + 1
		}
		if _, err := tx.Exec(dropMiddleSQL, id, head, end); err != nil {
			return fmt.Errorf("drop the middle of the log of assignment %s: %w", id, err)
		}
	}
	return nil
}

// LogChunk is bytes of a log that follow each other.
type LogChunk struct {
	Offset int64
	Data   []byte
}

// LogPart is a stretch of a log. Where a chunk's Offset is not the end of what came before it, the bytes between were
// not kept.
type LogPart struct {
	Chunks  []LogChunk
	Next    int64 // where to read on
	End     int64 // of the log so far
	Ended   bool  // nothing follows End
	Dropped int64 // bytes of the whole log that were not kept
}

// ReadLog reads up to max bytes (at least one chunk's rest, if there is any) of an assignment's log from an offset on.
// Offsets run through the streams of all its fences, one after the other. ErrUnknown: there is no such assignment.
func (f *Fleet) ReadLog(ctx context.Context, assignment string, from int64, max int) (part LogPart, err error) {
	err = f.db.Read(ctx, func(tx *store.Tx) error {
		part, err = f.readLog(tx, assignment, from, max)
		return err
	})
	return part, err
}

func (f *Fleet) readLog(tx *store.Tx, assignment string, from int64, limit int) (LogPart, error) {
	var id string
	var end, kept sql.NullInt64
	var ended sql.NullBool
	err := tx.Row(logSQL, assignment).Scan(&id, &end, &kept, &ended)
	if err != nil {
		return LogPart{}, rowError(assignment, err)
	}
	from = max(from, 0)
	part := LogPart{Next: from, End: end.Int64, Ended: ended.Bool, Dropped: end.Int64 - kept.Int64}
	limit = max(limit, 1)
	scan := func(scan func(...any) error) (c storedChunk, err error) { return c, scan(&c.start, &c.size, &c.packed) }
	stored, err := store.All(tx, scan, chunkBeforeSQL, assignment, from)
	if err != nil {
		return LogPart{}, fmt.Errorf("read the log of assignment %s: %w", assignment, err)
	}
	if len(stored) == 1 && stored[0].start+stored[0].size <= from {
		stored = nil
	}
	for left := limit; left > 0; {
		for _, c := range stored {
			if left <= 0 {
				break
			}
			data, err := f.unpack(assignment, c)
			if err != nil {
				return LogPart{}, err
			}
			offset := c.start
			if offset < part.Next {
				data, offset = data[part.Next-offset:], part.Next
			}
			data = data[:min(len(data), left)]
			left -= len(data)
			part.add(offset, data)
		}
		if left <= 0 {
			break
		}
		if stored, err = store.All(tx, scan, chunksFromSQL, assignment, part.Next, 8); err != nil {
			return LogPart{}, fmt.Errorf("read the log of assignment %s: %w", assignment, err)
		}
		if len(stored) == 0 {
			part.Next = max(part.End, from)
			break
		}
	}
	return part, nil
}

func (p *LogPart) add(offset int64, data []byte) {
	if n := len(p.Chunks); n > 0 && p.Chunks[n-1].Offset+int64(len(p.Chunks[n-1].Data)) == offset {
		p.Chunks[n-1].Data = append(p.Chunks[n-1].Data, data...)
	} else {
		p.Chunks = append(p.Chunks, LogChunk{offset, data})
	}
	p.Next = offset + int64(len(data))
}

type storedChunk struct {
	start, size int64
	packed      []byte
}

func (f *Fleet) unpack(assignment string, c storedChunk) ([]byte, error) {
	data, err := f.appends.decoder.DecodeAll(c.packed, make([]byte, 0, c.size))
	if err != nil {
		return nil, fmt.Errorf("the stored log of assignment %s is damaged at byte %d: %w", assignment, c.start, err)
	}
	return data, nil
}

// WaitLog returns nil when the log reaches beyond from, or has ended; else ctx's error when that ends first.
func (f *Fleet) WaitLog(ctx context.Context, assignment string, from int64) error {
	for {
		changed := f.db.Changed(LogTopic(assignment))
		var end sql.NullInt64
		var ended sql.NullBool
		err := f.db.Read(ctx, func(tx *store.Tx) error {
			var id string
			var kept sql.NullInt64
			return tx.Row(logSQL, assignment).Scan(&id, &end, &kept, &ended)
		})
		if err != nil {
			return rowError(assignment, err)
		}
		if end.Int64 > from || ended.Bool {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
