package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
)

const token = "tok-3n-of-a-test"

func some(t *testing.T) *Values {
	t.Helper()
	vs, err := From([]*wire.Value{
		{Name: "PLAIN", Value: []byte("a b\n"), Id: "p1", Build: true},
		{Name: "LATER", Value: []byte("later-" + token), Id: "s2", Sensitive: true},
		{Name: "BUILT", Value: []byte(token), Id: "s1", Sensitive: true, Build: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return vs
}

func TestTheBootstrapGetsOnlyWhatIsAvailableAtBuild(t *testing.T) {
	t.Parallel()
	vs := some(t)
	if got, want := vs.Env(true), []string{"BUILT=" + token, "PLAIN=a b\n"}; !slices.Equal(got, want) {
		t.Errorf("at build: %q, want %q", got, want)
	}
	if got := vs.Env(false); len(got) != 3 {
		t.Errorf("later: %q", got)
	}
	if got := vs.BuildIDs(); len(got) != 2 || got["BUILT"] != "s1" || got["PLAIN"] != "p1" {
		t.Errorf("ids: %v", got)
	}
	var none *Values
	if none.Env(false) != nil || len(none.BuildIDs()) != 0 || none.Named("PLAIN") || none.Hide(new(redact.Set)) != nil {
		t.Error("no Values are not none")
	}
}

func TestNothingThatPrintsPrintsAValue(t *testing.T) {
	t.Parallel()
	vs := some(t)
	js, err := json.Marshal(map[string]any{"values": vs, "value": vs.list[0]})
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	log := zerolog.New(&logged)
	log.Info().Interface("values", vs).Any("value", vs.list[0]).Stringer("again", vs).Msg("m")
	all := string(js) + logged.String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		all += fmt.Sprintf(verb, vs) + fmt.Sprintf(verb, vs.list[0]) + fmt.Sprintf(verb, vs.list) + fmt.Sprintf(verb, struct{ V *Values }{vs})
	}
	if strings.Contains(all, token) || strings.Contains(all, fmt.Sprintf("%x", token)) || !strings.Contains(all, hidden) {
		t.Errorf("printed: %s", all)
	}
}

func TestWhatWasHandedOutIsCoveredOnlyByTheSameSensitiveValues(t *testing.T) {
	t.Parallel()
	from := func(all ...*wire.Value) *Values {
		vs, err := From(all)
		if err != nil {
			t.Fatal(err)
		}
		return vs
	}
	a := &wire.Value{Name: "A", Value: []byte(token), Id: "1", EnteredMs: 5, Sensitive: true}
	b := &wire.Value{Name: "B", Value: []byte("b-" + token), Id: "2", EnteredMs: 5, Sensitive: true}
	p := &wire.Value{Name: "P", Value: []byte("p"), Id: "3", EnteredMs: 5}
	again := &wire.Value{Name: "A", Value: []byte("other-" + token), Id: "1", EnteredMs: 6, Sensitive: true}
	handed := from(a, p).Handed(false)
	if len(handed) != 1 || strings.Contains(handed[0], token) {
		t.Errorf("handed out: %q", handed)
	}
	if atBuild := from(a, p).Handed(true); len(atBuild) != 0 {
		t.Errorf("handed to the bootstrap: %q", atBuild)
	}
	var none *Values
	for name, c := range map[string]struct {
		now  *Values
		want bool
	}{
		"the same": {from(a, p), true}, "one more": {from(a, b), true}, "another Plain one": {from(a), true}, "another": {from(b), false},
		"entered in place of a lost one": {from(again), false}, "none": {none, false},
	} {
		if got := c.now.Covers(handed); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !none.Covers(none.Handed(false)) {
		t.Error("none does not cover none")
	}
}

func TestSensitiveValuesAreHiddenAndPlainOnesAreNot(t *testing.T) {
	t.Parallel()
	var set, other redact.Set
	vs, err := From([]*wire.Value{{Name: "A", Value: []byte("plain-and-long-enough"), Id: "1"}, {Name: "B", Value: []byte(token), Id: "2", Sensitive: true}})
	if err != nil {
		t.Fatal(err)
	}
	if err := vs.Hide(&set, &other); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*redact.Set{&set, &other} {
		if got := s.Text("plain-and-long-enough " + token).String(); got != "plain-and-long-enough ***" {
			t.Errorf("hidden as %q", got)
		}
	}
}

func TestValuesNoProcessCouldBeGivenAreRefusedByName(t *testing.T) {
	t.Parallel()
	for says, w := range map[string]*wire.Value{
		"KEY contains a NUL byte":  {Name: "KEY", Value: []byte("a\x00b"), Id: "1"},
		"KEY has 65537 bytes":      {Name: "KEY", Value: make([]byte, Max+1), Id: "1"},
		"KEY: the value is too":    {Name: "KEY", Value: []byte("short"), Id: "1", Sensitive: true},
		`can't be named "A=B"`:     {Name: "A=B", Value: []byte("x"), Id: "1"},
		"Variable KEY that has no": {Name: "KEY", Value: []byte("x")},
	} {
		if says == "KEY has 65537 bytes" {
			w.Value = bytes.Repeat([]byte("x"), Max+1)
		}
		if _, err := From([]*wire.Value{w}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	two := &wire.Value{Name: "KEY", Value: []byte("x"), Id: "1"}
	if _, err := From([]*wire.Value{two, two}); err == nil || !strings.Contains(err.Error(), "two values of the Variable KEY") {
		t.Errorf("twice: %v", err)
	}
}

// TestAProcessCanNotBeDumpedAndItsChildrenCan runs this test binary once more, since the setting is the whole process's.
func TestAProcessCanNotBeDumpedAndItsChildrenCan(t *testing.T) {
	if os.Getenv("NO_CORE_DUMPS") != "" {
		if err := NoCoreDumps(); err != nil {
			t.Fatal(err)
		}
		dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		var l unix.Rlimit
		if err != nil || unix.Getrlimit(unix.RLIMIT_CORE, &l) != nil || dumpable != 0 || l.Cur != 0 {
			t.Fatalf("dumpable %d, core files up to %d bytes, %v", dumpable, l.Cur, err)
		}
		// What the Runner does in its own /proc goes on, and a child may trace itself and be dumped again.
		if _, err := os.ReadFile("/proc/self/environ"); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("/proc/self/exe", "-test.run=^$").CombinedOutput()
		if err != nil {
			t.Fatalf("a child: %v %s", err, out)
		}
		out, err = exec.Command("sh", "-c", "stat -c %U /proc/$$/environ && ulimit -H -c").CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) == "" {
			t.Fatalf("a child: %v %s", err, out)
		}
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAProcessCanNotBeDumpedAndItsChildrenCan$")
	cmd.Env = append(os.Environ(), "NO_CORE_DUMPS=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
