package envspec

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

var full = Spec{Image: "node:22", Bootstrap: "apt-get update\n", Start: "npm ci\n", CPU: 2, Memory: 4 << 30}

func build(s Spec) Key {
	return BuildKey(BuildInput{Spec: s, ImageDigest: "sha256:aa", Platform: "linux/amd64", ClaudeCode: "2.1.0"})
}

// moved says which keys differ, as the table's Affects has it.
func moved(t *testing.T, a, b Spec) Affects {
	t.Helper()
	test, snapshot := TestKey(a) != TestKey(b), build(a) != build(b)
	switch {
	case snapshot && !test:
		t.Fatal("the build key moved and the test key did not: such a change would apply untested")
	case snapshot:
		return Build
	case test:
		return Test
	}
	return Nothing
}

func changed(f func(*Spec)) Spec {
	s := full
	f(&s)
	return s
}

func expect(t *testing.T, after Spec, field string, keys, affects Affects, sentence string) {
	t.Helper()
	if got := moved(t, full, after); got != keys {
		t.Errorf("changing %s moves the keys of %q, want %q", field, got, keys)
	}
	c := Explain(full, after)
	if len(c) != 1 || c[0].Field != field || c[0].Affects != affects || !strings.HasPrefix(c[0].Sentence, sentence+" This ") {
		t.Errorf("changing %s is explained as %+v", field, c)
	}
}

func TestImageMovesTheTestKeyByReferenceAndTheBuildKeyByDigest(t *testing.T) {
	t.Parallel()
	after := changed(func(s *Spec) { s.Image = "node:24" })
	// The reference alone is no part of the snapshot: its digest is.
	expect(t, after, "image", Test, Build, "The image changes from node:22 to node:24.")
	if BuildKey(BuildInput{Spec: full, ImageDigest: "sha256:bb", Platform: "linux/amd64", ClaudeCode: "2.1.0"}) == build(full) {
		t.Error("another digest has the same build key")
	}
}

func TestBootstrapMovesBothKeys(t *testing.T) {
	t.Parallel()
	expect(t, changed(func(s *Spec) { s.Bootstrap += "apt-get install -y jq\n" }), "bootstrap", Build, Build,
		"The bootstrap script changes (1 line added, 0 lines removed).")
	expect(t, changed(func(s *Spec) { s.Bootstrap = "" }), "bootstrap", Build, Build, "The bootstrap script is removed.")
}

func TestStartMovesTheTestKeyOnly(t *testing.T) {
	t.Parallel()
	expect(t, changed(func(s *Spec) { s.Start = "pnpm i\nx\n" }), "start", Test, Test, "The start script changes (2 lines added, 1 line removed).")
}

func TestCPUMovesNoKey(t *testing.T) {
	t.Parallel()
	expect(t, changed(func(s *Spec) { s.CPU = 0.5 }), "cpu", Nothing, Nothing, "The number of CPUs changes from 2 to 0.5.")
	expect(t, changed(func(s *Spec) { s.CPU = 0 }), "cpu", Nothing, Nothing, "The number of CPUs changes from 2 to what the Runner gives.")
}

func TestMemoryMovesNoKey(t *testing.T) {
	t.Parallel()
	expect(t, changed(func(s *Spec) { s.Memory = 512 << 20 }), "memory", Nothing, Nothing, "The memory changes from 4GiB to 512MiB.")
}

func TestPlatformAndClaudeCodeMoveTheBuildKey(t *testing.T) {
	t.Parallel()
	for _, in := range []BuildInput{
		{Spec: full, ImageDigest: "sha256:aa", Platform: "linux/arm64", ClaudeCode: "2.1.0"},
		{Spec: full, ImageDigest: "sha256:aa", Platform: "linux/amd64", ClaudeCode: "2.1.1"},
		{Spec: full, ImageDigest: "sha256:aa", Platform: "linux/amd64"},
	} {
		if BuildKey(in) == build(full) {
			t.Errorf("%+v has the same build key", in)
		}
	}
}

func TestEveryFieldOfASpecStandsInTheTable(t *testing.T) {
	t.Parallel()
	named := map[string]bool{}
	for _, f := range fields {
		named[f.name] = true
		if consequences[f.affects] == "" {
			t.Errorf("what a change of %s affects is not said", f.name)
		}
		if known[f.name] == nil {
			t.Errorf("no document can have %s", f.name)
		}
	}
	typ := reflect.TypeFor[Spec]()
	for i := range typ.NumField() {
		tag, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		if !named[tag] {
			t.Errorf("field %s is not in the table: nobody has said what a change of it affects", typ.Field(i).Name)
		}
		// Each field must be seen by Explain, whatever its type.
		a := full
		reflect.ValueOf(&a).Elem().Field(i).SetZero()
		if len(Explain(full, a)) != 1 {
			t.Errorf("Explain doesn't see a change of %s", typ.Field(i).Name)
		}
	}
	if len(named) != typ.NumField() || len(known) != typ.NumField() {
		t.Errorf("the table has %d fields, a document %d, a Spec %d", len(named), len(known), typ.NumField())
	}
}

// A key that changes between releases throws away every build and every passed Test build there is.
func TestKeysStayWhatTheyWere(t *testing.T) {
	t.Parallel()
	for got, want := range map[Key]Key{
		TestKey(full):      "4dd486732944d390d707becdc02d0c67e3c57840429bd5cb28db03102aadd9d0",
		TestKey(Default()): "c3e3c8dcdca5cbf245cbced4b3f543ab55c91bb691f09978ad4e37c5a50dffe6",
		build(full):        "b18860062470adcadda1044e505e2b162d2ef4779046e1b1dba633e78b59fc66",
	} {
		if got != want {
			t.Errorf("a key is now %s and was %s", got, want)
		}
	}
}

