package cmd

import (
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/envspec"
)

func TestWhatSomebodyElseSavedIsNotSavedOver(t *testing.T) {
	h := newTown(t, apptest.Options{})
	g := h.Grant("ana")
	mine := h.file("environment.yml", "image: debian:13\nbootstrap: echo mine\nvariables:\n  NPM: {sensitive: true}\n")
	h.ok("npm-token-1", "env", "save", "-f", mine, "--value-file", "NPM=-")
	h.ok("", "env", "save", "-f", mine) // nobody else was there
	h.as("bob")
	h.ok("", "env", "variable", "set", "REGION=eu-1", "--plain") // changes one Variable, and nothing of hers
	h.ok("", "env", "variable", "set", "NPM", "--note", "bob's")
	h.as("ana")
	got := h.refused(exitFailed, "bob saved revision 4 of this draft on ", "", "env", "save", "-f", mine)
	for _, want := range []string{
		"which isn't applied yet. Nothing of yours was saved over it; look at it and say --base 4 to save over it.",
		"Theirs is revision 4, saved by bob on ",
		"From theirs to yours:\n  variables.NPM: note changes\n  variables.REGION: is removed\n",
		"See theirs as a document: claude-hub env show --repo acme/rocket --yaml\n",
		"Save yours over theirs: claude-hub env save --repo acme/rocket -f " + mine + " --base 4\n",
	} {
		if !strings.Contains(got.err, want) {
			t.Errorf("the refusal lacks %q:\n%s", want, got.err)
		}
	}
	h.refused(exitFailed, "bob saved this draft meanwhile: you edited revision 3, it is at 4 now.", "", "env", "save", "-f", mine, "--base", "3")
	h.refused(exitFailed, "variables.NPM: value changes (hidden), note changes", "npm-token-2", "env", "save", "-f", mine, "--value-file", "NPM=-")
	h.refused(exitFailed, "claude-hub env test --repo acme/rocket -f "+mine+" --value-file NPM=- --base 4", "npm-token-2", "env", "test", "-f", mine, "--value-file", "NPM=-", "--base", "3", "--runner", "r1")
	// What is wrong with hers comes first: no --base gets around it.
	wrong := h.file("wrong.yml", "image: debian:13\nstrat: echo mine\n")
	for _, args := range [][]string{{}, {"--base", "4"}} {
		got := h.refused(exitFailed, wrong+":2:1: strat is no key of an Environment: did you mean start?\n", "", append([]string{"env", "save", "-f", wrong}, args...)...)
		if strings.Contains(got.err, "--base") || strings.Contains(got.err, "bob") {
			t.Errorf("a wrong document was offered a way over bob's: %s", got.err)
		}
	}
	if d := h.draft(g); len(d.Variables) != 2 {
		t.Errorf("something was saved over bob's: %+v", d)
	}
	h.ok("", "env", "save", "-f", mine, "--base", "4")
	if d := h.draft(g); len(d.Variables) != 1 || d.Variables[0].ValueID == "" {
		t.Errorf("hers over his: %+v", d)
	}
	h.ok("", "env", "save", "-f", mine)
	// What is applied is nobody's pending work.
	h.values(g, h.Runner("r1"))
	h.ok("", "env", "apply")
	h.as("bob")
	h.ok("", "env", "save", "-f", mine)
	h.refused(exitUsage, "-f FILE", "", "env", "apply", "--base", "3")
}

