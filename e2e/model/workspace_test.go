package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// absent is what a file may be in place of a SHA-256.
const absent = ""

// workspace is what a Workspace has to hold, dependency folders included: for each path what its file may be. More than one thing where an
// operation was cut off: then it is left as it is from there on, since what was cut off may still come.
type workspace map[string]entry

type entry struct {
	may    []string // SHA-256 of the content, or absent
	frozen bool
}

// is says that a file is this now. disturbed: asking for it was cut off before, and what was cut off may come a second time.
func (w workspace) is(path, sum string, disturbed bool) {
	w[path] = entry{[]string{sum}, w[path].frozen || disturbed}
}

// maybe says that a file is this, or what it was.
func (w workspace) maybe(path, sum string) {
	was := []string{absent}
	if e, ok := w[path]; ok {
		was = e.may
	}
	w[path] = entry{append(slices.Clone(was), sum), true}
}

// loose lists the files that operations may change, sorted, those below a folder only.
func (w workspace) loose(below string) []string {
	var all []string
	for path, e := range w {
		if !e.frozen && e.may[0] != absent && strings.HasPrefix(path, below) {
			all = append(all, path)
		}
	}
	slices.Sort(all)
	return all
}

// check tells what of a listing, path → SHA-256, is not as it has to be.
func (w workspace) check(found map[string]string) (wrong []string) {
	for _, path := range slices.Sorted(maps.Keys(w)) {
		may, sum := w[path].may, found[path]
		if slices.Contains(may, sum) {
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%s is %s, and has to be %s", path, named(sum), strings.Join(names(may), " or ")))
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		if _, known := w[path]; !known {
			wrong = append(wrong, fmt.Sprintf("%s is there, and nobody wrote it", path))
		}
	}
	return wrong
}

func names(sums []string) []string {
	out := make([]string, 0, len(sums))
	for _, s := range sums {
		out = append(out, named(s))
	}
	return out
}

func named(sum string) string { return cmp.Or(sum[:min(len(sum), 12)], "absent") }

// part begins the names of files that are being written: they are no file of the Workspace yet.
const part = ".part-"

// listed reads what listing prints.
func listed(out string) (map[string]string, error) {
	found := map[string]string{}
	for line := range strings.Lines(out) {
		sum, path, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ./")
		if !ok || len(sum) != 64 {
			return nil, fmt.Errorf("no line of sha256sum: %q", line)
		}
		found[path] = sum
	}
	return found, nil
}

const listing = `cd /workspace && find . -type f ! -name '` + part + `*' -exec sha256sum {} +`

func TestTheModelSeesWhatIsLostChangedAndUnknown(t *testing.T) {
	t.Parallel()
	w := workspace{}
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	w.is("kept", a, false)
	w.is("gone", absent, false)
	w.is("cut", a, false)
	w.maybe("cut", b)
	w.maybe("new", b)
	for _, fits := range []map[string]string{{"kept": a, "cut": a}, {"kept": a, "cut": b, "new": b}} {
		if wrong := w.check(fits); len(wrong) > 0 {
			t.Errorf("%v is wrong: %q", fits, wrong)
		}
	}
	for _, c := range []struct {
		found map[string]string
		says  string
	}{
		{map[string]string{"cut": a}, "kept is absent, and has to be aaaaaaaaaaaa"},
		{map[string]string{"kept": b, "cut": a}, "kept is bbbbbbbbbbbb, and has to be aaaaaaaaaaaa"},
		{map[string]string{"kept": a}, "cut is absent, and has to be aaaaaaaaaaaa or bbbbbbbbbbbb"},
		{map[string]string{"kept": a, "cut": a, "gone": a}, "gone is aaaaaaaaaaaa, and has to be absent"},
		{map[string]string{"kept": a, "cut": a, "more": a}, "more is there, and nobody wrote it"},
	} {
		if wrong := w.check(c.found); len(wrong) != 1 || wrong[0] != c.says {
			t.Errorf("%v: want %q, got %q", c.found, c.says, wrong)
		}
	}
	if got := w.loose(""); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("may be changed: %q", got)
	}
}
