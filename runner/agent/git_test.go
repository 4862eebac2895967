package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

const remote = "https://github.example/octo/app.git"

// withGit tells the Sandbox's git who the person is, and answers what it asks.
func (b *box) withGit(reply func(Question) Reply) (asked func() []Question) {
	b.t.Helper()
	if err := b.Git(ctx(b.t), Git{Remotes: []string{remote}, Name: `Ana "the" \ First`, Email: "7+ana@users.noreply.github.example"}); err != nil {
		b.t.Fatal(err)
	}
	var mu sync.Mutex
	var all []Question
	c, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for seen := int64(0); ; {
			list, err := b.Asked(c, seen)
			if err != nil {
				return
			}
			for _, q := range list {
				seen = q.ID
				mu.Lock()
				all = append(all, q)
				mu.Unlock()
				go b.Answer(c, q.ID, reply(q)) //nolint:errcheck // who asks sees it
			}
		}
	}()
	b.t.Cleanup(func() { stop(); <-done })
	return func() []Question {
		mu.Lock()
		defer mu.Unlock()
		return append([]Question(nil), all...)
	}
}

// fill is what git gives a program that asks for the credentials of a URL.
func fill(url string) string {
	return fmt.Sprintf("printf 'url=%s\\n\\n' | GIT_TERMINAL_PROMPT=0 git credential fill 2>&1 || true", url)
}

func TestGitAsksTheRunnerForTheCredentialsOfTheRemoteAlone(t *testing.T) {
	t.Parallel()
	b := boot(t, image{Files: map[string]string{"/etc/gitconfig": "[user]\n\tname = The Image\n[alias]\n\tx = status\n"}})
	ends := time.Now().Add(time.Hour)
	asked := b.withGit(func(Question) Reply { return Reply{Username: "x-access-token", Password: "secret-1", Expires: ends} })
	for _, who := range []string{"", "coder", "1234"} {
		out, _ := b.run(Cmd{Argv: []string{"sh", "-c", fill(remote)}, User: who})
		if !strings.Contains(out, "username=x-access-token\npassword=secret-1\n") || strings.Contains(out, "claude-hub") {
			t.Errorf("as %q: %q", who, out)
		}
	}
	for _, other := range []string{"https://github.example/octo/other.git", "https://elsewhere.example/octo/app.git", "http://github.example/octo/app.git"} {
		if out := b.sh(fill(other)); strings.Contains(out, "secret-1") || !strings.Contains(out, "terminal prompts disabled") {
			t.Errorf("%s: %q", other, out)
		}
	}
	all := asked()
	if len(all) != 3 || all[0].Protocol != "https" || all[0].Host != "github.example" || all[0].Rejected != "" {
		t.Errorf("asked %+v", all)
	}
	// The image's own system configuration counts more, and is all there still.
	if out := b.sh("git config user.name; git config user.email; git config alias.x; stat -c '%a %u' /etc/gitconfig"); out !=
		"The Image\n7+ana@users.noreply.github.example\nstatus\n644 0\n" {
		t.Errorf("%q", out)
	}
	if out := b.sh("grep -r secret-1 /etc /run /root /home || true; cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep secret-1 || true"); out != "" {
		t.Errorf("the secret is in %q", out)
	}
}

func TestThePersonsOwnConfigurationCountsMore(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	b.withGit(func(Question) Reply { return Reply{Username: "u", Password: "from-the-hub"} })
	if out := b.sh("git config user.name; git config user.email"); out != "Ana \"the\" \\ First\n7+ana@users.noreply.github.example\n" {
		t.Errorf("%q", out)
	}
	own := "git config --global user.name Me; git config --global credential.%[1]s.helper ''; " +
		"git config --global --add credential.%[1]s.helper '!f() { echo username=me; echo password=mine; }; f'; git config user.name; "
	if out := b.sh(fmt.Sprintf(own, remote) + fill(remote)); !strings.HasPrefix(out, "Me\n") || !strings.Contains(out, "password=mine\n") {
		t.Errorf("%q", out)
	}
}

func TestARefusalIsALineAndGitGoesOn(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	b.withGit(func(Question) Reply { return Reply{Says: "there is none,\nreally"} })
	if out := b.sh(fill(remote)); !strings.Contains(out, "claude-hub: there is none,really\n") || !strings.Contains(out, "terminal prompts disabled") {
		t.Errorf("%q", out)
	}
	// To the person's own helper, and so to the terminal, which is asked after it.
	own := "git config --global credential.helper '!f() { echo username=me; echo password=mine; }; f'; "
	if out := b.sh(own + fill(remote)); !strings.Contains(out, "password=mine\n") {
		t.Errorf("%q", out)
	}
}

func TestWhoPushesWithoutTheRightIsToldSoAndAskedForTheirOwnCredentials(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	b.withGit(func(Question) Reply {
		return Reply{Username: "u", Password: "p", ReadOnly: "pushing needs write access"}
	})
	// The agent stands for git-remote-https, which each of them starts.
	for argv0, want := range map[string]bool{"git fetch origin": false, "git push origin": true, "git send-pack --stateless-rpc": true, "make": false} {
		words := strings.Fields(argv0)
		line := fmt.Sprintf("exec -a %s sh -c 'printf \"protocol=https\\nhost=github.example\\n\\n\" | /agent agent git-credential get; true' %s", words[0], strings.Join(words[1:], " "))
		out, _ := b.run(Cmd{Argv: []string{"bash", "-c", line}})
		if strings.Contains(out, "password=p\n") == want || strings.Contains(out, "claude-hub: pushing needs write access\n") != want {
			t.Errorf("%s: %q", argv0, out)
		}
	}
}