func TestKeysDoNotRunFieldsTogether(t *testing.T) {
	t.Parallel()
	a := Spec{Image: "x", Bootstrap: "a\nstart=2:b\n"}
	b := Spec{Image: "x", Bootstrap: "a", Start: "b\n"}
	if TestKey(a) == TestKey(b) {
		t.Error("two Specs have one test key")
	}
	if TestKey(Spec{Image: "x", Bootstrap: "y"}) == TestKey(Spec{Image: "x", Start: "y"}) {
		t.Error("a bootstrap and a start script are taken for each other")
	}
}

func TestKeysAndExplainDoNotSeeWhatNormalizeRemoves(t *testing.T) {
	t.Parallel()
	a := Spec{Bootstrap: "a\r\nb\r\n", Start: " \n"}
	b := Spec{Image: DefaultImage, Bootstrap: "a\nb\n"}
	if TestKey(a) != TestKey(b) || build(a) != build(b) || len(Explain(a, b)) != 0 {
		t.Error("the same Spec, typed in a browser, is another one")
	}
}

func TestExplainOfAFirstEnvironmentListsAll(t *testing.T) {
	t.Parallel()
	var got []string
	for _, c := range Explain(Spec{}, full) {
		what, _, _ := strings.Cut(c.Sentence, ". ")
		got = append(got, what)
	}
	want := []string{"The image is node:22", "The bootstrap script is new", "The start script is new", "The number of CPUs is 2", "The memory is 4GiB"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
	if c := Explain(full, full); len(c) != 0 {
		t.Errorf("nothing changed, and Explain says %+v", c)
	}
}

func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	for path, s := range map[string]Spec{
		"image":     {Image: "a b"},
		"bootstrap": {Bootstrap: "a\x00b"},
		"start":     {Start: "\xff"},
		"cpu":       {CPU: -1},
		"memory":    {Memory: 1},
	} {
		p := Validate(s)
		if len(p) != 1 || p[0].Path != path || !p.Failed() || !strings.HasPrefix(p[0].Message, path+" ") || p[0].Line != 0 {
			t.Errorf("%+v: %+v", s, p)
		}
		if p.Error() != p[0].Message {
			t.Errorf("as an error: %q", p.Error())
		}
	}
	if p := Validate(Spec{CPU: 0.125, Memory: 65<<20 + 1, Image: "://", Start: strings.Repeat("x", MaxScript+1)}); len(p) != 4 {
		t.Errorf("four things are wrong: %v", p)
	}
	for _, s := range []Spec{full, {}, Default()} {
		if p := Validate(s); len(p) != 0 {
			t.Errorf("%+v: %v", s, p)
		}
	}
}

func TestNormalizeIsForWhatABrowserSends(t *testing.T) {
	t.Parallel()
	got := Normalize(Spec{Image: " node:22\n", Bootstrap: "\ufeff#!/bin/sh\r\necho\r\r\n", Start: "\r\n  \t"})
	want := Spec{Image: "node:22", Bootstrap: "#!/bin/sh\necho\n"}
	if got != want {
		t.Errorf("got %+v", got)
	}
	if Normalize(Spec{}) != Default() {
		t.Error("an empty Spec does not become the default one")
	}
}

func TestCutSaysWhatWasAskedAndGiven(t *testing.T) {
	t.Parallel()
	r1 := Limits{Runner: "r1", CPU: 4, Memory: 8 << 30}
	for _, c := range []struct {
		cpu        float64
		memory     int64
		wantCPU    float64
		wantMemory int64
		notes      string
	}{
		{8, 4 << 30, 4, 4 << 30, "asked 8 CPUs, runner r1 gives 4"},
		{2, 16 << 30, 2, 8 << 30, "asked 16GiB of memory, runner r1 gives 8GiB"},
		{4.5, 1536 << 30, 4, 8 << 30, "asked 4.5 CPUs, runner r1 gives 4\nasked 1536GiB of memory, runner r1 gives 8GiB"},
		{4, 8 << 30, 4, 8 << 30, ""},
		{0, 0, 4, 8 << 30, ""},
	} {
		got, notes := r1.Cut(Spec{CPU: c.cpu, Memory: c.memory, Start: "x"})
		if got.CPU != c.wantCPU || got.Memory != c.wantMemory || got.Start != "x" || strings.Join(notes, "\n") != c.notes {
			t.Errorf("%v CPUs, %d bytes: %+v, %q", c.cpu, c.memory, got, notes)
		}
	}
	if _, notes := (Limits{Runner: "r3", Memory: 18513063 << 10}).Cut(Spec{Memory: 900 << 30}); len(notes) != 1 || notes[0] != "asked 900GiB of memory, runner r3 gives 17.7GiB" {
		t.Errorf("a limit of odd kilobytes: %q", notes)
	}
	if got, notes := (Limits{}).Cut(full); got != full || notes != nil {
		t.Errorf("no limits: %+v, %q", got, notes)
	}
	if _, notes := (Limits{Runner: "r2", CPU: 0.5}).Cut(Spec{CPU: 1}); len(notes) != 1 || notes[0] != "asked 1 CPU, runner r2 gives 0.5" {
		t.Errorf("one CPU: %q", notes)
	}
}

func TestSpecIsTheSameThroughJSON(t *testing.T) {
	t.Parallel()
	for _, s := range []Spec{full, {}, Default(), {Image: "x", CPU: 0.07}} {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Spec
		if err := json.Unmarshal(b, &back); err != nil || back != s {
			t.Errorf("%s: %+v, %v", b, back, err)
		}
	}
}
