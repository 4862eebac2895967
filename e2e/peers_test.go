package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// balancer sends each call to the next of the Hubs, or to the one after where that takes no connections. It keeps none open, so that
// nothing sticks.
type balancer struct {
	hubs []string
	n    atomic.Int64
	out  *http.Transport
}

func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	var err error
	if r.Body != nil {
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	first := b.n.Add(1)
	for i := range b.hubs {
		again := r.Clone(r.Context())
		again.Body, again.URL.Scheme, again.URL.Host = io.NopCloser(bytes.NewReader(body)), "http", b.hubs[(int(first)+i)%len(b.hubs)]
		var res *http.Response
		if res, err = b.out.RoundTrip(again); err == nil {
			return res, nil
		}
	}
	return nil, err
}

// twoHubs is a World whose two Hubs share a database, behind a balancer that everybody reaches them by.
type twoHubs struct {
	*story
	configs [2]string
	procs   [2]*world.Process
}

func newTwoHubs(t *testing.T) *twoHubs {
	t.Helper()
	w := world.Empty(t, world.Options{Database: storetest.PostgreSQL(t)})
	b := &balancer{out: &http.Transport{DisableKeepAlives: true}}
	listener, err := net.Listen("tcp", strings.TrimPrefix(w.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: &httputil.ReverseProxy{Transport: b, FlushInterval: -1, Rewrite: func(p *httputil.ProxyRequest) { p.Out.Host = p.In.Host }}}
	go server.Serve(listener) //nolint:errcheck // ends with the test
	t.Cleanup(func() { server.Close() })
	s := &twoHubs{story: &story{w, t}}
	text, err := os.ReadFile(w.Config)
	if err != nil {
		t.Fatal(err)
	}
	public := strings.TrimPrefix(w.URL, "http://")
	for i := range s.procs {
		own := world.FreeAddress(t)
		b.hubs = append(b.hubs, own)
		of := strings.Replace(string(text), "listen: "+public, fmt.Sprintf("listen: %s\n  url: %s\n  peer_url: http://%s", own, w.URL, own), 1)
		of = strings.Replace(of, "/data\n", fmt.Sprintf("/hub%d\n", i), 1)
		s.configs[i] = filepath.Join(w.Dir, fmt.Sprintf("hub%d.yml", i))
		if err := os.WriteFile(s.configs[i], []byte(of), 0o600); err != nil {
			t.Fatal(err)
		}
		s.start(i)
	}
	w.Token = strings.TrimSpace(w.OK("token", "--login", "ana", "--name", "e2e", "--config", s.configs[0]))
	w.Register()
	w.StartRunner()
	t.Cleanup(func() {
		for i, p := range s.procs {
			if t.Failed() {
				log := p.Log()
				t.Logf("end of the log of Hub %d:\n%s", i, log[max(0, len(log)-12<<10):])
			}
			p.Kill()
		}
	})
	return s
}

func (s *twoHubs) start(i int) {
	s.t.Helper()
	s.procs[i] = s.Start(fmt.Sprintf("Hub %d", i), "serve", "--config", s.configs[i])
	s.Eventually(60*time.Second, "the Hub serves", func() error {
		if !s.procs[i].Running() {
			s.t.Fatalf("the Hub ended:\n%s", s.procs[i].Log())
		}
		if !strings.Contains(s.procs[i].Log(), "the Hub serves") {
			return fmt.Errorf("its log says %q", s.procs[i].Log())
		}
		return nil
	})
}

func TestTerminalsAndCommandsWorkOverAnyHubAndOutliveTheirOwn(t *testing.T) {
	t.Parallel()
	s := newTwoHubs(t)
	s.applied(s.Push("peers:1", imagetest.Busybox(t, nil)), "true", "")
	id := strings.TrimSpace(s.OK("session", "start", "--repo", s.Repo))

	shell := s.tty("session", "shell", id)
	shell.types("echo up-$((20+3)) as-$$\r")
	shell.shows("up-23 as-")
	_, pid, _ := strings.Cut(shell.text(), "up-23 as-")
	pid, _, _ = strings.Cut(pid, "\r")
	for i := range 8 { // each of their calls goes to another Hub
		s.wants(s.CLIWith(fmt.Sprintf("%d\n", i), "session", "exec", "-i", id, "--", "sh", "-c", "read n; echo got $n"), 0, fmt.Sprintf("got %d\n", i), "")
	}
	s.copies(id)

	// After both were killed once, and once ended in good order, with the other there, each was the one that had them.
	for round, end := range []func(*world.Process){(*world.Process).Kill, (*world.Process).Kill, (*world.Process).Stop, (*world.Process).Stop} {
		i := round % 2
		c := s.Command("session", "exec", "-i", id, "--", "sh", "-c", fmt.Sprintf("echo $$ >/tmp/exec%d; cat", round))
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, "there?\n"); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		if line, err := lines.ReadString('\n'); line != "there?\n" {
			t.Fatalf("the command answers %q, %v", line, err)
		}

		end(s.procs[i])
		shell.types(fmt.Sprintf("echo again-%d-$((1+%d))-$$\r", round, round))
		shell.shows(fmt.Sprintf("again-%d-%d-%s\r\n", round, round+1, pid))

		// It goes on, or ends with an error and takes its process with it.
		_, _ = io.WriteString(in, "still?\n") // it may have ended
		line, _ := lines.ReadString('\n')
		_ = in.Close()
		err = c.Wait()
		switch {
		case line == "still?\n" && err == nil:
		case line == "" && c.ProcessState.ExitCode() == 125:
			s.Eventually(30*time.Second, "the command's process has ended", func() error {
				if r := s.CLI("session", "exec", id, "--", "sh", "-c", fmt.Sprintf("kill -0 $(cat /tmp/exec%d) 2>/dev/null && echo runs || echo gone", round)); r.Stdout != "gone\n" {
					return fmt.Errorf("%s", r)
				}
				return nil
			})
		default:
			t.Errorf("after its Hub was killed, or not, the command said %q and ended with %v", line, err)
		}
		s.start(i)
	}
	other := s.tty("session", "shell", id, "--attach", "newest")
	other.shows("up-23 as-" + pid) // the scrollback, from before both
	other.shows("again-3-4-" + pid)
	other.types("exit 7\r")
	if code := shell.ends(); code != 7 {
		t.Errorf("the shell ended with %d:\n%s", code, shell.text())
	}
	if code := other.ends(); code != 7 {
		t.Errorf("who looked on ended with %d:\n%s", code, other.text())
	}
	s.OK("session", "rm", id, "--yes")
}
