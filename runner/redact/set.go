package redact

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
)

const (
	// MinLength is the length from which a value can be redacted, counted without white space and control bytes.
	// A shorter one would be found in ordinary output, and hiding it would say more than showing it.
	MinLength = 8
	// MinLine is the length, counted likewise, from which one line of a value is redacted on its own.
	MinLine = 12

	// window is what the filter looks at: the first bytes of a needle.
	window     = 6
	windowMask = 1<<(8*window) - 1
	// A longer needle is cut into pieces of pieceLength, one starting every pieceStep: what a stream remembers stays
	// small, and a part of a long value is hidden too. That pieces overlap makes one mask of a whole value.
	pieceLength = 256
	pieceStep   = 192

	// maxStride is how many windows are passed over at most for one that is looked at: as many as the shortest shape allows.
	maxStride = 5
	// filterBits is how many bits the filter has for each place of the table.
	filterBits = 64
)

// ErrShort is what [Check] and [Set.Add] say of a value below [MinLength].
var ErrShort = errors.New("the value is too short to be kept out of logs: " +
	"a Sensitive value needs at least 8 characters, not counting spaces and line breaks")

// Check says whether a value can be redacted. It is asked before a Sensitive value is saved.
func Check(value []byte) error {
	if c, _ := canonical(value); len(c) < MinLength {
		return ErrShort
	}
	return nil
}

// needle is one form, or a piece of one, as text only.
type needle struct {
	b     []byte
	name  string
	shape *shape // what follows b when this is no value but the beginning of a shape
	next  int32  // index of the next needle with the same window; -1: none
}

// Set is the values to keep out. The zero Set is ready to use: it knows no value, only the shapes of GitHub tokens and
// private keys. Its methods may be called from many goroutines, and values may be added while streams run. A value is
// never taken out again: one that was replaced is still in the processes that got it, so a Set lives as long as the
// assignment it belongs to.
//
// A value takes memory for all its forms: about 20 times its length when it is letters and digits, 130 times when it is
// mostly punctuation, and up to 500 times when it is not text. So who saves values bounds their number and size.
type Set struct {
	mu      sync.RWMutex
	needles []needle
	values  map[[sha256.Size]byte]struct{}

	// filter is a set of hashes of windows, one bit each: of the first window of each needle and of the next ones, up to
	// maxStride. So one window in stride of them tells whether a needle may begin there or just before. keys and heads are
	// an open hash table from a window to the first needle that begins with it.
	filter []uint64
	shift  uint8
	stride int
	keys   []uint64
	heads  []int32
	used   int
	// begins holds what may come before a whole window was seen: all beginnings of needles shorter than a window.
	// edges is a set of hashes that says most of what is not in it, first and two are the same as begins for one byte and two.
	begins map[uint64]beginnings
	edges  []uint64
	first  [256]beginnings
	two    []beginnings
}

// Add makes the Set know a value under the name of its Variable, in all forms. Output that was written before, but is
// still held back by a Writer, is looked at again. So a value is added first and handed to a process afterwards.
//
// It returns [ErrShort], and adds nothing, for a value that [Check] refuses. Adding a value again costs next to nothing.
func (s *Set) Add(name string, value []byte) error {
	if err := Check(value); err != nil {
		return err
	}
	sum := sha256.Sum256(value)
	s.mu.RLock()
	_, known := s.values[sum]
	s.mu.RUnlock()
	if known {
		return nil
	}
	all := forms(value)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.init()
	s.values[sum] = struct{}{}
	for _, f := range all {
		plain, stripped := canonical(f)
		s.insert(name, plain)
		s.insert(name, stripped)
	}
	return nil
}

// Len is the number of different values added.
func (s *Set) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.values)
}

func (s *Set) init() {
	if s.filter != nil {
		return
	}
	s.begins = make(map[uint64]beginnings)
	s.values = make(map[[sha256.Size]byte]struct{})
	s.edges = make([]uint64, 64)
	s.two = make([]beginnings, 1<<16)
	s.stride = maxStride
	s.resize(1 << 10)
	for i := range shapes {
		s.put(needle{b: []byte(shapes[i].prefix), name: shapes[i].name, shape: &shapes[i]})
	}
}

func (s *Set) insert(name string, b []byte) {
	if len(b) <= window {
		return
	}
	for len(b) > pieceLength {
		s.put(needle{b: slices.Clone(b[:pieceLength]), name: name})
		if rest := b[pieceStep:]; len(rest) >= pieceLength {
			b = rest
		} else {
			b = b[len(b)-pieceLength:]
		}
	}
	s.put(needle{b: slices.Clone(b), name: name})
}

