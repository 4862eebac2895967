package web

import (
	"maps"
	"slices"
	"testing"
)

func TestWhatOnlyTheOtherChangedOfAVariableIsTakenOver(t *testing.T) {
	t.Parallel()
	form := func(kind, value, link, build, note string) map[string]string {
		return map[string]string{"name": "A", "kind": kind, "value": value, "link": link, "build": build, "note": note}
	}
	const what, note, build = "Kind and value", "Note", "Available at build"
	for name, c := range map[string]struct {
		was, theirs, mine map[string]string
		typed             typedVariable // but for its form
		conflicts, taken  []string
		want              map[string]string
		again             bool
	}{
		"their note, my value": {
			was: form("plain", "a", "", "", "n"), theirs: form("plain", "a", "", "", "n2"), mine: form("plain", "b", "", "", "n"), typed: typedVariable{given: true},
			taken: []string{note}, want: form("plain", "b", "", "", "n2"),
		},
		"their value, my note": {
			was: form("plain", "a", "", "", "n"), theirs: form("plain", "b\r\n", "", "", "n"), mine: form("plain", "a", "", "", "n2"), typed: typedVariable{given: true},
			taken: []string{what}, want: form("plain", "b\r\n", "", "", "n2"),
		},
		"both values": {
			was: form("plain", "a", "", "", ""), theirs: form("plain", "b", "", "", ""), mine: form("plain", "c", "", "", ""), typed: typedVariable{given: true},
			conflicts: []string{what}, want: form("plain", "c", "", "", ""),
		},
		"they made it Sensitive and available, my note": {
			was: form("plain", "a", "", "", ""), theirs: form("sensitive", "", "", "on", ""), mine: form("plain", "a", "", "", "n"), typed: typedVariable{given: true},
			taken: []string{what, build}, want: form("sensitive", "", "", "on", "n"),
		},
		"they made it Sensitive, my Plain value": {
			was: form("plain", "a", "", "", ""), theirs: form("sensitive", "", "", "", ""), mine: form("plain", "a-secret-12345", "", "", ""), typed: typedVariable{given: true},
			conflicts: []string{what}, taken: []string{"Kind"}, want: form("sensitive", "", "", "", ""), again: true,
		},
		"they made it Plain, my Sensitive value": {
			was: form("sensitive", "", "", "", ""), theirs: form("plain", "a", "", "", ""), mine: form("sensitive", "a-secret-12345", "", "", ""), typed: typedVariable{given: true},
			conflicts: []string{what}, want: form("sensitive", "", "", "", ""), again: true,
		},
		"they made it Plain, my tick": {
			was: form("sensitive", "", "", "", ""), theirs: form("plain", "a", "", "", ""), mine: form("sensitive", "", "", "on", ""),
			taken: []string{what}, want: form("plain", "a", "", "on", ""),
		},
		"their tick, my Sensitive value": {
			was: form("sensitive", "", "", "", ""), theirs: form("sensitive", "", "", "on", ""), mine: form("sensitive", "a-secret-12345", "", "", ""), typed: typedVariable{given: true},
			conflicts: []string{what}, taken: []string{build}, want: form("sensitive", "", "", "on", ""), again: true,
		},
		"their tick, my note": {
			was: form("sensitive", "", "", "", ""), theirs: form("sensitive", "", "", "on", ""), mine: form("sensitive", "", "", "", "n"),
			taken: []string{build}, want: form("sensitive", "", "", "on", "n"),
		},
		"their link, my tick": {
			was: form("link", "", "X", "", ""), theirs: form("link", "", "Y", "", ""), mine: form("link", "", "X", "on", ""),
			taken: []string{what}, want: form("link", "", "Y", "on", ""),
		},
		"their link, my link": {
			was: form("link", "", "X", "", ""), theirs: form("link", "", "Y", "", ""), mine: form("link", "", "Z", "", ""),
			conflicts: []string{what}, want: form("link", "", "Z", "", ""),
		},
		"their value, a file of mine": {
			was: form("plain", "a", "", "", ""), theirs: form("plain", "b", "", "", ""), mine: form("plain", "", "", "", ""), typed: typedVariable{given: true, isFile: true},
			conflicts: []string{what}, want: form("plain", "", "", "", ""), again: true,
		},
		"their note, a value of mine still to be given again": {
			was: form("sensitive", "", "", "", ""), theirs: form("sensitive", "", "", "", "n"), mine: form("sensitive", "", "", "", ""), typed: typedVariable{again: true},
			conflicts: []string{what}, taken: []string{note}, want: form("sensitive", "", "", "", "n"), again: true,
		},
		"nobody knows what both began with": {
			theirs: form("sensitive", "", "", "on", "n"), mine: form("sensitive", "", "", "", "n2"),
			conflicts: []string{note, build}, want: form("sensitive", "", "", "", "n2"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			typed := c.typed
			typed.form = c.mine
			before := maps.Clone(c.theirs)
			conflicts, taken, again := typed.merge(c.theirs, c.was)
			labels := []string{}
			for _, f := range conflicts {
				labels = append(labels, f.Label)
				for _, said := range []string{f.Base, f.Theirs, f.Yours} {
					if said == "Plain: a-secret-12345" {
						t.Errorf("%s shows what is to be Sensitive", f.Label)
					}
				}
			}
			for _, f := range taken {
				labels = append(labels, f.Label)
			}
			want := append(append([]string{}, c.conflicts...), c.taken...)
			if len(conflicts) != len(c.conflicts) || !slices.Equal(labels, want) {
				t.Errorf("conflicts %+v, taken over %+v, want %v and %v", conflicts, taken, c.conflicts, c.taken)
			}
			if !maps.Equal(typed.form, c.want) || again != c.again {
				t.Errorf("the form says %v, to be given again %t; want %v, %t", typed.form, again, c.want, c.again)
			}
			if !maps.Equal(c.theirs, before) {
				t.Errorf("what is saved is changed: %v", c.theirs)
			}
		})
	}
}
