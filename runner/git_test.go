package runner

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func (o *owner) Rights(context.Context, fleet.Assignment) (fleet.Rights, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.may, nil
}

// let sets what the person of every Session may do from now on.
func (i *installed) let(may fleet.Rights) {
	i.owner.mu.Lock()
	defer i.owner.mu.Unlock()
	may.Repo, may.Actor = i.repo.ID, "ana"
	i.owner.may = may
}

// gitFiles are the host's git, with what it needs, for an image.
var gitFiles = sync.OnceValues(func() ([]imagetest.Entry, error) {
	exe, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	core, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil, err
	}
	http := filepath.Join(strings.TrimSpace(string(core)), "git-remote-http")
	libs, err := exec.Command("ldd", exe, http).Output()
	if err != nil {
		return nil, err
	}
	files := map[string]bool{exe: true, http: true}
	for _, word := range strings.Fields(string(libs)) {
		if strings.HasPrefix(word, "/") && !strings.HasSuffix(word, ":") {
			files[word] = true
		}
	}
	var all []imagetest.Entry
	dirs := map[string]bool{}
	for f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for d := filepath.Dir(f); d != "/" && !dirs[d]; d = filepath.Dir(d) {
			dirs[d] = true
		}
		all = append(all, imagetest.File(f[1:], 0o755, string(b)))
	}
	var folders []imagetest.Entry
	for d := range dirs {
		folders = append(folders, imagetest.Dir(d[1:], 0o755))
	}
	return append(folders, append(all, imagetest.Link(filepath.Dir(http)[1:]+"/git-remote-https", "git-remote-http"))...), nil
})

// gitImage is an image with git.
func (w *world) gitImage(configure func(*v1.ConfigFile)) string {
	w.t.Helper()
	files, err := gitFiles()
	if err != nil {
		w.t.Fatalf("these tests need git with its HTTP helper: %v", err)
	}
	return w.image("git:v1", configure, files...)
}

// init is PID 1 of a Session's Sandbox, as the host sees it.
func (w *world) init(id string) string {
	w.t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		group, _ := os.ReadFile(d + "/cgroup")
		status, _ := os.ReadFile(d + "/status")
		_, ns, _ := strings.Cut(string(status), "NSpid:")
		ns, _, _ = strings.Cut(ns, "\n")
		cmdline, _ := os.ReadFile(d + "/cmdline") // empty: a dead one that nobody has waited for
		if f := strings.Fields(ns); len(cmdline) > 0 && bytes.Contains(group, []byte("/s-"+id)) && len(f) > 1 && f[len(f)-1] == "1" {
			return d
		}
	}
	w.t.Fatalf("the Sandbox of %s has no PID 1", id)
	return ""
}

// bridge lets a Session's Sandbox, which reaches nothing of its host, reach one server there, at the same address.
func (i *installed) bridge(id string) {
	i.t.Helper()
	u, err := url.Parse(i.repo.CloneURL())
	if err != nil {
		i.t.Fatal(err)
	}
	ns, err := os.Open(i.init(id) + "/ns/net")
	if err != nil {
		i.t.Fatal(err)
	}
	defer ns.Close()
	type made struct {
		l   net.Listener
		err error
	}
	got := make(chan made)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			got <- made{nil, err}
			return
		}
		l, err := net.Listen("tcp", u.Host)
		got <- made{l, err}
	}()
	in := <-got
	if in.err != nil {
		i.t.Fatal(in.err)
	}
	i.t.Cleanup(func() { in.l.Close() })
	go func() {
		for {
			c, err := in.l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				to, err := net.Dial("tcp", u.Host)
				if err != nil {
					return
				}
				defer to.Close()
				go io.Copy(to, c) //nolint:errcheck // ends with either side
				io.Copy(c, to)    //nolint:errcheck // as above
			}()
		}
	}()
}

// gitSession is a Session of the private Repo, awake, whose Sandbox has git and reaches GitHub.
func (i *installed) gitSession(configure func(*v1.ConfigFile)) string {
	i.t.Helper()
	recipe, key := i.version(envspec.Spec{Image: i.gitImage(configure)})
	id := i.session(recipe, key, i.repo.CloneURL(), func(p *wire.Session) {
		p.Repo.Token = true
		p.Person = wire.Person{Name: "ana", Email: "7+ana@users.noreply.github.example"}
	})
	i.untilState(id, wire.StateRunning)
	i.bridge(id)
	return id
}

