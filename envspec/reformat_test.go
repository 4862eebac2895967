package envspec

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReformatWritesTheCanonicalDocument(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                         "",
		"---\n":                    "",
		"{}\n":                     "",
		"# only this\n":            "# only this\n",
		"\n\n# a\n\n\n# b\n\n":     "# a\n\n# b\n",
		"~ # nothing\n":            "# nothing\n",
		"image: node:22":           "image: node:22\n",
		"image: 'node:22'\r\n":     "image: node:22\n",
		"\ufeffcpu: 2.50\n":        "cpu: 2.5\n",
		"memory: 4096MiB\n":        "memory: 4GiB\n",
		"start: npm ci\n":          "start: |-\n  npm ci\n",
		"start: \"\"\n":            "start: \"\"\n",
		"{cpu: 1, image: \"a/b\"}": "image: a/b\ncpu: 1\n",
		"# top\n\n# the CPUs\ncpu: 2 # two\n# the image\nimage: a/b   # why  \n\n\n# end\n": "# top\n\n# the image\nimage: a/b # why\n# the CPUs\ncpu: 2 # two\n\n# end\n",
		"# about image\nimage: a/b\n":                                                    "# about image\nimage: a/b\n",
		"# top\n---\n# about image\nimage: a/b\n...\n# end\n":                            "# top\n\n# about image\nimage: a/b\n# end\n",
		"start: | # why\n  # inside\n  true # inside too\n# below\ncpu: 1\n":             "start: | # why\n  # inside\n  true # inside too\n# below\ncpu: 1\n",
		"start: |\n      deep\n    # a comment, not the script\n\n  # another\ncpu: 1\n": "start: |\n  deep\n# a comment, not the script\n\n# another\ncpu: 1\n",
		"start: |+\n  a\n\n\n# c\ncpu: 1\n":                                              "start: |+\n  a\n\n\n# c\ncpu: 1\n",
		"cpu: 1\n\nstart: |+\n  a\n\n":                                                   "start: |+\n  a\n\ncpu: 1\n",
		"cpu: 1\n\nstart: |\n  a\n\n\nmemory: 1GiB":                                      "\nstart: |\n  a\ncpu: 1\n\nmemory: 1GiB\n"[1:],
		"image: # one\n  # two\n  a/b\n":                                                 "# one\n# two\nimage: a/b\n",
		"image: # one\n  a/b\n":                                                          "image: a/b # one\n",
		"image: # one\n  a/b # two\ncpu: 1\n":                                            "# one\n# two\nimage: a/b\ncpu: 1\n",
		"start: echo a#b 'it#s' # c\n":                                                   "start: |- # c\n  echo a#b 'it#s'\n",
		"start: \"a # b\" # c\n":                                                         "start: |- # c\n  a # b\n",
		"start: 'it''s # b' # c\n":                                                       "start: |- # c\n  it's # b\n",
		"start: \"\\\" # b\"# c\n":                                                       "start: |- # c\n  \" # b\n",
		"start: echo\n  \"x # c\ncpu: 1\n":                                               "start: |- # c\n  echo \"x\ncpu: 1\n",
		"{ # a\n  image: a/b, # b\n  # c\n  cpu: 1,# d\n} # e\n# f\n":                    "# a\nimage: a/b # b\n# c\n# d\n# e\ncpu: 1\n# f\n",
		"? image # a\n: a/b # b\n":                                                       "# a\n# b\nimage: a/b\n",
		"start: !!str # a\n  \"x\" # b\n":                                                "# a\n# b\nstart: |-\n  x\n",
		"start: >2 # a\n   x\n  y\n":                                                     "start: |2 # a\n   x\n  y\n",
		"  image: a/b\n  # c\n  start: |\n    x\n   # d\n":                               "image: a/b\n# c\nstart: |\n  x\n# d\n",
		"variables:\n    B: x # b\n    # about A\n    A: 'w'\n":                          "variables:\n  # about A\n  A: w\n  B: x # b\n",
		"variables: # all\n\n  # about A\n  A: w\n\n  B: x\n  # last\n# cpu\ncpu: 1\n":   "# cpu\ncpu: 1\nvariables: # all\n  # about A\n  A: w\n\n  B: x\n  # last\n",
		"variables:\n  A: { sensitive: true, build: true } # a\n  B:\n    # b1\n    link: S # b2\n    # b3\n  C: {value: \"on\"}\n": "variables:\n  A: {sensitive: true, build: true} # a\n  # b1\n  # b2\n  # b3\n  B: {link: S}\n  C: \"on\"\n",
		"variables:\n  A:\n    note: nn # n\n    sensitive: true\n  B: {value: 'x\n\n    w', note: b}\n":                            "variables:\n  A: # n\n    sensitive: true\n    note: nn\n  B:\n    value: |-\n      x\n      w\n    note: b\n",
		"variables: {B: x, # b\n A: w} # a\n":                      "variables:\n  A: w # a\n  B: x # b\n",
		"variables: {}# none\ndocker: false\n":                     "docker: false\nvariables: {} # none\n",
		"variables:\n  A: |+\n    x\n\n\n  # b\n  B: w\n\n# end\n": "variables:\n  A: |+\n    x\n\n\n  # b\n  B: w\n\n# end\n",
		"variables:\n  B: |+\n    x\n\n  A: w\n\n\ncpu: 1\n":       "\ncpu: 1\nvariables:\n  A: w\n  B: |+\n    x\n\n"[1:],
		"variables: {A: 'a,#b', B: a#b}\n":                         "variables:\n  A: \"a,#b\"\n  B: \"a#b\"\n",
		"variables: {A: a,#b\n B: c}\n":                            "variables:\n  A: a #b\n  B: c\n",
		"variables:\n  A: a,#b\n  B: a[#b]\n":                      "variables:\n  A: \"a,#b\"\n  B: \"a[#b]\"\n",
		"dependency-folders: [] # none\n":                          "dependency-folders: [] # none\n",
		"dependency-folders:\n# js\n- '**/node_modules' # big\n-   pattern: a/b\n    beside: c # why\n# end\ncpu: 1\n": "# end\ncpu: 1\ndependency-folders:\n  # js\n  - \"**/node_modules\" # big\n  - {pattern: a/b, beside: c} # why\n",
		"dependency-folders: [b, a]\n": "dependency-folders:\n  - b\n  - a\n",
		"dependency-folders:\n  - {pattern: '**/target', beside: Cargo.toml}\n  - {pattern: '**/.venv', beside: pyproject.toml} # py\n  - {pattern: '**/node_modules', beside: package.json}\n": "dependency-folders:\n  - {pattern: \"**/target\", beside: \"Cargo.toml\"}\n  - {pattern: \"**/.venv\", beside: pyproject.toml} # py\n  - {pattern: \"**/node_modules\", beside: package.json}\n",
		"bootstrap: # a\n  # b\n  file: scripts/setup.sh # c\nstart: {file: s.sh} # d\n":                                                                                                        "# a\n# b\n# c\nbootstrap: {file: scripts/setup.sh}\nstart: {file: s.sh} # d\n",
		"bootstrap:\n  file: scripts/setup.sh # c\n": "bootstrap: {file: scripts/setup.sh} # c\n",
		"%YAML 1.1 # a\n---\nimage: a/b\n":           "# a\n\nimage: a/b\n",
	} {
		got, err := Reformat("e.yml", []byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%q became\n%q, %v; want\n%q", in, got, err, want)
			continue
		}
		keeps(t, []byte(in))
	}
	_, err := Reformat("e.yml", []byte("imgae: x\n"))
	var p Problems
	if !errors.As(err, &p) || p[0].Line != 1 {
		t.Errorf("a wrong document: %v", err)
	}
}

