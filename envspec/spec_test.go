package envspec

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

var full = Spec{Image: "node:22", Bootstrap: "apt-get update\n", Start: "npm ci\n", CPU: 2, Memory: 4 << 30}

// everything has each field.
var everything = Spec{Image: "node:22", Bootstrap: "apt-get update\n", BootstrapFile: "b.sh", Start: "npm ci\n", StartFile: "s.sh", Docker: true, CPU: 2, Memory: 4 << 30,
	Folders: &[]Folder{{"**/_build", ""}}, Variables: []Variable{{Name: "A", Value: "x"}}}

func build(s Spec) Key {
	return BuildKey(BuildInput{Spec: s, ImageDigest: "sha256:aa", Platform: "linux/amd64", ClaudeCode: "2.1.0", Values: valueIDs(s)})
}

// valueIDs are the values that the bootstrap receives, as the store names them: those of one text are one.
func valueIDs(s Spec) map[string]string {
	out := map[string]string{}
	for _, v := range s.Variables {
		switch {
		case !v.AtBuild():
		case v.Plain():
			out[v.Name] = "value of " + v.Value
		default:
			out[v.Name] = v.ValueID + "," + v.Link
		}
	}
	return out
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

func TestDockerMovesBothKeys(t *testing.T) {
	t.Parallel()
	expect(t, changed(func(s *Spec) { s.Docker = true }), "docker", Build, Build, "The Docker toggle changes from off to on.")
}

func TestDependencyFoldersMoveTheTestKeyOnly(t *testing.T) {
	t.Parallel()
	expect(t, changed(func(s *Spec) { s.Folders = &[]Folder{} }), "dependency-folders", Test, Test, "The list of dependency folders changes from the defaults to none.")
	expect(t, changed(func(s *Spec) { s.Folders = &[]Folder{{"**/_build", "dune-project"}, {"a", ""}} }), "dependency-folders", Test, Test,
		`The list of dependency folders changes from the defaults to "**/_build" beside "dune-project", "a".`)
	defaults := DefaultFolders()
	defaults[0], defaults[2] = defaults[2], defaults[0]
	if after := changed(func(s *Spec) { s.Folders = &defaults }); moved(t, full, after) != Nothing || len(Explain(full, after)) != 0 {
		t.Error("the defaults, written out, are another list")
	}
	a, b := changed(func(s *Spec) { s.Folders = &[]Folder{{"a", ""}, {"b", "c"}} }), changed(func(s *Spec) { s.Folders = &[]Folder{{"b", "c"}, {"a", ""}} })
	if moved(t, a, b) != Nothing || len(Explain(a, b)) != 0 {
		t.Error("the order of patterns means something")
	}
	long := strings.Repeat("x", 100)
	a, b = changed(func(s *Spec) { s.Folders = &[]Folder{{long + "a", ""}} }), changed(func(s *Spec) { s.Folders = &[]Folder{{long + "b", ""}} })
	if moved(t, a, b) != Test {
		t.Error("what a sentence cuts off is no part of the key")
	}
}

func TestTheFileOfAScriptMovesNoKey(t *testing.T) {
	t.Parallel()
	expect(t, changed(func(s *Spec) { s.BootstrapFile = "setup.sh" }), "bootstrap.file", Nothing, Nothing, "The file of the bootstrap script changes from none to setup.sh.")
	expect(t, changed(func(s *Spec) { s.StartFile = "start.sh" }), "start.file", Nothing, Nothing, "The file of the start script changes from none to start.sh.")
}

// variable checks what a change of one Variable of a Spec that has no others does. nil is none.
func variable(t *testing.T, before, after *Variable, affects Affects, sentence string) {
	t.Helper()
	with := func(v *Variable) Spec {
		s := full
		if v != nil {
			s.Variables = []Variable{*v}
		}
		return s
	}
	a, b := with(before), with(after)
	if got := moved(t, a, b); got != affects {
		t.Errorf("%+v to %+v moves the keys of %q, want %q", before, after, got, affects)
	}
	want := "A: " + sentence + ". " + consequences[affects]
	c := Explain(a, b)
	switch {
	case sentence == "" && len(c) == 0:
	case len(c) != 1 || c[0].Field != "variables.A" || c[0].Affects != affects || c[0].Sentence != want:
		t.Errorf("%+v to %+v is explained as\n%+v, want\n%s", before, after, c, want)
	}
	if len(c) > 0 && strings.Contains(c[0].Sentence, "hunter2") {
		t.Errorf("a value is told: %s", c[0].Sentence)
	}
}

func TestAPlainVariableMovesBothKeys(t *testing.T) {
	t.Parallel()
	plain := &Variable{Name: "A", Value: "hunter2", ValueID: "1"}
	variable(t, nil, plain, Build, "is added (Plain)")
	variable(t, plain, nil, Build, "is removed")
	variable(t, plain, &Variable{Name: "A", Value: "hunter22", ValueID: "1"}, Build, "value changes (hidden)")
	variable(t, plain, &Variable{Name: "A", Value: "", ValueID: "2"}, Build, "value changes (hidden)")
	variable(t, plain, &Variable{Name: "A", Value: "hunter2"}, Nothing, "") // typed again, and not stored yet
	if moved(t, changed(func(s *Spec) { s.Variables = []Variable{{Name: "A", Value: "x"}} }), changed(func(s *Spec) { s.Variables = []Variable{{Name: "B", Value: "x"}} })) != Build {
		t.Error("a Variable of another name has the same keys")
	}
	if c := Explain(Spec{Variables: []Variable{{Name: "A", ValueID: "1"}}}, Spec{Variables: []Variable{{Name: "A", ValueID: "2"}}}); len(c) != 1 {
		t.Errorf("Specs as they are stored: %+v", c)
	}
}

func TestASensitiveVariableMovesBothKeysAtBuildOnly(t *testing.T) {
	t.Parallel()
	session, build := &Variable{Name: "A", Sensitive: true, ValueID: "1"}, &Variable{Name: "A", Sensitive: true, Build: true, ValueID: "1"}
	variable(t, nil, session, Nothing, "is added (Sensitive)")
	variable(t, session, nil, Nothing, "is removed")
	variable(t, session, &Variable{Name: "A", Sensitive: true, ValueID: "2"}, Nothing, "value changes (hidden)")
	variable(t, nil, build, Build, "is added (Sensitive, available at build)")
	variable(t, build, nil, Build, "is removed")
	variable(t, build, &Variable{Name: "A", Sensitive: true, Build: true, ValueID: "2"}, Build, "value changes (hidden)")
	variable(t, build, build, Nothing, "")
}

func TestALinkMovesBothKeysAtBuildOnly(t *testing.T) {
	t.Parallel()
	session, build := &Variable{Name: "A", Link: "S"}, &Variable{Name: "A", Link: "S", Build: true}
	variable(t, nil, session, Nothing, "is added (a link to shared/S)")
	variable(t, session, &Variable{Name: "A", Link: "T"}, Nothing, "link now → shared/T")
	variable(t, build, &Variable{Name: "A", Link: "T", Build: true}, Build, "link now → shared/T")
	variable(t, nil, build, Build, "is added (a link to shared/S, available at build)")
	// A new value of the Shared variable is no other draft, but another build.
	s := changed(func(s *Spec) { s.Variables = []Variable{*build} })
	in := BuildInput{Spec: s, ImageDigest: "sha256:aa", Platform: "linux/amd64", Values: map[string]string{"A": "1"}}
	first := BuildKey(in)
	in.Values = map[string]string{"A": "2"}
	if BuildKey(in) == first {
		t.Error("a new shared value has the same build key")
	}
}

func TestTheBuildFlagOfAVariableMovesBothKeys(t *testing.T) {
	t.Parallel()
	session, build := &Variable{Name: "A", Sensitive: true, ValueID: "1"}, &Variable{Name: "A", Sensitive: true, Build: true, ValueID: "1"}
	variable(t, session, build, Build, "becomes available at build")
	variable(t, build, session, Build, "is no longer available at build")
	variable(t, &Variable{Name: "A", Link: "S"}, &Variable{Name: "A", Link: "S", Build: true, Note: "n"}, Build, "becomes available at build, note changes")
}

func TestTheKindOfAVariableMovesBothKeysWhenTheBuildHasIt(t *testing.T) {
	t.Parallel()
	plain, sensitive, link := &Variable{Name: "A", Value: "hunter2"}, &Variable{Name: "A", Sensitive: true, ValueID: "1"}, &Variable{Name: "A", Link: "S"}
	variable(t, plain, sensitive, Build, "becomes Sensitive, with a value of its own (hidden), is no longer available at build")
	variable(t, sensitive, plain, Build, "becomes Plain, with a value of its own (hidden), becomes available at build")
	variable(t, sensitive, link, Nothing, "link now → shared/S")
	variable(t, plain, &Variable{Name: "A", Link: "S", Build: true}, Build, "link now → shared/S")
}

func TestTheNoteOfAVariableMovesNoKey(t *testing.T) {
	t.Parallel()
	variable(t, &Variable{Name: "A", Value: "hunter2"}, &Variable{Name: "A", Value: "hunter2", Note: "n"}, Nothing, "note changes")
	variable(t, &Variable{Name: "A", Sensitive: true, Build: true, ValueID: "1"}, &Variable{Name: "A", Sensitive: true, Build: true, ValueID: "1", Note: "n"}, Nothing, "note changes")
}

func TestAnIdMovesNoKeyOfAPlainVariable(t *testing.T) {
	t.Parallel()
	variable(t, &Variable{Name: "A", Value: "hunter2", ValueID: "1"}, &Variable{Name: "A", Value: "hunter2", ValueID: "1"}, Nothing, "")
	if TestKey(Spec{Variables: []Variable{{Name: "A", Value: "x", ValueID: "1"}}}) != TestKey(Spec{Variables: []Variable{{Name: "A", Value: "x"}}}) {
		t.Error("a Plain value that was stored has another test key")
	}
	a, b := Spec{Variables: []Variable{{Name: "A", Value: "x"}}}, Spec{Variables: []Variable{{Name: "A"}}}
	in := map[string]string{"A": "1"}
	if BuildKey(BuildInput{Spec: a, Values: in}) != BuildKey(BuildInput{Spec: b, Values: in}) {
		t.Error("the build key sees values")
	}
}

func TestVariablesHaveNoOrder(t *testing.T) {
	t.Parallel()
	a := []Variable{{Name: "B", Value: "x"}, {Name: "A", Value: "y"}}
	b := []Variable{{Name: "A", Value: "y"}, {Name: "B", Value: "x"}}
	if TestKey(Spec{Variables: a}) != TestKey(Spec{Variables: b}) || len(Explain(Spec{Variables: a}, Spec{Variables: b})) != 0 || a[0].Name != "B" {
		t.Error("the order of Variables means something, or Normalize sorts what it was given")
	}
}

func TestDetachTakesValuesOnly(t *testing.T) {
	t.Parallel()
	s := Spec{Image: "x", Variables: []Variable{{Name: "A", Value: "y", ValueID: "1", Note: "n"}}}
	want := Spec{Image: "x", Variables: []Variable{{Name: "A", ValueID: "1", Note: "n"}}}
	if got := Detach(s); !reflect.DeepEqual(got, want) || s.Variables[0].Value != "y" {
		t.Errorf("got %+v, left %+v", got, s)
	}
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
	named := map[string]bool{"variables": true} // each by itself, in explainVariables
	for _, f := range fields {
		named[f.name] = true
		if consequences[f.affects] == "" {
			t.Errorf("what a change of %s affects is not said", f.name)
		}
		if key, _, _ := strings.Cut(f.name, "."); known[key] == nil {
			t.Errorf("no document can have %s", f.name)
		}
	}
	typ := reflect.TypeFor[Spec]()
	for i := range typ.NumField() {
		tag, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		if name := strings.ReplaceAll(strings.Replace(tag, "_file", ".file", 1), "_", "-"); !named[name] {
			t.Errorf("field %s is not in the table: nobody has said what a change of it affects", typ.Field(i).Name)
		}
		// Each field must be seen by Explain, whatever its type.
		a := everything
		reflect.ValueOf(&a).Elem().Field(i).SetZero()
		if len(Explain(everything, a)) != 1 {
			t.Errorf("Explain doesn't see a change of %s", typ.Field(i).Name)
		}
	}
	if len(named) != typ.NumField() || len(known) != len(keys) {
		t.Errorf("the table has %d fields, a Spec %d; a document reads %d keys of %d", len(named), typ.NumField(), len(known), len(keys))
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
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	before := Spec{Variables: []Variable{{Name: "B", Value: "a\r\nb\r\n", Note: "a\r\nb"}, {Name: "A"}}}
	if got := Normalize(before); !reflect.DeepEqual(got.Variables, []Variable{{Name: "A"}, {Name: "B", Value: "a\r\nb\r\n", Note: "a\nb"}}) || before.Variables[0].Note != "a\r\nb" {
		t.Errorf("a note has LF, and a value stays what it is: %+v, %+v", got, before)
	}
	if !reflect.DeepEqual(Normalize(Spec{}), Default()) {
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
	if got, notes := (Limits{}).Cut(full); !reflect.DeepEqual(got, full) || notes != nil {
		t.Errorf("no limits: %+v, %q", got, notes)
	}
	if _, notes := (Limits{Runner: "r2", CPU: 0.5}).Cut(Spec{CPU: 1}); len(notes) != 1 || notes[0] != "asked 1 CPU, runner r2 gives 0.5" {
		t.Errorf("one CPU: %q", notes)
	}
}

func TestSpecIsTheSameThroughJSON(t *testing.T) {
	t.Parallel()
	for _, s := range []Spec{full, {}, Default(), {Image: "x", CPU: 0.07}, everything, Normalize(Spec{Folders: new([]Folder)})} {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Spec
		if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, s) {
			t.Errorf("%s: %+v, %v", b, back, err)
		}
	}
}