func TestDraftsAreComparedRestoredAndDiscardedByTheCommandLine(t *testing.T) {
	h := newTown(t, apptest.Options{})
	g, r := h.Grant("ana"), h.Runner("r1")
	h.refused(exitFailed, "no draft to discard", "", "env", "discard", "--yes")
	h.refused(exitFailed, "no draft yet. Save one", "", "env", "show", "--yaml")
	one := "image: debian:12\nbootstrap: |\n  echo one\nvariables:\n  REGION: eu-1\n"
	h.ok("", "env", "save", "-f", h.file("e.yml", one))
	h.values(g, r)
	h.ok("", "env", "apply", "-m", "first")
	if got := h.ok("", "env", "diff"); got.out != "" || got.err != "version 1 and the draft are the same\n" {
		t.Errorf("no difference: %+v", got)
	}
	h.ok("", "env", "save", "-f", h.file("e.yml", strings.NewReplacer("one", "two", "eu-1", "us-2").Replace(one)))
	want := "variables.REGION: value changes (hidden)\n--- bootstrap\n+++ bootstrap\n@@ -1 +1 @@\n-echo one\n+echo two\n"
	for _, args := range [][]string{{}, {"1"}, {"1", "draft"}} {
		if got := h.ok("", append([]string{"env", "diff"}, args...)...); got.out != want {
			t.Errorf("diff %q:\n%s", args, got.out)
		}
	}
	h.refused(exitFailed, "“draft”, “none” and the numbers of versions", "", "env", "diff", "one")
	h.refused(exitFailed, "no version 7", "", "env", "diff", "7")
	if got := h.ok("", "env", "diff", "none", "1", "-o", "json").out; !strings.Contains(got, `"from": "none"`) || strings.Contains(got, "eu-1") {
		t.Errorf("as JSON:\n%s", got)
	}

	h.ok("", "env", "save", "-f", h.file("e.yml", "image: debian:12\nbootstrap: \"echo \\e]0;title\\a\\u202E👩‍👧\\n\"\nvariables: {REGION: {value: us-2, note: \"a\\nb\"}}\n"))
	if got := h.ok("", "env", "diff").out; !strings.Contains(got, "+echo �]0;title��👩‍👧\n") {
		t.Errorf("a script that a terminal would obey: %q", got)
	}
	if got := h.ok("", "env", "variable", "ls").out; !strings.Contains(got, "a b") {
		t.Errorf("a note of two lines: %q", got)
	}
	h.ok("", "env", "save", "-f", h.file("e.yml", strings.NewReplacer("one", "two", "eu-1", "us-2").Replace(one)))

	asked := h.refused(exitFailed, "nothing was discarded", "no\n", "env", "discard")
	if !strings.Contains(asked.err, "Revision 4, saved by ana on ") || !strings.Contains(asked.err, "  -echo one\n  +echo two\n") {
		t.Errorf("what would be lost: %+v", asked)
	}
	h.refused(exitFailed, "it is at 4 now", "", "env", "discard", "--yes", "--base", "1")
	if got := h.ok("yes\n", "env", "discard").out; got != "discarded; the draft, revision 5, says what version 1 says\n" {
		t.Errorf("discarded: %s", got)
	}
	h.ok("", "env", "save", "-f", h.file("e.yml", strings.Replace(one, "one", "two", 1)))
	h.values(g, r)
	h.ok("", "env", "apply", "-m", "second")
	if got := h.ok("", "env", "restore", "1").out; got != "version 1 is the draft now, revision 7\n" {
		t.Errorf("restored: %s", got)
	}
	if d := h.draft(g); d.Bootstrap != "echo one\n" || d.Variables[0].Value != "eu-1" {
		t.Errorf("restored: %+v", d)
	}
	h.refused(exitFailed, "nothing was restored", "no\n", "env", "restore", "2")
	h.refused(exitFailed, "Say --yes where nobody can be asked.", "", "env", "restore", "2")
	h.refused(exitFailed, "has no version 9", "no\n", "env", "restore", "9")
	h.as("bob")
	h.refused(exitFailed, "ana saved revision 7 of this draft", "", "env", "restore", "2", "--yes")
	h.ok("", "env", "restore", "2", "--yes", "--base", "7")
	h.refused(exitUsage, "the number of a version", "", "env", "restore", "two")
	h.refused(exitFailed, "no version 9", "", "env", "restore", "9", "--yes")
}

