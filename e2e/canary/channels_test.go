package canary

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/e2e/canary/forms"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func (st *story) failingTestBuild() {
	st.t.Helper()
	all := every()
	if !*long {
		all = all[:5]
	}
	st.channel("last-lines", all...)
	for part := range slices.Chunk(all, 5) { // few enough to be among the last lines
		test := st.test("canary-print last-lines "+strings.Join(part, ",")+"\nexit 3\n", "")
		if test.State != "failed" || test.Detail.Failure == nil || !strings.Contains(test.Detail.Failure.LastLines, forms.Mark("last-lines", part[len(part)-1])) {
			st.t.Fatalf("the bootstrap's last lines: %s %+v", test.State, test.Detail.Failure)
		}
	}
}

func (st *story) passingTestBuild() {
	st.t.Helper()
	st.channel("bootstrap-stdout", every()...)
	st.channel("bootstrap-stderr", every()...)
	st.channel("start-stdout", every()...)
	st.channel("start-stderr", every()...)
	st.channel("set-x")
	st.channel("names-of-background-processes")
	st.channel("names-of-files-in-the-build")
	test := st.test(`mkdir -p /opt/canary; cd /opt/canary && canary-print -file
canary-print bootstrap-stdout
canary-print -2 bootstrap-stderr
set -x
echo $LINKED
: "$CANARY"
`, `canary-print start-stdout
canary-print -2 start-stderr
canary-print -leave
set -x
: "$CANARY" $LINKED
set +x
[ ! -e fail ] || { canary-print start-last-lines $(cat fail); exit 4; }
`)
	if test.State != "passed" {
		st.t.Fatalf("the Test build: %s %+v", test.State, test.Detail.Failure)
	}
	notes := fmt.Sprintf("%q %+v", test.Detail.Notes, test.Detail.Phases)
	if !strings.Contains(notes, "background process") {
		st.t.Errorf("no background processes are named: %s", notes)
	}
	if st.sensitive && !strings.Contains(notes, "wrote the value of CANARY") {
		st.t.Errorf("the file that the bootstrap wrote is not named: %s", notes)
	}
	if _, err := st.c.Apply(st.t.Context(), repo, test.Revision, "canary"); err != nil {
		st.t.Fatal(err)
	}
}

func (st *story) session() (id string) {
	st.t.Helper()
	sn, err := st.c.StartSession(st.t.Context(), repo, schema.StartSession{})
	if err != nil {
		st.t.Fatal(err)
	}
	st.settled(sn.ID, "running")
	return sn.ID
}

func (st *story) settled(id string, state string) schema.Session {
	st.t.Helper()
	ctx, cancel := context.WithTimeout(st.t.Context(), 90*time.Second)
	defer cancel()
	sn, err := st.c.WaitSession(ctx, repo, id, func(s schema.Session) bool { return s.State == state || s.State == "failed" }, nil)
	if err != nil || sn.State != state {
		st.t.Fatalf("the Session should be %s: %v %+v", state, err, sn)
	}
	return sn
}

// run runs a command in the Session, and searches what it printed as its client got it.
func (st *story) run(id string, spec wire.ChannelSpec) (exit wire.ChannelExit, out string) {
	st.t.Helper()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(st.t.Context(), 2*time.Minute)
	defer cancel()
	exit, err := st.c.Run(ctx, repo, id, spec, client.Stdio{Out: &stdout, Err: &stderr})
	if err != nil {
		st.t.Fatal(err)
	}
	st.search.look("output of exec and terminals", stdout.Bytes())
	st.search.look("output of exec and terminals", stderr.Bytes())
	return exit, stdout.String() + stderr.String()
}

func (st *story) execAndTerminal(id string) {
	st.t.Helper()
	st.channel("exec-stdout", every()...)
	st.channel("exec-stderr", every()...)
	st.channel("terminal", every()...)
	st.channel("terminal-slowly", "raw", "base64-after-1")
	st.channel("terminal-title")
	st.channel("error-of-a-shell")
	for _, spec := range []wire.ChannelSpec{
		{Argv: []string{"canary-print", "exec-stdout"}},
		{Argv: []string{"canary-print", "-2", "exec-stderr"}},
		{Argv: []string{"canary-print", "terminal"}, TTY: true, Rows: 24, Cols: 80, Term: "xterm"},
		{Argv: []string{"canary-print", "-slow", "terminal-slowly", "raw,base64-after-1"}, TTY: true, Rows: 24, Cols: 80},
		{Argv: []string{"sh", "-c", `printf '\033]0;%s\007' "$CANARY"; printf '\033P%s\033\\' "$CANARY"`}, TTY: true, Rows: 24, Cols: 80},
	} {
		if exit, out := st.run(id, spec); exit.Code != 0 {
			st.t.Fatalf("%q: %+v\n%s", spec.Argv, exit, out)
		}
	}
	if exit, out := st.run(id, wire.ChannelSpec{Argv: []string{"sh", "-c", `"$CANARY"`}}); exit.Code != 127 {
		st.t.Errorf("a shell that finds no command of that name: %+v\n%s", exit, out)
	}
}