// try is sh that may fail, with all that was printed.
func (w *world) try(id, script string) (string, int) {
	w.t.Helper()
	r := w.exec(id, "sh", "-c", script)
	if r.exit.Failed != "" {
		w.t.Fatalf("%s: %+v", script, r)
	}
	return r.out + r.err, r.exit.Code
}

func (i *installed) grantPush() {
	i.inst.Grant(map[string]string{"checks": "write", "contents": "write", "metadata": "read", "pull_requests": "read"})
}

// received are the pushes that reached GitHub, as who did them.
func (i *installed) received() (by []string) {
	for _, q := range i.gh.Requests() {
		if strings.HasSuffix(q.Path, "/git-receive-pack") || strings.Contains(q.Query, "git-receive-pack") {
			by = append(by, fmt.Sprintf("%s %s %d", q.Method, q.As, q.Status))
		}
	}
	return by
}

// lives says whether GitHub accepts a token still.
func (i *installed) lives(tok string) bool {
	i.t.Helper()
	req, err := http.NewRequestWithContext(i.t.Context(), http.MethodGet, i.repo.CloneURL()+"/info/refs?service=git-upload-pack", nil)
	if err != nil {
		i.t.Fatal(err)
	}
	req.SetBasicAuth(build.TokenUser, tok)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		i.t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

func TestGitInASandboxHasTheRightsOfThePersonAndItsTokenIsNowhere(t *testing.T) {
	t.Parallel()
	checked.Both(t, func(t *testing.T, gh *githubtest.Server) {
		i := install(t, gh)
		i.grantPush()
		i.let(fleet.Rights{})
		id := i.gitSession(asCoder)
		ana := gh.Person("ana")
		i.repo.Push(ana, "main", "Theirs", githubtest.Files{"theirs": githubtest.Text("x\n")})
		if out := i.sh(id, "git pull --quiet origin main 2>&1; ls theirs; git log -1 --format='%an %ae' --author=nobody; git var GIT_AUTHOR_IDENT"); !strings.HasPrefix(out, "theirs\nana <7+ana@users.noreply.github.example> ") {
			t.Fatalf("fetched: %q", out)
		}
		if out := i.sh(id, "echo mine >mine && git add mine && git commit -qm Mine && git push origin HEAD:refs/heads/mine 2>&1; git push origin HEAD:refs/heads/mine 2>&1"); !strings.Contains(out, "Everything up-to-date") || strings.Contains(out, "claude-hub:") {
			t.Errorf("pushed: %q", out)
		}
		if head := strings.TrimSpace(i.sh(id, "git rev-parse HEAD")); i.repo.Head("mine") != head {
			t.Errorf("GitHub has %s, not %s", i.repo.Head("mine"), head)
		}
		all := i.app.tokens()
		if len(all) != 2 { // the clone's, and one for all that git did
			t.Fatalf("%d tokens were made", len(all))
		}
		tok := all[1]
		basic := base64.StdEncoding.EncodeToString([]byte(build.TokenUser + ":" + tok))
		out := i.sh(id, "printf 'url="+i.repo.CloneURL()+"\\n\\n' | git credential fill; cat /etc/gitconfig /run/claude-hub/gitconfig .git/config; env")
		if strings.Contains(out, tok) || !strings.Contains(out, "username="+build.TokenUser) || !strings.Contains(out, "password=") {
			t.Errorf("what a person sees of it: %q", out)
		}
		inside := i.sh(id, "grep -rl '"+tok[:12]+"' /etc /run /root /home /tmp /workspace 2>/dev/null; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -v grep | grep '"+tok[:12]+"'; true")
		if strings.TrimSpace(inside) != "" {
			t.Errorf("the token is in %q", inside)
		}
		for _, text := range []string{tok, basic} {
			if in := inProcesses(text); len(in) > 0 {
				t.Errorf("the token is in %q", in)
			}
		}
		i.change(id, fleet.Stop)
		i.untilState(id, wire.StateAsleep)
		poll(t, "the token is given back", func() bool { return !i.lives(tok) })
		i.noneOnDisk(tok, basic)
	})
}

func TestWhoMayOnlyReadFetchesAndIsToldHowToPush(t *testing.T) {
	t.Parallel()
	i := install(t, checked.New(t, githubtest.Options{}))
	i.let(fleet.Rights{})
	id := i.gitSession(nil)
	// The App lacks the permission.
	out, code := i.try(id, "git fetch origin 2>&1 && echo fetched; git commit -q --allow-empty -m x; git push origin HEAD:refs/heads/mine 2>&1")
	if !strings.HasPrefix(out, "fetched\nclaude-hub: The GitHub App lacks the permission contents: write on this Repo.") || code == 0 || !strings.Contains(out, "could not read Username") {
		t.Errorf("the App lacks the permission: %d %q", code, out)
	}
	i.grantPush()
	i.let(fleet.Rights{ReadOnly: "Pushing needs write access to octo/app, which ana doesn't have."})
	out, code = i.try(id, "git fetch origin 2>&1 && echo fetched; git push origin HEAD:refs/heads/mine 2>&1")
	if !strings.HasPrefix(out, "fetched\nclaude-hub: Pushing needs write access to octo/app, which ana doesn't have.\n") || code == 0 {
		t.Errorf("the person may only read: %d %q", code, out)
	}
	// Their own credentials do, however they bring them.
	bo := i.gh.Person("bo")
	i.repo.Allow(bo, "write")
	pat := i.gh.UserToken(i.appID, bo)
	typed := fmt.Sprintf("GIT_ASKPASS=/tmp/ask; printf '#!/bin/sh\\ncase $1 in User*) echo bo;; *) echo %s;; esac\\n' >/tmp/ask; chmod +x /tmp/ask; export GIT_ASKPASS; git push origin HEAD:refs/heads/mine 2>&1", pat)
	if out, code := i.try(id, typed); code != 0 || i.repo.Head("mine") == "" {
		t.Errorf("with credentials of their own: %d %q, asked %q", code, out, i.received())
	}
	c := i.open(id, wire.ChannelSpec{Argv: []string{"git", "push", "origin", "HEAD:refs/heads/typed"}, TTY: true, Rows: 24, Cols: 80})
	c.until("which ana doesn't have.")
	c.until("Username for")
	c.move([]byte("bo\n"), false)
	c.until("Password for")
	c.move([]byte(pat+"\n"), false)
	if r := c.end(); r.exit.Code != 0 || i.repo.Head("typed") == "" {
		t.Errorf("typed in the terminal: %+v", r)
	}
	if len(i.app.tokens()) != 2 {
		t.Errorf("%d tokens were made", len(i.app.tokens()))
	}
}

func TestWhoLosesAccessLosesTheTokenAtTheNextQuestion(t *testing.T) {
	t.Parallel()
	i := install(t, checked.New(t, githubtest.Options{}))
	i.grantPush()
	i.let(fleet.Rights{})
	id := i.gitSession(asCoder)
	i.sh(id, "git fetch origin 2>&1")
	all := i.app.tokens()
	tok := all[len(all)-1]
	i.let(fleet.Rights{Refused: "You have no access to octo/app any more."})
	if out, code := i.try(id, "git fetch origin 2>&1"); code == 0 || !strings.HasPrefix(out, "claude-hub: You have no access to octo/app any more.\n") {
		t.Errorf("%d %q", code, out)
	}
	if i.lives(tok) {
		t.Error("what was lent before is still good")
	}
	i.let(fleet.Rights{ReadOnly: "no"})
	i.sh(id, "git fetch origin 2>&1")
	i.let(fleet.Rights{})
	i.sh(id, "git commit -q --allow-empty -m x && git push origin HEAD:refs/heads/mine 2>&1")
	i.let(fleet.Rights{ReadOnly: "no"})
	i.sh(id, "git fetch origin 2>&1")
	all = i.app.tokens()
	if len(all) != 5 || i.lives(all[3]) || !i.lives(all[4]) {
		t.Errorf("%d tokens were made; the one that pushed lives: %t, the newest lives: %t", len(all), i.lives(all[3]), i.lives(all[4]))
	}
	// GitHub ended it, for example by a new permission: git says so, and the next question gets another.
	if err := i.app.Source.Revoke(t.Context(), all[4]); err != nil {
		t.Fatal(err)
	}
	if out, code := i.try(id, "git fetch origin 2>&1"); code == 0 {
		t.Errorf("with a token that has ended: %q", out)
	}
	i.sh(id, "git fetch origin 2>&1")
	i.change(id, fleet.Remove)
	i.untilState(id, wire.StateRemoved)
	for n, tok := range i.app.tokens() {
		poll(t, fmt.Sprintf("token %d is given back", n), func() bool { return !i.lives(tok) })
	}
}

func TestManyWhoAskAtOnceShareATokenAndAFloodIsHeldBack(t *testing.T) {
	t.Parallel()
	i := install(t, checked.New(t, githubtest.Options{}))
	i.let(fleet.Rights{})
	i.grantPush()
	id := i.gitSession(asCoder)
	out := i.sh(id, "for n in 1 2 3 4 5; do git ls-remote origin main >/tmp/$n 2>&1 & done; wait; cat /tmp/[1-5]")
	if strings.Count(out, "refs/heads/main") != 5 || len(i.app.tokens()) != 2 {
		t.Errorf("%d tokens, %q", len(i.app.tokens()), out)
	}
	// More than a person does, and tokens that are thrown away at once.
	flood := "ask() { printf 'protocol=http\\nhost=" + strings.TrimPrefix(i.gh.URLs().Web, "http://") + "\\n%s\\n' \"$2\" | /run/claude-hub/agent agent git-credential $1; }; " +
		"for n in $(seq 80); do ask get >/tmp/got 2>&1; ask erase \"$(grep password /tmp/got)\" 2>&1; done; cat /tmp/got"
	if out := i.sh(id, flood); !strings.Contains(out, "claude-hub: git here asks for credentials more than 60 times in 1m0s; try again in a minute.") {
		t.Errorf("%q", out)
	}
	if n := len(i.app.tokens()); n > 21 {
		t.Errorf("%d tokens were made", n)
	}
	if out := i.sh(id, "echo here"); out != "here\n" {
		t.Errorf("%q", out)
	}
}

func TestARunnerThatTakesOverAnswersGitToo(t *testing.T) {
	t.Parallel()
	i := installOnly(t, checked.New(t, githubtest.Options{}))
	i.start()
	i.let(fleet.Rights{})
	i.grantPush()
	id := i.gitSession(asCoder)
	i.sh(id, "git fetch origin 2>&1")
	i.stop()
	i.start()
	poll(t, "git fetches", func() bool { _, code := i.try(id, "git fetch origin 2>&1"); return code == 0 })
}

func TestRunnerAndHubPushNothingInAllOfASessionsLife(t *testing.T) {
	t.Parallel()
	i := install(t, checked.New(t, githubtest.Options{}))
	i.grantPush()
	i.let(fleet.Rights{})
	recipe, key := i.version(envspec.Spec{Image: i.gitImage(asCoder), Start: "git status"})
	id := i.session(recipe, key, i.repo.CloneURL(), func(p *wire.Session) { p.Repo.Token = true })
	i.untilState(id, wire.StateRunning)
	i.bridge(id)
	i.sh(id, "git config user.name x; git config user.email x@x; echo w >w; git add w; git commit -qm work; echo more >>w; git fetch -q origin")
	i.change(id, fleet.Stop)
	i.untilState(id, wire.StateAsleep)
	i.change(id, fleet.Run)
	i.untilState(id, wire.StateRunning)
	i.stop() // the Runner's own restart
	i.start()
	poll(t, "the Session goes on", func() bool { _, code := i.try(id, "git status"); return code == 0 })
	pid, err := strconv.Atoi(filepath.Base(i.init(id)))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil { // its Sandbox crashes
		t.Fatal(err)
	}
	i.untilLog(id, "the Sandbox ended by itself")
	i.untilState(id, wire.StateFailed) // right after it was adopted
	i.change(id, fleet.Run)
	i.untilState(id, wire.StateRunning)
	if by := i.received(); len(by) > 0 {
		t.Errorf("somebody pushed, and no person did: %q", by)
	}
	i.bridge(id)
	i.sh(id, "git push -q origin HEAD:refs/heads/mine")
	n := len(i.received())
	if n == 0 {
		t.Error("a person's push is not in the record: this shows nothing")
	}
	i.change(id, fleet.Remove)
	i.untilState(id, wire.StateRemoved)
	if by := i.received(); len(by) != n {
		t.Errorf("somebody pushed at the end: %q", by)
	}
}