func TestScriptsInFilesAreSentAsTheyAre(t *testing.T) {
	h := newTown(t, apptest.Options{})
	dir := t.TempDir()
	document := dir + "/" + environmentFile
	write(t, document, "image: debian:12\nbootstrap: {file: scripts/setup.sh}\nvariables:\n  NPM: {sensitive: true, build: true}\n")
	write(t, dir+"/scripts/setup.sh", "#!/bin/sh\necho \"$NPM\"\n")
	got := h.ok("", "env", "save", "-f", document)
	if !strings.Contains(got.err, "NPM has no value. Enter it: claude-hub env variable set NPM --repo acme/rocket\n") {
		t.Errorf("what lacks a value isn't named: %+v", got)
	}
	d := h.draft(h.Grant("ana"))
	if d.Bootstrap != "#!/bin/sh\necho \"$NPM\"\n" || d.BootstrapFile != "scripts/setup.sh" {
		t.Errorf("the draft: %+v", d)
	}
	h.Runner("r1")
	h.refused(exitFailed, "This draft can't be tested: the Variable NPM has no value. Enter one for it first.", "", "env", "test", "-f", document)
	h.refused(exitFailed, "This draft can't be applied: the Variable NPM has no value. Enter one for it first.", "", "env", "apply")
	h.ok("npm-token-1", "env", "test", "-f", document, "--value-file", "NPM=-", "--detach")
	write(t, document, "image: debian:12\nbootstrap: {file: scripts/absent.sh}\n")
	h.refused(exitFailed, "which is not in the repository", "", "env", "save", "-f", document)
	write(t, document, "image: debian:12\nbootstrap: \"\xff\"\n")
	h.refused(exitFailed, "UTF-8", "", "env", "save", "-f", document)
}

const dotenvFile = `# top
NODE_ENV=production # a comment
export NPM_TOKEN='npm-token-1'
DATABASE_PASSWORD=
MAIL_FROM="${APP_NAME}"
PEM="-----BEGIN-----
MIIE+/=
-----END-----
"
`

func TestDotenvFilesAreImportedWithAPreview(t *testing.T) {
	h := newTown(t, apptest.Options{})
	g := h.Grant("ana")
	file := h.file(".env", dotenvFile)
	dry := h.ok("", "env", "variable", "import", file, "--dry-run", "--build", "NPM_TOKEN")
	for _, want := range []string{
		"LINE  NAME", "2     NODE_ENV           plain      yes    production", "new     comment dropped", "3     NPM_TOKEN          sensitive  yes    hidden, 11 bytes",
		"4     DATABASE_PASSWORD  sensitive  no     hidden, 0 bytes", "it needs a value", "${…} is kept as it is", "6     PEM", "5 new; nothing was saved",
	} {
		if !strings.Contains(dry.out, want) {
			t.Errorf("the preview lacks %q:\n%s", want, dry.out)
		}
	}
	if strings.Contains(dry.out+dry.err, "npm-token-1") || !strings.Contains(dry.err, file+":5:1: warning: MAIL_FROM has ${…}") {
		t.Errorf("the preview: %+v", dry)
	}
	if d := h.draft(g); len(d.Variables) != 0 {
		t.Fatalf("a dry run saved: %+v", d)
	}
	done := h.ok("", "env", "variable", "import", file, "--build", "NPM_TOKEN")
	if !strings.Contains(done.out, "5 new; saved in revision 1 of the draft") || !strings.Contains(done.err, "DATABASE_PASSWORD has no value.") {
		t.Errorf("imported: %+v", done)
	}
	kinds := map[string]string{}
	for _, v := range h.draft(g).Variables {
		kinds[v.Name] = v.Kind()
	}
	if len(kinds) != 5 || kinds["NPM_TOKEN"] != envspec.KindSensitive || kinds["NODE_ENV"] != envspec.KindPlain || kinds["DATABASE_PASSWORD"] != envspec.KindSensitive {
		t.Errorf("kinds: %v", kinds)
	}
	h.ok("database-pass", "env", "variable", "set", "DATABASE_PASSWORD")
	values := h.values(g, h.Runner("r1"))
	want := map[string]string{"NODE_ENV": "production", "NPM_TOKEN": "npm-token-1", "DATABASE_PASSWORD": "database-pass", "MAIL_FROM": "${APP_NAME}", "PEM": "-----BEGIN-----\nMIIE+/=\n-----END-----\n"}
	for name, value := range want {
		if values[name] != value {
			t.Errorf("%s arrived as another", name)
		}
	}

	// Again: what is the same is no conflict; whether a Sensitive value is can't be told.
	again := h.refused(exitFailed, "Choose --on-conflict=overwrite or --on-conflict=keep", "", "env", "variable", "import", file)
	if !strings.Contains(again.out, "4 same, 1 conflict; nothing was saved") || !strings.Contains(again.out, "the draft has it as sensitive") {
		t.Errorf("the same file again: %+v", again)
	}
	at := func() string { return strings.Split(h.ok("", "env", "show").out, "saved by")[0] }
	before := at()
	for _, flag := range []string{"--on-conflict=keep", "--dry-run"} {
		only := h.file("same.env", "NODE_ENV=production\n")
		if got := h.ok("", "env", "variable", "import", only, flag).out; !strings.Contains(got, "1 same; nothing was saved") || at() != before {
			t.Errorf("a file that says nothing new:\n%s", got)
		}
	}
	changed := h.file(".env", "NODE_ENV=test\nNPM_TOKEN=npm-token-2\nNEW=1\n")
	h.refused(exitFailed, "nothing was saved", "", "env", "variable", "import", changed, "--dry-run")
	if got := h.ok("", "env", "variable", "import", changed, "--on-conflict=keep").out; !strings.Contains(got, "1 new, 2 kept; saved") {
		t.Errorf("kept:\n%s", got)
	}
	if got := h.ok("", "env", "variable", "import", changed, "--on-conflict=overwrite").out; !strings.Contains(got, "2 changed, 1 same; saved") {
		t.Errorf("overwritten:\n%s", got)
	}
	values = h.values(g, h.Runner("r2"))
	if values["NODE_ENV"] != "test" || values["NPM_TOKEN"] != "npm-token-2" || values["NEW"] != "1" || values["DATABASE_PASSWORD"] != "database-pass" {
		t.Error("the Runner gets other values after --on-conflict=overwrite")
	}
	if i := indexOf(h.draft(g), "NPM_TOKEN"); !h.draft(g).Variables[i].Build {
		t.Error("overwriting took “available at build” away")
	}
}