// git has the value in what git shows, and in what it says when it can't count.
func (st *story) git(id string) {
	st.t.Helper()
	st.channel("git-messages-and-branches")
	st.channel("git-errors")
	script := `set -e
git -c user.name="$(printf %s "$CANARY" | tail -n1)" -c user.email=a@localhost commit --allow-empty -m "$CANARY"
git log -3
git branch "$(printf %s "$CANARY" | od -An -v -tx1 | tr -d ' \n')"
git branch -a
git checkout "no-such-$(printf %s "$CANARY" | base64 -w0)" || true
printf 'ref: refs/heads/%s\n' "$(printf %s "$CANARY" | head -n1)" > .git/HEAD
git status || true`
	if exit, out := st.run(id, wire.ChannelSpec{Argv: []string{"bash", "-c", script}}); exit.Code != 0 {
		st.t.Fatalf("git: %+v\n%s", exit, out)
	}
	asked := time.Now().UnixMilli()
	if _, err := st.c.Count(st.t.Context(), repo, id); err != nil {
		st.t.Fatal(err)
	}
	st.Eventually(30*time.Second, "what was never pushed is counted", func() error {
		sn, _, _, err := st.c.Session(st.t.Context(), repo, id, client.Wait{})
		if err == nil && (sn.Detail.Unsaved == nil || sn.Detail.Unsaved.At < asked) {
			err = errors.New("not counted yet")
		}
		return err
	})
	if exit, out := st.run(id, wire.ChannelSpec{Argv: []string{"bash", "-c", "echo ref: refs/heads/main > .git/HEAD"}}); exit.Code != 0 {
		st.t.Fatalf("mend git: %+v\n%s", exit, out)
	}
}

// remote has the value in the name of the default branch and in a commit's message, and then in the name of a branch that isn't there,
// which the clone fails with.
func (st *story) remote() {
	st.t.Helper()
	st.channel("branch-and-commit-of-the-remote")
	st.channel("error-of-a-clone")
	name := hex.EncodeToString([]byte(st.value))
	write := func(path, text string) { // by hand: the command lines of this test's own git are watched too
		st.t.Helper()
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			st.t.Fatal(err)
		}
	}
	tree, message := filepath.Join(st.Dir, "tree"), filepath.Join(st.Dir, "message")
	write(message, st.value)
	st.Git("-C", tree, "commit", "-q", "--allow-empty", "-F", message)
	st.Git("-C", tree, "push", "-q", st.Remote, "HEAD:main")
	write(filepath.Join(st.Remote, "refs", "heads", name), st.Git("-C", tree, "rev-parse", "HEAD"))
	for _, head := range []string{name, "none-" + name, "main"} {
		write(filepath.Join(st.Remote, "HEAD"), "ref: refs/heads/"+head)
		if head == "main" {
			return
		}
		sn, err := st.c.StartSession(st.t.Context(), repo, schema.StartSession{})
		if err != nil {
			st.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(st.t.Context(), 90*time.Second)
		got, err := st.c.WaitSession(ctx, repo, sn.ID, func(s schema.Session) bool { return s.State == "running" || s.State == "failed" }, nil)
		cancel()
		if err != nil {
			st.t.Fatal(err)
		}
		st.t.Logf("a Session on a remote whose HEAD is %.12s…: %s %+v", head, got.State, got.Detail.Failure)
		var log bytes.Buffer
		if _, err := st.c.CopyLog(st.t.Context(), client.SessionLog(repo, sn.ID), client.Follow{}, &log); err != nil {
			st.t.Fatal(err)
		}
		st.search.look("API answers", log.Bytes())
	}
}

// failingStartScript has each form among the last lines of a start script that fails.
func (st *story) failingStartScript(id string) {
	st.t.Helper()
	st.channel("start-last-lines", every()...)
	for part := range slices.Chunk(every(), 5) {
		exit, out := st.run(id, wire.ChannelSpec{Argv: []string{"sh", "-c", "echo " + strings.Join(part, ",") + " > fail"}})
		if exit.Code != 0 {
			st.t.Fatalf("%+v\n%s", exit, out)
		}
		for _, step := range []struct {
			do    func(context.Context, int64, string) (schema.Session, error)
			state string
		}{{st.c.Sleep, "asleep"}, {st.c.Wake, "running"}} {
			if _, err := step.do(st.t.Context(), repo, id); err != nil {
				st.t.Fatal(err)
			}
			st.settled(id, step.state)
		}
		st.Eventually(60*time.Second, "the start script has failed", func() error {
			sn, _, _, err := st.c.Session(st.t.Context(), repo, id, client.Wait{})
			if f := sn.Detail.StartFailed; err == nil && (f == nil || !strings.Contains(f.LastLines, forms.Mark("start-last-lines", part[len(part)-1]))) {
				err = fmt.Errorf("%+v", sn.Detail)
			}
			return err
		})
	}
	if exit, out := st.run(id, wire.ChannelSpec{Argv: []string{"rm", "fail"}}); exit.Code != 0 {
		st.t.Fatalf("%+v\n%s", exit, out)
	}
}

// loginShell hangs in a file that is named as the value, which the note names.
func (st *story) loginShell() {
	st.t.Helper()
	st.channel("file-in-which-a-login-shell-hangs")
	test := st.test(`f=/root/$(printf %s "$CANARY" | od -An -v -tx1 | tr -d ' \n')
echo 'sleep 60' > $f
echo ". $f" >> /root/.bashrc
chmod 755 /root
cp /root/.bashrc /etc/skel/.bashrc
`, "")
	notes := fmt.Sprintf("%q %+v", test.Detail.Notes, test.Detail.Phases)
	if test.State != "passed" || !strings.Contains(notes, "did not end within") {
		st.t.Errorf("a login shell that hangs: %s %s", test.State, notes)
	}
}
