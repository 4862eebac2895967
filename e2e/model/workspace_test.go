package model

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// What a file is, in a word: its content's SHA-256 and its mode (plain, for one that was just written), where a link leads, or absent.
const (
	absent = ""
	linked = "-> "
	usual  = "644"
)

func plain(content []byte) string { return moded(content256(content), usual) }

func content256(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func moded(sum, mode string) string { return sum + " " + mode }

// chmod is what a file is after its mode has changed; ok is false for what has none of its own.
func chmod(what, mode string) (now string, ok bool) {
	sum, _, ok := strings.Cut(what, " ")
	if !ok || strings.HasPrefix(what, linked) {
		return what, false
	}
	return moded(sum, mode), true
}

// workspace is what a Workspace has to hold, dependency folders included: for each path what its file may be. More than one thing where an
// operation was cut off: then it is left as it is from there on, since what was cut off may still come.
type workspace map[string]entry

type entry struct {
	may    []string // what it is, in a word
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

// check tells what of a listing, path → what it is, is not as it has to be.
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

func named(what string) string {
	if sum, mode, ok := strings.Cut(what, " "); ok && len(sum) == 64 {
		return sum[:12] + " " + mode
	}
	return cmp.Or(what, "absent")
}

// part begins the names of files that are being written: they are no file of the Workspace yet.
const part = ".part-"

// listed reads what listing prints. What is in one of its two lists of files only came or went meanwhile, and is left out.
func listed(out string) (map[string]string, error) {
	sums, found := map[string]string{}, map[string]string{}
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		switch what, path, ok := strings.Cut(line, "  ./"); {
		case !ok:
			return nil, fmt.Errorf("no line of the listing: %q", line)
		case strings.HasPrefix(what, linked):
			found[path] = what
		case len(what) == 64:
			sums[path] = what
		case sums[path] != "":
			found[path] = moded(sums[path], what)
		}
	}
	return found, nil
}

const listing = `cd /workspace && find . -type f ! -name '` + part + `*' -exec sha256sum {} + && find . -type f ! -name '` + part + `*' -exec stat -c '%a  %n' {} + &&
find . -type l | while IFS= read -r l; do printf '-> %s  %s\n' "$(readlink "$l")" "$l"; done`

func TestAListingIsReadWithModesAndLinks(t *testing.T) {
	t.Parallel()
	a := strings.Repeat("a", 64)
	got, err := listed(a + "  ./x\n" + a + "  ./went\n755  ./x\n644  ./came\n-> /etc/a b  ./d/l\n")
	if want := map[string]string{"x": a + " 755", "d/l": "-> /etc/a b"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v: want %v", got, err, want)
	}
	if _, err := listed("sha256sum: what\n"); err == nil {
		t.Error("a line that is none of the listing's is taken for one")
	}
	w := workspace{}
	w.is("x", a+" 755", false)
	if wrong := w.check(map[string]string{"x": a + " 644"}); len(wrong) != 1 || wrong[0] != "x is aaaaaaaaaaaa 644, and has to be aaaaaaaaaaaa 755" {
		t.Errorf("a lost mode: %q", wrong)
	}
	w.is("x", "-> y", false)
	if wrong := w.check(map[string]string{"x": "-> z"}); len(wrong) != 1 || wrong[0] != "x is -> z, and has to be -> y" {
		t.Errorf("a changed link: %q", wrong)
	}
}

func TestTheModelSeesWhatIsLostChangedAndUnknown(t *testing.T) {
	t.Parallel()
	w := workspace{}
	a, b := moded(strings.Repeat("a", 64), usual), moded(strings.Repeat("b", 64), usual)
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
		{map[string]string{"cut": a}, "kept is absent, and has to be aaaaaaaaaaaa 644"},
		{map[string]string{"kept": b, "cut": a}, "kept is bbbbbbbbbbbb 644, and has to be aaaaaaaaaaaa 644"},
		{map[string]string{"kept": a}, "cut is absent, and has to be aaaaaaaaaaaa 644 or bbbbbbbbbbbb 644"},
		{map[string]string{"kept": a, "cut": a, "gone": a}, "gone is aaaaaaaaaaaa 644, and has to be absent"},
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