func TestReformatIsFormatForADocumentWithoutComments(t *testing.T) {
	t.Parallel()
	for name, b := range corpus(t, "valid") {
		keeps(t, b)
		s, err := Parse(name, b, anyFile)
		if err != nil {
			t.Fatal(err)
		}
		canonical := Format(s)
		if got, err := Reformat(name, canonical); err != nil || !bytes.Equal(got, canonical) {
			t.Errorf("%s: what Format writes is changed to\n%s%v", name, got, err)
		}
	}
}

// keeps checks the promises of Reformat for a document that Parse takes.
func keeps(t *testing.T, b []byte) {
	t.Helper()
	before, err := Parse("e.yml", b, anyFile)
	if err != nil {
		t.Fatal(err)
	}
	out, err := Reformat("e.yml", b)
	if err != nil {
		t.Fatalf("%q: %v", b, err)
	}
	if after, err := Parse("e.yml", out, anyFile); err != nil || !reflect.DeepEqual(after, before) {
		t.Fatalf("%q\nbecame\n%q\nwhich is read as %+v, %v; not as %+v", b, out, after, err, before)
	}
	if again, err := Reformat("e.yml", out); err != nil || !bytes.Equal(again, out) {
		t.Fatalf("%q\nbecame\n%q\nand then\n%q, %v", b, out, again, err)
	}
	if bytes.IndexByte(b, '%') >= 0 {
		return // a # in a directive can be changed without changing what is read, and is no comment
	}
	if a, z := commentsByTrial(t, b), commentsByTrial(t, out); !slices.Equal(a, z) {
		t.Fatalf("%q\nhas the comments %q, and became\n%q\nwith %q", b, a, out, z)
	}
}

