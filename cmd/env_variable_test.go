package cmd

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

// exact are values that a shell, a pipe, a document or a form could change.
var exact = map[string]string{
	"PEM":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte(strings.Repeat("no key ", 12))})),
	"JSON": `{"a": ["b", "c\n"], "<&>": null}`, "QUOTES": `it's "quoted" ` + "`too`" + ` and \ back\\slashed`, "SIGNS": "=a=b#c #d $HOME ${HOME} $(id) %s",
	"EMOJI": "♀👩‍👩‍👧‍👦 é e\u0301|\ufffd|\u2028", "TRAILING": "ends with a line break\n", "LEADING": "\n\r\n \tbegins with white space",
	"CRLF": "one\r\ntwo\rthree\n\r", "LONG": strings.Repeat("0123456789abcde\n", envspec.MaxValue/16),
}

func TestVariablesAreSetByteForByteFromFilesAndPipes(t *testing.T) {
	h := newTown(t, apptest.Options{})
	g, r := h.Grant("ana"), h.Runner("r1")
	want := map[string]string{}
	for name, value := range exact {
		h.ok("", "env", "variable", "set", "F_"+name, "--sensitive", "--value-file", h.file("v", value))
		got := h.ok(value, "env", "variable", "set", "P_"+name, "--plain")
		if kept := strings.Contains(got.err, "ends with the line break that stdin ends with: it is kept"); kept != strings.HasSuffix(value, "\n") {
			t.Errorf("%s: whether a line break at the end is kept: %+v", name, got)
		}
		want["F_"+name], want["P_"+name] = value, value
	}
	binary := "\x01\x02\xff\xfe binary"
	h.ok(binary, "env", "variable", "set", "BINARY", "--sensitive", "--value-file", "-")
	want["BINARY"] = binary
	h.ok("", "env", "variable", "set", "INLINE=a=b $c", "--plain")
	want["INLINE"] = "a=b $c"
	h.refused(exitFailed, "not UTF-8 text. Make it Sensitive", binary, "env", "variable", "set", "BYTES", "--plain")
	h.refused(exitFailed, "longer than the 65536 bytes", strings.Repeat("x", envspec.MaxValue+1), "env", "variable", "set", "LONGER", "--sensitive")
	same := func(when string) {
		t.Helper()
		got := h.values(g, r)
		for name, value := range want {
			if got[name] != value {
				t.Errorf("%s, %s has %d bytes that aren't the ones it was given (%d)", when, name, len(got[name]), len(value))
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s, there are %d Variables, want %d", when, len(got), len(want))
		}
	}
	same("once set")
	// Name, note and flag leave the value as it is, and so does the document.
	for _, name := range []string{"F_PEM", "P_EMOJI"} {
		h.ok("not a new value", "env", "variable", "set", name, "--note", "a note", "--rename", name+"_2")
		want[name+"_2"] = want[name]
		delete(want, name)
	}
	h.ok("", "env", "variable", "set", "F_LEADING", "--build")
	same("renamed")
	document := h.ok("", "env", "show", "--yaml").out
	h.ok("", "env", "save", "-f", h.file("environment.yml", document))
	h.ok("", "env", "variable", "set", "TEST_AGAIN=1", "--plain")
	want["TEST_AGAIN"] = "1"
	same("saved from its own document")
}

func TestASensitiveValueIsNeverTakenFromTheCommandLine(t *testing.T) {
	h := newTown(t, apptest.Options{})
	h.ok("npm-token-1", "env", "variable", "set", "NPM", "--sensitive")
	h.ok("shared-token-1", "shared", "create", "WIDE", "--sensitive")
	for _, args := range [][]string{
		{"env", "variable", "set", "NPM=hunter2hunter2"},
		{"env", "variable", "set", "NEW=hunter2hunter2", "--sensitive"},
		{"env", "variable", "set", "NPM", "hunter2hunter2"},
		{"env", "variable", "set", "NEW", "hunter2hunter2", "--sensitive"},
		{"shared", "create", "OTHER=hunter2hunter2", "--sensitive"},
		{"shared", "set", "WIDE=hunter2hunter2"},
		{"shared", "set", "WIDE", "hunter2hunter2"},
	} {
		got := h.refused(exitUsage, "every process of this host can read it", "", args...)
		if strings.Contains(got.err+got.out, "hunter2") {
			t.Errorf("%q: the refusal repeats it: %+v", args, got)
		}
	}
	h.refused(exitUsage, "the value itself doesn't go on the command line", "", "env", "save", "--value-file", "NPM", "-f", h.file("e.yml", "image: a/b\n"))
	if got := h.draft(h.Grant("ana")); len(got.Variables) != 1 {
		t.Errorf("something was saved: %+v", got)
	}
}

func TestVariablesHaveOneKindAndKeepItUnlessTold(t *testing.T) {
	h := newTown(t, apptest.Options{})
	g, r := h.Grant("ana"), h.Runner("r1")
	h.refused(exitUsage, "NEW is new: say --plain", "x", "env", "variable", "set", "NEW")
	h.refused(exitUsage, "either --plain or --sensitive", "x", "env", "variable", "set", "NEW", "--plain", "--sensitive")
	h.refused(exitUsage, "begins with a letter or _", "x", "env", "variable", "set", "1NEW", "--plain")
	h.refused(exitFailed, "NEW", "x", "env", "variable", "set", "NEW", "--plain", "--build")
	h.refused(exitFailed, "has no Variable ABSENT", "", "env", "variable", "set", "ABSENT", "--rename", "OTHER")
	got := h.ok("npm-token-1", "env", "variable", "set", "TOKEN", "--sensitive", "--build", "--note", "for npm")
	if !strings.Contains(got.out, "saved in revision 1 of the draft") || !strings.Contains(got.out, "TOKEN: is added (Sensitive, available at build)") {
		t.Errorf("what it says: %+v", got)
	}
	h.ok("npm-token-2", "env", "variable", "set", "TOKEN")
	if v := h.draft(g).Variables[0]; !v.Sensitive || !v.Build || v.Note != "for npm" {
		t.Errorf("a new value changed more: %+v", v)
	}
	h.ok("", "env", "variable", "set", "TOKEN=plainly", "--plain")
	if v := h.draft(g).Variables[0]; v.Sensitive || v.Build || v.Value != "plainly" || v.Note != "for npm" {
		t.Errorf("made Plain with a new value: %+v", v)
	}
	h.refused(exitFailed, "too short", "short", "env", "variable", "set", "TOKEN", "--sensitive")
	h.ok("npm-token-3", "env", "variable", "set", "TOKEN", "--sensitive")
	h.ok("", "env", "variable", "set", "EMPTY=", "--plain")
	h.ok("shared-token-1", "shared", "create", "HUB_WIDE", "--sensitive")
	h.refused(exitFailed, "TOKEN stands there twice: each Variable and each Link has a name of its own", "", "env", "variable", "link", "TOKEN", "HUB_WIDE")
	h.refused(exitFailed, "links the Shared variable HUB_WID, which doesn't exist. Did you mean HUB_WIDE?", "", "env", "variable", "link", "WIDE", "HUB_WID")
	h.ok("", "env", "variable", "link", "WIDE", "HUB_WIDE", "--build", "--note", "a Link")
	h.refused(exitFailed, "WIDE is a Link, whose value is kept with its Shared variable", "x", "env", "variable", "set", "WIDE")
	h.ok("", "env", "variable", "set", "WIDE", "--note", "still a Link")
	if got := h.values(g, r); got["TOKEN"] != "npm-token-3" || got["WIDE"] != "shared-token-1" || got["EMPTY"] != "" || len(got) != 3 {
		t.Error("the Runner gets other values")
	}
	table := h.ok("", "env", "variable", "ls").out
	for _, want := range []string{"NAME", "TOKEN  sensitive  no     set, digest ", "WIDE   link       yes    shared/HUB_WIDE", "still a Link", `EMPTY  plain      yes    ""`, "ana"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	var list []schema.Variable
	if err := json.Unmarshal([]byte(h.ok("", "env", "variable", "ls", "-o", "json").out), &list); err != nil || len(list) != 3 || list[2].Link != "HUB_WIDE" {
		t.Errorf("as JSON: %+v, %v", list, err)
	}
	h.refused(exitFailed, "has no Variable ABSENT; nothing was saved", "", "env", "variable", "rm", "TOKEN", "ABSENT")
	h.ok("", "env", "variable", "rm", "TOKEN", "WIDE")
	if got := h.draft(g).Variables; len(got) != 1 {
		t.Errorf("after rm: %+v", got)
	}
}

func TestLostValuesAreEnteredByTheCommandLine(t *testing.T) {
	before := newTown(t, apptest.Options{})
	old := before.Runner("r1")
	before.ok("npm-token-1", "env", "variable", "set", "NPM", "--sensitive", "--build")
	before.ok("old-token-1", "env", "variable", "set", "OLD", "--sensitive")
	before.ok("shared-token-1", "shared", "create", "HUB_WIDE", "--sensitive")
	before.ok("", "env", "variable", "link", "WIDE", "HUB_WIDE")
	before.values(before.Grant("ana"), old)
	before.ok("", "env", "apply")
	before.ok("", "env", "variable", "rm", "OLD")
	h := serveTown(t, before.db, before.LoseKey(2))
	r := old.Of(h.Hub)
	if got := h.ok("", "env", "show"); !strings.Contains(got.err, "NPM has no value. Enter it: claude-hub env variable set NPM --repo acme/rocket") ||
		!strings.Contains(got.err, "WIDE has no value. Enter it where it is kept: claude-hub shared set HUB_WIDE") {
		t.Errorf("env show: %+v", got)
	}
	if got := h.ok("", "env", "variable", "ls", "--version", "1").out; strings.Count(got, "lost with its key: needs a value") != 3 {
		t.Errorf("what the version lost:\n%s", got)
	}
	h.refused(exitFailed, "the Variables NPM, OLD and WIDE (linked from the Shared variable HUB_WIDE) have no value. Enter one for each first.", "", "session", "start", "--detach")
	for _, name := range []string{"NPM", "OLD"} { // one in draft and version, one in the version alone
		if got := h.ok(name+"-token-2", "env", "variable", "set", name); !strings.Contains(got.err, "in place of the one that was lost: it applies at once, without a Test build") || got.out != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := h.ok("shared-token-2", "shared", "set", "HUB_WIDE").out; !strings.Contains(got, "in place of the one that was lost") {
		t.Errorf("the Shared variable: %s", got)
	}
	h.ok("", "session", "start", "--detach")
	values, refused := r.Values(r.Item())
	if refused != "" || string(values["NPM"].GetValue()) != "NPM-token-2" || string(values["OLD"].GetValue()) != "OLD-token-2" || string(values["WIDE"].GetValue()) != "shared-token-2" {
		t.Errorf("a Session gets other values; refused: %q", refused)
	}
	if got := h.ok("", "env", "versions").out; strings.Count(got, "\n") != 2 {
		t.Errorf("entering values made a version:\n%s", got)
	}
}

func TestALinkToNothingNamesTheCommandThatMakesIt(t *testing.T) {
	h := newTown(t, apptest.Options{})
	h.Grant("ana")
	document := h.file("e.yml", "image: debian:12\nvariables:\n  DSN: {link: SENTRY}\n  URL: {link: MIRROR}\n")
	for _, name := range []string{"SENTRY", "MIRROR"} {
		want := "links the Shared variable " + name + ", which doesn't exist; make it first, by “claude-hub shared create " + name + "” or on the page of Shared variables"
		h.refused(exitFailed, want, "", "env", "save", "-f", document)
		h.refused(exitFailed, want, "", "env", "variable", "link", "HERE", name)
	}
}

func TestSharedVariablesByTheCommandLine(t *testing.T) {
	h := newTown(t, apptest.Options{})
	g, r := h.Grant("ana"), h.Runner("r1")
	h.refused(exitUsage, "say --plain", "x", "shared", "create", "MIRROR")
	h.ok("", "shared", "create", "MIRROR=https://mirror.example.com", "--plain", "--note", "ours")
	h.ok("dsn-0123456789", "shared", "create", "DSN", "--sensitive")
	h.refused(exitFailed, "There is a Shared variable DSN already.", "dsn-0123456789", "shared", "create", "DSN", "--sensitive")
	h.ok("", "env", "variable", "link", "DSN", "--build")
	h.ok("", "env", "variable", "link", "MIRROR_URL", "MIRROR")
	if got := h.values(g, r); got["MIRROR_URL"] != "https://mirror.example.com" || got["DSN"] != "dsn-0123456789" {
		t.Errorf("the Runner gets other values")
	}
	h.ok("", "env", "apply", "-m", "first")
	h.as("bob")
	got := h.ok("dsn-9876543210", "shared", "set", "DSN").out
	if !strings.Contains(got, "DSN has its new value.") || !strings.Contains(got, "It is available at build in the Environment of acme/rocket: there each Runner makes a new build with it the next time a Session boots") {
		t.Errorf("what a new value means: %s", got)
	}
	if got := h.ok("", "env", "show").out; !strings.Contains(got, "bob set the Shared variable DSN (DSN here) on ") || !strings.Contains(got, "after the version was tested") {
		t.Errorf("env show: %s", got)
	}
	h.ok("", "shared", "note", "DSN", "from ops")
	h.ok("", "shared", "set", "MIRROR=https://mirror.example.org")
	table := h.ok("", "shared", "ls").out
	for _, want := range []string{"DSN     sensitive  set, digest ", "MIRROR  plain      https://mirror.example.org", "acme/rocket", "from ops", "bob"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	h.refused(exitFailed, "can't be renamed while a draft or an applied version links it: that of acme/rocket.", "", "shared", "rename", "DSN", "OTHER")
	h.refused(exitFailed, "can't be deleted while a draft or an applied version links it", "", "shared", "rm", "DSN", "--yes")
	h.ok("", "shared", "create", "GONE=1", "--plain")
	h.refused(exitUsage, "not with a digit", "", "shared", "rename", "GONE", "1ST")
	if got := h.ok("", "shared", "rename", "GONE", "GOING").out; got != "GOING is its name now\n" {
		t.Errorf("renamed: %s", got)
	}
	h.refused(exitFailed, "nothing was deleted", "no\n", "shared", "rm", "GOING")
	h.ok("yes\n", "shared", "rm", "GOING")
	h.refused(exitFailed, "There is no Shared variable GOING.", "", "shared", "rm", "GOING", "--yes")
	h.refused(exitUsage, "letters, digits and _ only", "", "shared", "rm", "../repos", "--yes")
	var list []schema.Shared
	if err := json.Unmarshal([]byte(h.ok("", "shared", "ls", "-o", "json").out), &list); err != nil || len(list) != 2 || list[0].Value != nil || list[0].Note != "from ops" {
		t.Errorf("as JSON: %+v, %v", list, err)
	}
}

// openTerminal makes a terminal and who types at it.
func openTerminal(t *testing.T) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return master, tty
}

func TestATerminalIsAskedWithoutEchoAndOneLineOnly(t *testing.T) {
	t.Parallel()
	ask := func(typed string, sensitive bool) (string, string, error) {
		t.Helper()
		master, tty := openTerminal(t)
		prompt, prompted, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer prompt.Close()
		seen := make(chan string)
		go func() { // type once it asks, as a person does
			b := make([]byte, 1<<10)
			n, _ := prompt.Read(b)
			_, _ = master.WriteString(typed)
			seen <- string(b[:n])
		}()
		value, err := askValue(t.Context(), tty, prompted, "NPM", sensitive)
		question := <-seen
		prompted.Close()
		// A mark ends what the terminal showed.
		_, _ = tty.WriteString("[end]")
		var shown strings.Builder
		for b := make([]byte, 1<<10); !strings.Contains(shown.String(), "[end]"); {
			n, err := master.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			shown.Write(b[:n])
		}
		return string(value), question + shown.String(), err
	}
	for _, c := range []struct {
		typed     string
		sensitive bool
		value     string
		says      string
		shown     bool
	}{
		{"npm-token-1 \n", true, "npm-token-1 ", "", false},
		{"eu-1\n", false, "eu-1", "", true},
		{"\n", false, "", "", false},
		{"-----BEGIN\nMIIE\n-----END\n", true, "", "has several lines", false},
		{strings.Repeat("x", terminalLine+100) + "\n", true, "", "too long for a terminal", false},
		{"\x04", true, "", "no value was typed", false},
	} {
		value, shown, err := ask(c.typed, c.sensitive)
		if value != c.value || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.20q: got %.20q, %v", c.typed, value, err)
		}
		if !strings.Contains(shown, "Value of NPM") || strings.Contains(shown, strings.TrimSpace(c.typed)) && c.typed != "\n" && c.typed != "\x04" != c.shown {
			t.Errorf("%.20q: the terminal showed %.80q", c.typed, shown)
		}
	}
}
