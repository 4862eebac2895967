package envspec

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestCompareTellsEachKindOfDifference(t *testing.T) {
	t.Parallel()
	old := Spec{Image: "node:22", Bootstrap: "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n", Start: "x", CPU: 2, Variables: []Variable{
		{Name: "GONE", Value: "hunter2"}, {Name: "KEPT", Value: "hunter2"}, {Name: "LINKED", Sensitive: true, ValueID: "1"}, {Name: "NPM_TOKEN", Sensitive: true, Build: true, ValueID: "2"}}}
	new := Spec{Image: "node:24", Bootstrap: "a\nB\nc\nd\ne\nf\ng\nh\ni\nj\nk\n", StartFile: "s.sh", Docker: true, Folders: &[]Folder{}, Variables: []Variable{
		{Name: "KEPT", Value: "hunter2"}, {Name: "LINKED", Link: "SHARED"}, {Name: "NEW", Value: "hunter3"}, {Name: "NPM_TOKEN", Sensitive: true, ValueID: "3", Note: "npm"}}}
	d := Compare(old, new)
	want := `image: node:22 → node:24
start.file: none → s.sh
docker: off → on
cpu: 2 → what the Runner gives
dependency-folders: the defaults → none
variables.GONE: is removed
variables.LINKED: link now → shared/SHARED
variables.NEW: is added (Plain)
variables.NPM_TOKEN: value changes (hidden), is no longer available at build, note changes
--- bootstrap
+++ bootstrap
@@ -1,5 +1,5 @@
 a
-b
+B
 c
 d
 e
@@ -8,3 +8,4 @@
 h
 i
 j
+k
--- start
+++ start
@@ -1 +0,0 @@
-x
\ No newline at end of file
`
	if d.String() != want || d.Empty() {
		t.Errorf("got\n%s\nwant\n%s", d, want)
	}
	b, err := json.Marshal(d)
	if err != nil || strings.Contains(string(b), "hunter") {
		t.Errorf("a value is told: %s, %v", b, err)
	}
	npm := d.Variables[3]
	if want := (VariableDiff{Name: "NPM_TOKEN", Op: "changed", Old: &VariableState{Kind: "sensitive", Build: true}, New: &VariableState{Kind: "sensitive", Note: "npm"}, ValueChanges: true,
		Affects: Build, Words: "value changes (hidden), is no longer available at build, note changes"}); !reflect.DeepEqual(npm, want) {
		t.Errorf("got %+v", npm)
	}
	if linked := d.Variables[1]; linked.ValueChanges || linked.New.Link != "SHARED" || linked.New.Kind != "link" {
		t.Errorf("got %+v", linked)
	}
	if s := d.Scripts[0]; s.Added != 2 || s.Removed != 1 || s.Affects != Build || s.Hunks[0].Lines[1] != (Line{Op: "-", Old: 2, Text: "b"}) || s.Hunks[0].Lines[2] != (Line{Op: "+", New: 2, Text: "B"}) {
		t.Errorf("got %+v", s)
	}
}

func TestCompareSeesWhatExplainSees(t *testing.T) {
	t.Parallel()
	for _, old := range []Spec{{}, full, everything, Default()} {
		for _, new := range []Spec{full, everything, Default()} {
			d := Compare(old, new)
			if got, want := len(d.Fields)+len(d.Scripts)+len(d.Variables), len(Explain(old, new)); got != want || d.Empty() != (want == 0) {
				t.Errorf("%+v to %+v: %d differences, %d explained", old, new, got, want)
			}
			b, err := json.Marshal(d)
			if err != nil || strings.Contains(string(b), "null") {
				t.Errorf("as JSON: %s, %v", b, err)
			}
		}
	}
	if d := Compare(Spec{}, full); d.Fields[0].Old != "" || d.Fields[0].New != "node:22" || d.String()[:14] != "image: node:22" {
		t.Errorf("a first Environment: %s", d)
	}
}

// A difference is right when patch makes the one text from the other, and short when no shorter one is there.
func TestLinesThatDifferAreThoseThatPatchTakes(t *testing.T) {
	t.Parallel()
	tool, err := exec.LookPath("git")
	if err != nil {
		t.Fatal("this test needs git: apt-get install git")
	}
	random := rand.New(rand.NewPCG(5, 6))
	text := func() string {
		var b strings.Builder
		for range random.IntN(30) {
			fmt.Fprintf(&b, "%c\n", 'a'+random.IntN(4))
		}
		v := b.String()
		if random.IntN(4) == 0 {
			v = strings.TrimSuffix(v, "\n")
		}
		return v
	}
	var patches strings.Builder
	dir := t.TempDir()
	want := map[string]string{}
	for i := range 300 {
		a, b := text(), text()
		if a == "" || b == "" || a == b {
			continue
		}
		hunks, added, removed := diffLines(a, b)
		if shortest := fewest(splitLines(a), splitLines(b)); added+removed != shortest {
			t.Fatalf("%q to %q: %d added, %d removed, and %d edits are enough", a, b, added, removed, shortest)
		}
		name := fmt.Sprint("f", i)
		write(t, filepath.Join(dir, name), a)
		want[name] = b
		fmt.Fprintf(&patches, "diff --git a/%[1]s b/%[1]s\n", name)
		patches.WriteString(strings.ReplaceAll(ScriptDiff{Field: name, Hunks: hunks}.Unified(), "--- f", "--- a/f"))
	}
	c := exec.Command(tool, "apply", "-p1", "--unidiff-zero", "-")
	c.Dir = dir
	c.Env = []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir), "HOME=" + dir}
	c.Stdin = strings.NewReader(strings.ReplaceAll(patches.String(), "+++ f", "+++ b/f"))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, b := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != b {
			t.Fatalf("%s became %q, want %q: %v", name, got, b, err)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// fewest is the number of edits by the longest common subsequence, in the plain quadratic way.
func fewest(a, b []string) int {
	row := make([]int, len(b)+1)
	for i := range a {
		diagonal := 0
		for j := range b {
			above := row[j+1]
			if a[i] == b[j] {
				row[j+1] = diagonal + 1
			} else {
				row[j+1] = max(above, row[j])
			}
			diagonal = above
		}
	}
	return len(a) + len(b) - 2*row[len(b)]
}

func TestLongScriptsAreComparedSoon(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("a\nb\nc\n", MaxScript/6), strings.Repeat("c\nb\na\n", MaxScript/6)
	begin := time.Now()
	hunks, added, removed := diffLines(a, b)
	if len(hunks) == 0 || added != removed || added == 0 {
		t.Errorf("%d hunks, %d added, %d removed", len(hunks), added, removed)
	}
	// A hang is what this is for: the limit is far above what a busy machine needs.
	if d := time.Since(begin); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
	many := strings.Repeat("x\n1\n2\n3\n4\n5\n6\n7\n", 8000)
	other := strings.Replace(strings.ReplaceAll(many, "x", "y"), "y", "z", 100)
	begin = time.Now()
	diffLines(many, other)
	if d := time.Since(begin); d > 20*time.Second {
		t.Errorf("many hunks took %v", d)
	}
}