func TestAPasswordThatWasNotAcceptedIsTold(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	asked := b.withGit(func(Question) Reply { return Reply{} })
	b.sh("printf 'url=" + remote + "\\nusername=u\\npassword=old\\n\\n' | git credential reject; printf 'url=" + remote + "\\nusername=u\\npassword=new\\n\\n' | git credential approve")
	if all := asked(); len(all) != 1 || all[0].Rejected != Sum("old") {
		t.Errorf("asked %+v", all)
	}
}

func TestQuestionsThatNobodyAnsweredAreHeardByTheNextRunner(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	if err := b.Git(ctx(t), Git{Remotes: []string{remote}}); err != nil {
		t.Fatal(err)
	}
	id := b.start(Cmd{Argv: []string{"sh", "-c", fill(remote)}})
	first, err := b.Asked(ctx(t), 0)
	if err != nil || len(first) != 1 {
		t.Fatalf("%+v %v", first, err)
	}
	short, cancel := context.WithTimeout(ctx(t), 50*time.Millisecond)
	defer cancel()
	if again, err := b.Asked(short, first[0].ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a question was told twice: %+v %v", again, err)
	}
	again, err := b.Asked(ctx(t), 0)
	if err != nil || len(again) != 1 || again[0] != first[0] {
		t.Fatalf("%+v %v", again, err)
	}
	for range 2 {
		if err := b.Answer(ctx(t), again[0].ID, Reply{Username: "u", Password: "late"}); err != nil {
			t.Error(err)
		}
	}
	b.wait(id)
	if left, err := b.Asked(short, 0); err == nil {
		t.Errorf("still open: %+v", left)
	}
}

func TestAFloodOfQuestionsHoldsUpNothingElse(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	if err := b.Git(ctx(t), Git{Remotes: []string{remote}}); err != nil {
		t.Fatal(err)
	}
	id := b.start(Cmd{Argv: []string{"bash", "-c", `for i in $(seq 60); do (printf 'protocol=https\nhost=h%s\n\n' "$(head -c 900 /dev/zero | tr '\0' x)" | /agent agent git-credential get 2>&1) & done; wait`}})
	until(t, "as many questions as there may be", func() (bool, string) {
		list, err := b.Asked(ctx(t), 0)
		return len(list) == maxAsks, fmt.Sprint(len(list), err)
	})
	b.sh("true")
	if now, _ := b.rss(); now > 40<<20 {
		t.Errorf("the agent has %d MB", now>>20)
	}
	list, err := b.Asked(ctx(t), 0)
	if err != nil || len(list) > maxAsks {
		t.Fatalf("%d questions, %v", len(list), err)
	}
	if err := b.Signal(ctx(t), id, 9, true); err != nil {
		t.Fatal(err)
	}
	until(t, "those who are gone being forgotten", func() (bool, string) {
		short, cancel := context.WithTimeout(ctx(t), 20*time.Millisecond)
		defer cancel()
		list, err := b.Asked(short, 0)
		return err != nil, fmt.Sprint(len(list))
	})
	if _, err := b.Hello(ctx(t)); err != nil {
		t.Error(err)
	}
}

func TestAGitconfigThatIsNoPlainFileIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := boot(t, image{Links: map[string]string{"/etc/gitconfig": "/usr/share/gitconfig"}})
	err := b.Git(ctx(t), Git{Remotes: []string{remote}, Name: "a", Email: "b"})
	if err == nil || !strings.Contains(err.Error(), "knows neither the Session's person") {
		t.Errorf("%v", err)
	}
	if out := b.sh("readlink /etc/gitconfig"); out != "/usr/share/gitconfig\n" {
		t.Errorf("%q", out)
	}
}

func TestTheIncludeIsWrittenOnceAndKeepsOwnersMode(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	b.sh("printf '[user]\\n\\tname = x\\n' >/etc/gitconfig; chmod 640 /etc/gitconfig")
	for range 2 {
		if err := b.Git(ctx(t), Git{}); err != nil {
			t.Fatal(err)
		}
	}
	if out := b.sh("grep -c include /etc/gitconfig; stat -c %a /etc/gitconfig; git config user.name"); out != "1\n640\nx\n" {
		t.Errorf("%q", out)
	}
}

// An agent of protocol 1 answers what it knows, and says that it is too old for the rest.
func TestAnAgentOfTheVersionBeforeIsSpokenTo(t *testing.T) {
	t.Parallel()
	c := &Client{Dial: func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			_, b, _ := readFrame(theirs, maxHeader, nil)
			var h header
			_ = json.Unmarshal(b, &h)
			if h.Payload > 0 {
				_, _, _ = readFrame(theirs, maxPayload, nil)
			}
			if h.Version != 1 {
				reply(theirs, nil, fail(CodeVersion, "the request is in version %d of the protocol; this Sandbox's agent speaks 1", h.Version))
				return
			}
			reply(theirs, Hello{Version: 1, BootID: "old"}, nil)
		}()
		return ours, nil
	}}
	if h, err := c.Hello(ctx(t)); err != nil || h.BootID != "old" {
		t.Errorf("%+v %v", h, err)
	}
	if err := c.Git(ctx(t), Git{}); !errors.Is(err, ErrVersion) {
		t.Errorf("%v", err)
	}
}