func (s *Set) put(n needle) {
	var buf [8]byte
	copy(buf[:], n.b[:min(window, len(n.b))])
	key := binary.LittleEndian.Uint64(buf[:])
	if len(n.b) >= window {
		if (s.used+1)*2 > len(s.keys) {
			s.resize(len(s.keys) * 2)
		}
		slot := s.slot(key)
		n.next = -1
		if s.heads[slot] >= 0 {
			for i := s.heads[slot]; i >= 0; i = s.needles[i].next {
				if s.needles[i].shape == nil && n.shape == nil && bytes.Equal(s.needles[i].b, n.b) {
					return
				}
			}
			n.next = s.heads[slot]
		} else {
			s.keys[slot] = key
			s.used++
		}
		s.heads[slot] = int32(len(s.needles))
		s.markAll(&n)
		s.stride = min(s.stride, len(n.b)-window+1)
	}
	s.needles = append(s.needles, n)
	may := loose
	if n.shape != nil {
		may = tight
	}
	s.first[n.b[0]] |= may
	if len(n.b) > 1 {
		s.two[uint16(key)] |= may
	}
	for l := 3; l < window && l <= len(n.b); l++ {
		b := beginning(key, l)
		s.begins[b] |= may
		s.markEdge(b)
	}
	if len(s.begins)*16 > len(s.edges)*64 {
		s.edges = make([]uint64, 2*len(s.edges))
		for b := range s.begins {
			s.markEdge(b)
		}
	}
}

// beginning is the key in begins for the first l bytes of a window.
func beginning(key uint64, l int) uint64 {
	return key&(1<<(8*l)-1) | uint64(l)<<56
}

// resize makes the table that large, with the filter to it: with the table at most half full, a window of ordinary output
// passes the filter once in 26 at the most.
func (s *Set) resize(table int) {
	keys, heads := s.keys, s.heads
	s.keys, s.heads = make([]uint64, table), make([]int32, table)
	for i := range s.heads {
		s.heads[i] = -1
	}
	s.filter = make([]uint64, table*filterBits/64)
	s.shift = 64
	for bits := table * filterBits; bits > 1; bits /= 2 {
		s.shift--
	}
	for i, k := range keys {
		if heads[i] >= 0 {
			slot := s.slot(k)
			s.keys[slot], s.heads[slot] = k, heads[i]
		}
	}
	for i := range s.needles {
		s.markAll(&s.needles[i])
	}
}

// markAll puts a needle's windows into the filter. It has none when it is shorter.
func (s *Set) markAll(n *needle) {
	for i := 0; i < maxStride && i+window <= len(n.b); i++ {
		var buf [8]byte
		copy(buf[:], n.b[i:i+window])
		s.mark(binary.LittleEndian.Uint64(buf[:]))
	}
}

// may reports, wrongly at times, that a needle begins with the window, or goes on with it after its first bytes.
func (s *Set) may(key uint64) bool {
	h := hash(key) >> (s.shift & 63)
	return s.filter[h/64]>>(h%64)&1 != 0
}

// reach is how many bytes from the beginning of a needle on decide whether it is looked for: a window, and what may be passed
// over before the next one that is looked at, which tells of it.
func (s *Set) reach() int { return window + max(s.stride, 2) - 2 }

// hash spreads a window over 64 bits; the upper ones are the good ones.
func hash(key uint64) uint64 { return key * spread }

const spread = 0x9E3779B97F4A7C15

func (s *Set) mark(key uint64) {
	h := hash(key) >> s.shift
	s.filter[h/64] |= 1 << (h % 64)
}

func (s *Set) markEdge(b uint64) {
	h := b * spread >> 32 & uint64(len(s.edges)*64-1)
	s.edges[h/64] |= 1 << (h % 64)
}

// slot is the place of a window in the table, or the free one where it belongs.
func (s *Set) slot(key uint64) int {
	mask := len(s.keys) - 1
	i := int(hash(key)>>(s.shift&63)/filterBits) & mask
	for s.heads[i] >= 0 && s.keys[i] != key {
		i = (i + 1) & mask
	}
	return i
}

// head is the first needle that begins with the window, or -1.
func (s *Set) head(key uint64) int32 { return s.heads[s.slot(key)] }

// beginnings says of what a few bytes may be the beginning.
type beginnings uint8

const (
	loose beginnings = 1 << iota // of a value: white space in it does not matter
	tight                        // of a shape, which has no white space at its beginning
)

// mayBegin is false for most of what begin has no answer for, and for nothing else. l is above 2.
func (s *Set) mayBegin(key uint64, l int) bool {
	h := beginning(key, l) * spread >> 32 & uint64(len(s.edges)*64-1)
	return s.edges[h/64]>>(h%64)&1 != 0 || uint32(key)&0xff00ffff == tokenBits
}

// begin says what the first l bytes of a window, fewer than all, may become.
func (s *Set) begin(key uint64, l int) (may beginnings) {
	switch l {
	case 1:
		return s.first[byte(key)]
	case 2:
		return s.two[uint16(key)]
	}
	b := beginning(key, l)
	h := b * spread >> 32 & uint64(len(s.edges)*64-1)
	if s.edges[h/64]>>(h%64)&1 != 0 {
		may = s.begins[b]
	}
	if l > len(tokenPrefix) && uint32(key)&0xff00ffff == tokenBits && isToken(uint32(key)) {
		may |= tight
	}
	return may
}
