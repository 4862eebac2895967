package spool

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A record is: type, length of the source, length of the data, raw end, CRC-32C of all of it but itself, source, data.
const (
	recordHead    = 1 + 1 + 4 + 8 + 4
	recordStart   = 'S' // first of each segment; data is a segmentStart
	recordData    = 'D'
	recordEnd     = 'E' // nothing follows in this stream
	maxRecord     = 64 << 20
	segmentSuffix = ".seg"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segmentStart makes a segment whole without the ones before it.
type segmentStart struct {
	Offset int64    `json:"offset"`
	Raw    []rawEnd `json:"raw,omitempty"` // oldest first
}

// rawEnd is how much of a source's raw output is covered by what was appended.
type rawEnd struct {
	Source string `json:"source"`
	End    int64  `json:"end"`
}

// maxSources is how many sources of a stream are remembered: the newest ones.
const maxSources = 8

type segment struct {
	path       string
	f          *os.File
	start, end int64 // offsets in the stream
	size       int64 // of the file
	synced     int64 // of the file
}

type record struct {
	kind   byte
	source string
	raw    int64
	data   []byte
}

func (r record) encode() ([]byte, error) {
	if len(r.source) > 255 || len(r.data) > maxRecord {
		return nil, fmt.Errorf("a record of %d bytes from a source named with %d is too large", len(r.data), len(r.source))
	}
	b := make([]byte, recordHead, recordHead+len(r.source)+len(r.data))
	b[0], b[1] = r.kind, byte(len(r.source))
	binary.BigEndian.PutUint32(b[2:], uint32(len(r.data)))
	binary.BigEndian.PutUint64(b[6:], uint64(r.raw))
	b = append(append(b, r.source...), r.data...)
	sum := crc32.Update(crc32.Checksum(b[:14], castagnoli), castagnoli, b[recordHead:])
	binary.BigEndian.PutUint32(b[14:], sum)
	return b, nil
}

var errTorn = errors.New("the record is torn")

// readRecord answers errTorn for anything that is not a whole record, and io.EOF at the end.
func readRecord(in io.Reader) (r record, size int64, err error) {
	var head [recordHead]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return record{}, 0, errTorn
		}
		return record{}, 0, err
	}
	n := binary.BigEndian.Uint32(head[2:])
	if n > maxRecord {
		return record{}, 0, errTorn
	}
	body := make([]byte, int(head[1])+int(n))
	if _, err := io.ReadFull(in, body); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return record{}, 0, errTorn
		}
		return record{}, 0, err
	}
	sum := crc32.Update(crc32.Checksum(head[:14], castagnoli), castagnoli, body)
	if sum != binary.BigEndian.Uint32(head[14:]) {
		return record{}, 0, errTorn
	}
	return record{
		kind: head[0], source: string(body[:head[1]]), raw: int64(binary.BigEndian.Uint64(head[6:])), data: body[head[1]:],
	}, int64(recordHead + len(body)), nil
}

func segmentPath(dir string, start int64) string {
	return filepath.Join(dir, fmt.Sprintf("%016x", start)+segmentSuffix)
}

func parseSegment(name string) (start int64, ok bool) {
	hex, found := strings.CutSuffix(name, segmentSuffix)
	start, err := strconv.ParseInt(hex, 16, 64)
	return start, found && err == nil && len(hex) == 16
}

// createSegment makes a segment that begins at start.
func createSegment(dir string, start int64, raw []rawEnd) (*segment, error) {
	data, err := json.Marshal(segmentStart{start, raw})
	if err != nil {
		return nil, err
	}
	b, err := record{kind: recordStart, data: data}.encode()
	if err != nil {
		return nil, err
	}
	g := &segment{path: segmentPath(dir, start), start: start, end: start}
	// A segment of this name can only be one whose first record was torn, or an empty one.
	if g.f, err = os.OpenFile(g.path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := g.write(b); err != nil {
		return nil, errors.Join(err, g.f.Close(), os.Remove(g.path))
	}
	return g, nil
}

// write appends b whole, or leaves the file as it was.
func (g *segment) write(b []byte) error {
	n, err := g.f.WriteAt(b, g.size)
	if err == nil {
		g.size += int64(n)
		return nil
	}
	return errors.Join(err, g.f.Truncate(g.size))
}

// openSegment reads a segment, gives each record to see, and cuts what is torn at its end. ok is false when not even
// its beginning is whole.
func openSegment(path string, start int64, see func(record) error) (g *segment, ok bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, false, err
	}
	g = &segment{path: path, f: f, start: start, end: start}
	in := bufio.NewReaderSize(f, 256<<10)
	for first := true; ; first = false {
		r, n, err := readRecord(in)
		if err == nil && first != (r.kind == recordStart) {
			err = errTorn
		}
		if err == nil {
			err = see(r)
		}
		switch {
		case errors.Is(err, errTorn), errors.Is(err, io.EOF):
			if first {
				return nil, false, f.Close()
			}
			if err := f.Truncate(g.size); err != nil {
				return nil, false, errors.Join(err, f.Close())
			}
			return g, true, nil
		case err != nil:
			return nil, false, errors.Join(err, f.Close())
		}
		g.size += n
		if r.kind == recordData {
			g.end += int64(len(r.data))
		}
	}
}

// reader reads records from a place in the file on.
func (g *segment) reader(pos int64) io.Reader {
	return bufio.NewReaderSize(io.NewSectionReader(g.f, pos, g.size-pos), 64<<10)
}
