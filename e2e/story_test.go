// Package e2e tells the whole story against the real binary: Hub and Runner as separate processes, a real registry, a
// real git remote, and both databases.
package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/store/storetest"
)

var long = flag.Bool("long", false, "tell the story on PostgreSQL as well")

func TestStory(t *testing.T) {
	databases := map[string]func(testing.TB) string{"sqlite": func(testing.TB) string { return "" }}
	if *long {
		databases["postgres"] = storetest.PostgreSQL
	}
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			tell(t, world.New(t, world.Options{Database: database(t), Hub: map[string]string{"encryption_keys": "[" + seal.NewKey() + "]"}}))
		})
	}
}

// story is a World with a way to say what should come next.
type story struct {
	*world.World
	t *testing.T
}

func tell(t *testing.T, w *world.World) {
	s := &story{World: w, t: t}
	image := w.Push("tools:1", imagetest.Busybox(t, func(c *v1.ConfigFile) {
		c.Config.User = "coder"
		c.Config.Env = append(c.Config.Env, "FROM_IMAGE=yes")
	}))

	s.badDocumentsAreRefusedWithTheirPlace()
	s.wants(w.CLI("session", "start", "--repo", w.Repo), 1, "", "no applied Environment yet")
	s.wants(w.CLI("env", "apply", "--repo", w.Repo), 1, "", "no draft yet")

	one := s.document(image, "mkdir -p /opt; echo tool one > /opt/tool; echo built with $FROM_IMAGE", "cat /opt/tool; id -un; ls")
	out := w.OK("env", "test", "--repo", w.Repo, "-f", one)
	for _, want := range []string{"built with yes", "tool one", "coder", "hello.sh"} {
		if !strings.Contains(out, want) {
			t.Errorf("the Test build's log lacks %q:\n%s", want, out)
		}
	}
	s.contains(w.OK("env", "apply", "--repo", w.Repo, "-m", "first"), "version 1")

	s.aFailedBootstrapIsNeverApplied(image)

	id := strings.TrimSpace(w.OK("session", "start", "--repo", w.Repo))
	s.aSessionRunsCommands(id)
	s.theWorkspaceOutlivesSleepAndVersions(id, image)
	s.killedProcessesLoseNothing(id)
	s.pagesShowIt(id)

	s.wants(w.CLIWith("no\n", "session", "rm", id), 1, "", "nothing was deleted")
	w.OK("session", "rm", id, "--yes")
	w.Eventually(30*time.Second, "the Session is gone", func() error {
		if r := w.CLI("session", "show", id); r.Code != 1 || !strings.Contains(r.Stderr, "no Session") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	w.Runner.Stop()
	w.Hub.Stop()
	s.wants(w.CLI("session", "ls"), 3, "", "can't reach the Hub")
}

func (s *story) contains(got, want string) {
	s.t.Helper()
	if !strings.Contains(got, want) {
		s.t.Errorf("want %q in: %s", want, got)
	}
}

// wants checks how a command ended.
func (s *story) wants(r world.Result, code int, stdout, stderr string) {
	s.t.Helper()
	if r.Code != code || !strings.Contains(r.Stdout, stdout) || !strings.Contains(r.Stderr, stderr) {
		s.t.Errorf("want code %d, stdout with %q, stderr with %q; got %s", code, stdout, stderr, r)
	}
}

// document writes an environment.yml and returns its path.
func (s *story) document(image, bootstrap, start string) string {
	s.t.Helper()
	path := filepath.Join(s.Dir, "environment.yml")
	text := fmt.Sprintf("image: %s\nbootstrap: |\n  %s\nstart: |\n  %s\ncpu: 1\nmemory: 512MiB\n", image, bootstrap, start)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *story) badDocumentsAreRefusedWithTheirPlace() {
	s.t.Helper()
	path := filepath.Join(s.Dir, "bad.yml")
	if err := os.WriteFile(path, []byte("imgae: x\ncpu: lots\n"), 0o644); err != nil {
		s.t.Fatal(err)
	}
	r := s.CLI("env", "validate", path)
	s.wants(r, 1, "", path+":1:1: ")
	s.wants(r, 1, "", path+":2:6: ")
	s.contains(r.Stderr, "image")
	s.wants(s.CLI("env", "save", "--repo", s.Repo, "-f", path), 1, "", path+":1:1: ")
	s.wants(s.CLI("env", "validate", "--nonsense"), 2, "", "--help")
	s.wants(s.CLI("env", "show", "--repo", "acme/secret"), 1, "", "no such Repo, or you have no access")
}

func (s *story) aFailedBootstrapIsNeverApplied(image string) {
	s.t.Helper()
	bad := s.document(image, "echo about to fail; exit 3", "true")
	r := s.CLI("env", "test", "--repo", s.Repo, "-f", bad)
	s.wants(r, 1, "about to fail", "bootstrap")
	s.contains(r.Stderr, "3")
	s.wants(s.CLI("env", "apply", "--repo", s.Repo), 1, "", "needs a passing Test build")
}

func (s *story) aSessionRunsCommands(id string) {
	s.t.Helper()
	exec := func(args ...string) world.Result {
		return s.CLI(append([]string{"session", "exec", id, "--"}, args...)...)
	}
	s.wants(exec("cat", "/opt/tool"), 0, "tool one", "")
	s.wants(exec("sh", "-c", "pwd; id -un; ./hello.sh"), 0, "/workspace\ncoder\nhello from the repository\n", "")
	s.wants(exec("sh", "-c", "echo out; echo err >&2; exit 7"), 7, "out\n", "err\n")
	s.wants(exec("sh", "-c", "kill -TERM $$"), 128+15, "", "")
	s.wants(exec("no-such-command"), 127, "", "no-such-command")
	s.wants(exec("/etc/passwd"), 126, "", "/etc/passwd")
	s.wants(s.CLIWith("to be\nor not\n", "session", "exec", "-i", id, "--", "wc", "-l"), 0, "2", "")
	s.wants(s.CLIWith("echo from a shell; exit 4\n", "session", "shell", id), 4, "from a shell", "")
	s.logs(id, "tool one", 1)
	s.wants(s.CLI("session", "exec", "00000000", "--", "true"), 125, "", "no Session")
}

func (s *story) theWorkspaceOutlivesSleepAndVersions(id, image string) {
	s.t.Helper()
	s.OK("session", "exec", id, "--", "sh", "-c", "echo mine > /workspace/mine")
	s.OK("session", "exec", "-u", "root", id, "--", "sh", "-c", "echo installed > /opt/by-hand")
	s.OK("session", "sleep", id)
	s.wants(s.CLI("session", "exec", id, "--", "true"), 125, "", "Wake it first")
	s.OK("session", "wake", id)
	s.wants(s.CLI("session", "exec", id, "--", "cat", "/workspace/mine", "/opt/by-hand"), 0, "mine\ninstalled\n", "")

	s.testsVariables(s.document(image, "mkdir -p /opt; echo tool two > /opt/tool; "+sums("/opt/sums")+`; echo "a token is $BUILT"`, "cat /opt/tool; "+sums("/tmp/sums")))
	s.contains(s.OK("env", "apply", "--repo", s.Repo), "version 2")
	s.wants(s.CLI("session", "exec", id, "--", "cat", "/opt/tool"), 0, "tool one", "")
	s.wants(s.CLIWith("no\n", "session", "restart", id), 1, "", "programs installed outside the Workspace and the disks will be gone")
	s.OK("session", "restart", id, "--yes")
	s.wants(s.CLI("session", "exec", id, "--", "cat", "/workspace/mine", "/opt/tool"), 0, "mine\ntool two\n", "")
	s.valuesArrived(id)
	s.wants(s.CLI("session", "exec", id, "--", "cat", "/opt/by-hand"), 1, "", "No such file")

	s.OK("session", "exec", id, "--", "sh", "-c", "echo cached > $XDG_CACHE_HOME/tool")
	s.wants(s.CLIWith("no\n", "session", "archive", id), 1, "", "package caches")
	s.OK("session", "archive", id, "--yes")
	s.wants(s.CLI("session", "wake", id), 1, "", "This Session is archived")
	s.OK("session", "restore", id, "--wake")
	s.wants(s.CLI("session", "exec", id, "--", "sh", "-c", "cat /workspace/mine /opt/tool; ls $XDG_CACHE_HOME"), 0, "mine\ntool two\n", "")
}

// variables are those of the story's second version, by name: one of each sort, with what a shell or a pipe could change.
var variables = map[string]string{
	"PLAIN":  "eu-1 = #1 $HOME ${X} 'q' \"qq\" \\ é 👩‍👧\n",
	"BUILT":  "-----BEGIN KEY-----\nMIIE+/=\n-----END KEY-----\n",
	"HIDDEN": "{\"a\": \"$b # c\"}\n\n",
	"LINKED": "shared = 'token' \\n\t!",
}

// names of variables, in the order of sums.
var names = []string{"PLAIN", "BUILT", "HIDDEN", "LINKED"}

// sums is a line of shell that writes the hash of each Variable, or that it isn't set.
func sums(file string) string {
	return `for n in ` + strings.Join(names, " ") + `; do eval "if [ -n \"\${$n+set}\" ]; then printf %s \"\$$n\" | sha256sum; else echo unset; fi"; done > ` + file
}

// summed is what sums writes where those unset are not set.
func summed(unset ...string) string {
	var b strings.Builder
	for _, n := range names {
		if slices.Contains(unset, n) {
			b.WriteString("unset\n")
		} else {
			fmt.Fprintf(&b, "%x  -\n", sha256.Sum256([]byte(variables[n])))
		}
	}
	return b.String()
}

// testsVariables test-builds a document with the story's Variables.
func (s *story) testsVariables(document string) {
	s.t.Helper()
	s.wants(s.CLIWith(variables["LINKED"], "shared", "create", "HUB_WIDE", "--sensitive"), 0, "HUB_WIDE is made.", "")
	s.wants(s.CLI("shared", "set", "HUB_WIDE=on-the-command-line"), 2, "", "every process of this host can read it")
	more, err := json.Marshal(variables["PLAIN"]) // which is a string of YAML, too
	if err != nil {
		s.t.Fatal(err)
	}
	text, err := os.ReadFile(document)
	if err != nil {
		s.t.Fatal(err)
	}
	text = append(text, "variables:\n  PLAIN: "+string(more)+"\n  BUILT: {sensitive: true, build: true}\n  HIDDEN: {sensitive: true}\n  LINKED: {link: HUB_WIDE}\n"...)
	built, hidden := filepath.Join(s.Dir, "built"), filepath.Join(s.Dir, "hidden")
	for path, b := range map[string][]byte{document: text, built: []byte(variables["BUILT"]), hidden: []byte(variables["HIDDEN"])} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	s.wants(s.CLI("env", "test", "--repo", s.Repo, "-f", document), 1, "", "This draft can't be tested: the Variables BUILT and HIDDEN have no value. Enter one for each first.")
	log := s.OK("env", "test", "--repo", s.Repo, "-f", document, "--value-file", "BUILT="+built, "--value-file", "HIDDEN="+hidden)
	s.contains(log, "a token is ")
	if strings.Contains(log, "MIIE") {
		s.t.Errorf("the log has a Sensitive value in it:\n%s", log)
	}
}

// valuesArrived compares the hashes that bootstrap, start script and an exec made of the Variables.
func (s *story) valuesArrived(id string) {
	s.t.Helper()
	exec := sums("/tmp/exec") + "; cat /opt/sums; echo; cat /tmp/sums; echo; cat /tmp/exec"
	want := summed("HIDDEN", "LINKED") + "\n" + summed() + "\n" + summed()
	if r := s.CLI("session", "exec", id, "--", "sh", "-c", exec); r.Stdout != want || r.Code != 0 {
		s.t.Errorf("bootstrap, start script and exec got other Variables:\n%s\nwant:\n%s", r, want)
	}
}

func (s *story) killedProcessesLoseNothing(id string) {
	s.t.Helper()
	s.OK("session", "exec", id, "--", "sh", "-c", "sleep 1000 > /dev/null 2>&1 < /dev/null & echo $! > /tmp/pid")
	s.wants(s.CLI("session", "exec", id, "--", "sh", "-c", "kill -0 $(cat /tmp/pid) && cat /workspace/mine"), 0, "mine", "")
	s.Runner.Kill()
	s.StartRunner()
	s.valuesArrived(id) // fetched anew: a Runner keeps them in memory only
	s.wants(s.CLI("session", "exec", id, "--", "sh", "-c", "kill -0 $(cat /tmp/pid) && cat /workspace/mine"), 0, "mine", "")
	s.Hub.Kill()
	s.StartHub()
	s.wants(s.CLI("session", "exec", id, "--", "sh", "-c", "kill -0 $(cat /tmp/pid) && cat /workspace/mine"), 0, "mine", "")
	var sessions []schema.Session
	if err := s.JSON(&sessions, "session", "ls", "-o", "json"); err != nil || len(sessions) != 1 || sessions[0].State != "running" {
		s.t.Errorf("one running Session: %+v, %v", sessions, err)
	}
}

func (s *story) pagesShowIt(id string) {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Timeout: 30 * time.Second}
	read := func(r *http.Response, err error) string {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			s.t.Fatalf("%s: %s %v\n%s", r.Request.URL, r.Status, err, b)
		}
		return string(b)
	}
	s.contains(read(browser.Get(s.URL+"/")), "Sign in")
	home := read(browser.PostForm(s.URL+"/sign-in", url.Values{"login": {"bob"}}))
	s.contains(home, s.Repo)
	s.contains(read(browser.Get(s.URL+"/repos/7/environment")), "tool two")
	s.contains(read(browser.Get(s.URL+"/repos/7/sessions/"+id)), "running")
}

func replace(t *testing.T, path, old, new string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), old) {
		t.Fatalf("%q is not in %s", old, b)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(b), old, new, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}