func TestNothingOfAWrongDotenvFileIsSaved(t *testing.T) {
	h := newTown(t, apptest.Options{})
	for text, says := range map[string]string{
		"A=1\nhunter2\n":              ":2:1: this line has no =",
		"A=1\nB-C=hunter2\n":          ":2:1: the name of a Variable has letters, digits and _ only",
		"A=1\nB='hunter2\n":           ":2:1: B begins with the quote ', which is never closed",
		"A=1\nAPI_KEY=hunter2\n":      "nothing was saved: mend what is wrong in ",
		"A=1\nAPI_KEY=\"hunter2\"x\n": ":2:1: API_KEY has text after the quote",
	} {
		got := h.refused(exitFailed, says, "", "env", "variable", "import", h.file(".env", text))
		if !strings.Contains(got.out, "1     A ") || !strings.Contains(got.out, "nothing was saved") || strings.Contains(got.out+got.err, "hunter2") {
			t.Errorf("%q: %+v", text, got)
		}
	}
	file := h.file(".env", "A=1\nAPI_KEY=short\n")
	if got := h.refused(exitFailed, "nothing was saved", "", "env", "variable", "import", file); !strings.Contains(got.out, "to make it Plain, say --plain API_KEY") {
		t.Errorf("a short one: %+v", got)
	}
	h.refused(exitUsage, "--plain names something that isn't in", "", "env", "variable", "import", file, "--plain", "B")
	h.refused(exitUsage, "can't be Plain and also", "", "env", "variable", "import", file, "--plain", "A", "--build", "A")
	h.refused(exitUsage, "is none of overwrite, keep, fail", "", "env", "variable", "import", file, "--on-conflict=x")
	h.refused(exitUsage, "no such file", "", "env", "variable", "import", file+".absent")
	if d := h.draft(h.Grant("ana")); d.Image != "" {
		t.Errorf("something was saved: %+v", d)
	}
	got := h.ok("A=1\nAPI_KEY=short\n", "env", "variable", "import", "-", "--plain", "API_KEY", "-o", "json")
	if !strings.Contains(got.out, `"saved": true`) || !strings.Contains(got.out, `"revision": 1`) || strings.Contains(got.out, `"short"`) {
		t.Errorf("as JSON: %+v", got)
	}
	if d := h.draft(h.Grant("ana")); len(d.Variables) != 2 || d.Image != envspec.DefaultImage {
		t.Errorf("the draft that was begun: %+v", d)
	}
}
