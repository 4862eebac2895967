package canary

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"sort"
	"strings"
	"sync"

	"github.com/claude-hub/claude-hub/e2e/canary/forms"
)

// hit is where the value was found, once for each form, channel and place.
type hit struct{ form, channel, place string }

func (h hit) String() string {
	return fmt.Sprintf("form %s, channel %s, place %s", h.form, h.channel, h.place)
}

// needle is some bytes that must be nowhere.
type needle struct {
	form string
	b    []byte
}

// search looks for one value in everything it is shown, and notes of which channels the marks came by. Its methods may be called from
// many goroutines.
type search struct {
	needles []needle

	mu     sync.Mutex
	places map[string]bool
	hits   map[hit]string // with a few bytes around the first occurrence
	marks  map[string]map[string]bool
}

// newSearch looks for value in all forms; for each of its lines, which must be unmistakable, in the codes that programs write it in; and for
// the random part of each line, so that a piece of the value is found too.
func newSearch(value string, tags []string) *search {
	s := &search{places: map[string]bool{}, hits: map[hit]string{}, marks: map[string]map[string]bool{}}
	add := func(form, b string) {
		s.needles = append(s.needles, needle{form, []byte(b)})
		if c := squeezed([]byte(b)); string(c) != b {
			s.needles = append(s.needles, needle{form, c})
		}
	}
	for _, f := range forms.Table {
		for _, p := range f.Print(value) {
			add(f.Name, p.Secret())
		}
	}
	for i, tag := range tags {
		form := fmt.Sprintf("random part %d", i+1)
		add(form, tag)
		add(form, hex.EncodeToString([]byte(tag)))
		add(form, strings.ToUpper(hex.EncodeToString([]byte(tag))))
		for before := range 3 {
			enc := base64.StdEncoding.EncodeToString([]byte("::"[:before] + tag))
			add(form, enc[(before*8+5)/6:(before+len(tag))*8/6])
		}
	}
	return s
}

var (
	escapes = regexp.MustCompile("\x1b(\\[[0-9;?]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)|[()][A-Za-z0-9]|[@-Z\\\\^_=>])")
	mark    = regexp.MustCompile(`<<canary:([a-z0-9-]+):([a-z0-9-]+)>>`)
)

// squeezed is b without escape sequences, white space and control bytes.
func squeezed(b []byte) []byte {
	b = escapes.ReplaceAll(b, nil)
	out := make([]byte, 0, len(b))
	for _, c := range b {
		if c > ' ' && c != 0x7f {
			out = append(out, c)
		}
	}
	return out
}

// look searches b, which is of a place. That a place was looked at counts also when there is nothing in it.
func (s *search) look(place string, b []byte) {
	s.mu.Lock()
	s.places[place] = true
	s.mu.Unlock()
	if len(b) == 0 {
		return
	}
	for _, m := range mark.FindAllSubmatch(b, -1) {
		s.marked(string(m[1]), string(m[2]))
	}
	for _, view := range [][]byte{b, squeezed(b)} {
		for _, n := range s.needles {
			for at := 0; ; {
				i := bytes.Index(view[at:], n.b)
				if i < 0 {
					break
				}
				at += i
				s.found(place, n, view, at)
				at += len(n.b)
			}
		}
	}
}

func (s *search) marked(channel, form string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marks[channel] == nil {
		s.marks[channel] = map[string]bool{}
	}
	s.marks[channel][form] = true
}

func (s *search) found(place string, n needle, view []byte, at int) {
	h := hit{n.form, "-", place}
	before := view[max(0, at-4096):at]
	if all := mark.FindAllSubmatch(before, -1); len(all) > 0 {
		last := all[len(all)-1]
		h.channel, h.form = string(last[1]), string(last[2])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.hits[h]; !known {
		s.hits[h] = fmt.Sprintf("%q", view[max(0, at-80):min(len(view), at+len(n.b)+20)])
	}
}

// all is every hit, in order.
func (s *search) all() (all []hit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.hits {
		all = append(all, h)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].String() < all[j].String() })
	return all
}

// around is what was around a hit.
func (s *search) around(h hit) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hits[h]
}

// formsOf are those of a channel that were found anywhere, and formsMarked those whose mark was.
func (s *search) formsOf(channel string) (found, marked map[string]bool) {
	found = map[string]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.hits {
		if h.channel == channel {
			found[h.form] = true
		}
	}
	return found, s.marks[channel]
}

// has says whether anything was found in a place.
func (s *search) has(place string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.hits {
		if h.place == place {
			return true
		}
	}
	return false
}