// commentsByTrial finds the comments of a document as no scanner would: what begins with a # and can be changed up to
// the end of its line without changing what is read.
func commentsByTrial(t *testing.T, b []byte) []string {
	t.Helper()
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	want, err := Parse("e.yml", b, anyFile)
	if err != nil {
		t.Fatal(err)
	}
	found := []string{}
	for i := 0; i < len(b); i++ {
		if b[i] != '#' {
			continue
		}
		end := i
		for end < len(b) && lineBreak(b[end:]) == 0 {
			end++
		}
		if got, err := Parse("e.yml", slices.Concat(b[:i+1], []byte("'{\"other"), b[end:]), anyFile); err == nil && reflect.DeepEqual(got, want) {
			found = append(found, strings.TrimRight(string(b[i:end]), " \t"))
			i = end
		}
	}
	slices.Sort(found)
	return found
}

// Documents are made of lines that are often right together.
func TestReformatKeepsWhateverStandsTogether(t *testing.T) {
	t.Parallel()
	pieces := []string{"image: a/b\n", "image: \"a/b\" # c1\n", "cpu: 1\n", "cpu: 2.50#x\n", "memory: 4GiB  # c2 # c3\n", "start: |\n", "start: |+ # c4\n", "bootstrap: >-\n",
		"bootstrap: |3\n", "  # d1\n", "   text # d2\n", "    deep\n", "# e1\n", "\n", "\n", "  \n", "      # e2\n", "start: 'a # b\n", "  c' # e3\n", "  d\" # e4\n", "start: \"\\\n",
		"---\n", "...\n", "{\n", "}\n", ",\n", "? start\n", ": x # f1\n", "  plain ' text\n", "start: plain \"text\n", "start: !!str\n", "\t# g1\n", "start:\n", "# é🙂\u0085", "\r\n", "#\n", "  \" # h1\n", "variables:\n", "variables: { # i1\n", "  A: x # i2\n", "  B: {sensitive: true} # i3\n",
		"  C:\n", "    link: S # i4\n", "  D: |+\n", "    note: n,#i5\n", "dependency-folders: # i6\n", "- a # i7\n", "  - {pattern: b, # i8\n", "     beside: c}#i9\n", "start: {file: s.sh} # j1\n",
		"  # j2\n", "    # j3\n", "  E: [#\n"}
	random := rand.New(rand.NewPCG(3, 4))
	right := 0
	for range 15_000 {
		var b strings.Builder
		for range 1 + random.IntN(8) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		if _, err := Parse("e.yml", []byte(b.String()), anyFile); err == nil {
			right++
			keeps(t, []byte(b.String()))
		}
	}
	if right < 500 {
		t.Errorf("only %d documents are right: the pieces prove too little", right)
	}
}

func TestReformatIsQuickWithManyComments(t *testing.T) {
	t.Parallel()
	b := "image: a/b\n" + strings.Repeat("# c\n", 100_000) + "cpu: 1\n" + strings.Repeat("\n# d", 100_000)
	out, err := Reformat("e.yml", []byte(b))
	if err != nil || bytes.Count(out, []byte("#")) != 200_000 {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	one := "{variables: {"
	for i := range MaxVariables {
		one += fmt.Sprintf("A%d: {value: \"%s\", note: b}, ", i, strings.Repeat("x", 2500))
	}
	begin := time.Now()
	if out, err := Reformat("e.yml", []byte(one+"}}")); err != nil || bytes.Count(out, []byte("\n")) != 2+3*MaxVariables-1 {
		t.Errorf("all in one line: %d lines, %v", bytes.Count(out, []byte("\n")), err)
	}
	// A hang is what this is for: the limit is far above what a busy machine needs.
	if d := time.Since(begin); d > 20*time.Second {
		t.Errorf("all in one line took %v", d)
	}
}

func FuzzReformat(f *testing.F) {
	for _, b := range corpus(f, "valid") {
		f.Add(b)
	}
	for _, s := range []string{"# a\n\n# b\nimage: a/b # c\nstart: |+ # d\n  # e\n\n# f\n", "{ # a\n  image: a/b, # b\n  cpu: 1,# d\n} # e\n", "start: echo\n  \"x # c\ncpu: 1\n",
		"? start # a\n: >2 # b\n   x\n # c\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4<<10 {
			return // the oracle parses the document once for each #
		}
		if _, err := Parse("e.yml", b, anyFile); err == nil {
			keeps(t, b)
		}
	})
}

func ExampleReformat() {
	b, _ := Reformat("environment.yml", []byte("cpu: 2.0 # enough\nimage: 'node:22'\n"))
	fmt.Print(string(b))
	// Output:
	// image: node:22
	// cpu: 2 # enough
}
