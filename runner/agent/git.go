package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// How git in the Sandbox finds the Runner. /etc/gitconfig includes a file in memory, which is gone with the boot: so it is
// there for every user, under sudo and in Claude Code alike, and whatever the person's own configuration says comes after it
// and counts more. Nothing in it is secret.
const (
	gitFolder  = "/run/claude-hub"
	gitSocket  = gitFolder + "/git.sock"
	gitConfig  = "gitconfig"
	gitInclude = "# Who commits, and where credentials come from: claude-hub, for this Session. Yours, further down or elsewhere, count more.\n" +
		"[include]\n\tpath = " + gitFolder + "/" + gitConfig + "\n"
)

const (
	// maxAsks bounds how many ask at once; each keeps a connection and a few KiB.
	maxAsks     = 16
	maxQuestion = 16 << 10
	maxAskText  = 1 << 10
	// askLimit is how long git waits: a Runner asks its Hub, which asks GitHub.
	askLimit     = 60 * time.Second
	maxRemotes   = 16
	maxGitConfig = 1 << 20
)

// gitAsks are the questions of git in this Sandbox that wait for the Runner.
type gitAsks struct {
	mu      sync.Mutex
	listens bool
	last    int64
	open    map[int64]*ask
	news    chan struct{} // closed at the next question; nil before anybody waits for it
}

type ask struct {
	q     Question
	reply chan Reply // holds one
}

// setUp writes g's configuration beneath root and begins to listen. Repeated, it changes what is said. Its error is a
// sentence; what could be done is done nevertheless.
func (a *gitAsks) setUp(root string, g Git) error {
	content, err := g.config()
	if err != nil {
		return err
	}
	if err := a.listen(root); err != nil {
		return fail(CodeInternal, "git in the Sandbox gets no credentials from the Hub: %v", err)
	}
	dir, err := unix.Open(root+gitFolder, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		err = replace(dir, gitConfig, content, 0o644)
		unix.Close(dir)
	}
	if err == nil {
		err = include(root)
	}
	if err != nil {
		return fail(CodeInternal, "git in the Sandbox knows neither the Session's person nor the Hub's credentials: %v", err)
	}
	return nil
}

// config is g in git's words.
func (g Git) config() ([]byte, error) {
	if len(g.Remotes) > maxRemotes {
		return nil, fail(CodeBad, "git is told of at most %d remotes", maxRemotes)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fail(CodeInternal, "the agent's own path is unknown: %v", err)
	}
	var b strings.Builder
	if g.Name != "" && g.Email != "" {
		fmt.Fprintf(&b, "[user]\n\tname = %s\n\temail = %s\n", quoted(g.Name), quoted(g.Email))
	}
	for _, r := range g.Remotes {
		u, err := url.Parse(r)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || strings.ContainsFunc(r, func(c rune) bool { return c < ' ' }) {
			return nil, fail(CodeBad, "%q is no URL of a remote without credentials", clip(r, maxArg))
		}
		// An absolute path is run as it stands. By URL and not by host, so that for other Repos of the same host only the
		// person's own credentials are asked for.
		fmt.Fprintf(&b, "[credential %s]\n\thelper = %s\n", quoted(r), quoted(fmt.Sprintf("%s agent %s", self, helperArg)))
	}
	return []byte(b.String()), nil
}

// quoted is a string as git's configuration takes it, for values and subsections.
func quoted(s string) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return -1
		}
		return c
	}, s)
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// include has /etc/gitconfig read the file in memory, before all that it says already. Who has none gets one. What is no
// plain file is the image's own way to configure git, and is left alone.
func include(root string) error {
	etc, err := openEtc(root)
	if err != nil {
		return fmt.Errorf("the image's /etc can't be used: %w", err)
	}
	defer unix.Close(etc)
	fd, err := unix.Openat(etc, gitConfig, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return replace(etc, gitConfig, []byte(gitInclude), 0o644)
	}
	if err != nil {
		return fmt.Errorf("/etc/gitconfig can't be read: %w", err)
	}
	f := os.NewFile(uintptr(fd), gitConfig)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxGitConfig {
		return errors.New("/etc/gitconfig is no plain file of a usual size")
	}
	b := make([]byte, st.Size)
	if n, err := f.ReadAt(b, 0); n < len(b) {
		return fmt.Errorf("/etc/gitconfig can't be read: %w", err)
	}
	if strings.Contains(string(b), gitInclude) {
		return nil
	}
	return replace(etc, gitConfig, append([]byte(gitInclude), b...), st.Mode&0o7777)
}

func (a *gitAsks) listen(root string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listens {
		return nil
	}
	if err := os.MkdirAll(root+gitFolder, 0o755); err != nil {
		return err
	}
	if err := os.Remove(root + gitSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", root+gitSocket)
	if err != nil {
		return err
	}
	// Whoever works in the Sandbox works for the Session's person.
	if err := os.Chmod(root+gitSocket, 0o666); err != nil {
		l.Close()
		return err
	}
	a.listens, a.open = true, map[int64]*ask{}
	go a.serve(l)
	return nil
}

func (a *gitAsks) serve(l net.Listener) {
	slots := make(semaphore, maxAsks)
	for {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(20 * time.Millisecond) // out of descriptors or memory for the moment
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			say(conn, "too many git commands ask for credentials at once.")
			conn.Close()
			continue
		}
		go func() {
			defer func() { <-slots }()
			defer conn.Close()
			a.take(conn)
		}()
	}
}

// take serves one helper: a Question, then its Reply.
func (a *gitAsks) take(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(ioLimit)) //nolint:errcheck // sockets have deadlines
	kind, b, err := readFrame(conn, maxQuestion, nil)
	var q Question
	if err != nil || kind != kindHeader || json.Unmarshal(b, &q) != nil {
		return
	}
	for _, s := range []string{q.Protocol, q.Host, q.Rejected} {
		if len(s) > maxAskText {
			return
		}
	}
	conn.SetDeadline(time.Time{}) //nolint:errcheck // as above
	n, waiting := a.put(q)
	defer a.drop(n)
	gone := make(chan struct{})
	go func() {
		conn.Read(make([]byte, 1)) //nolint:errcheck // any outcome means that nobody waits any more
		close(gone)
	}()
	late := time.NewTimer(askLimit)
	defer late.Stop()
	select {
	case r := <-waiting:
		conn.SetWriteDeadline(time.Now().Add(ioLimit)) //nolint:errcheck // as above
		writeJSON(conn, kindAnswer, r)                 //nolint:errcheck // the helper is gone
	case <-late.C:
		say(conn, fmt.Sprintf("the Runner gave no credentials within %s.", askLimit))
	case <-gone:
	}
}

// say is a Reply of nothing but words, to who may not read it.
func say(conn net.Conn, words string) {
	conn.SetWriteDeadline(time.Now().Add(time.Second)) //nolint:errcheck // sockets have deadlines
	writeJSON(conn, kindAnswer, Reply{Says: words})    //nolint:errcheck // the helper is gone
}

func (a *gitAsks) put(q Question) (int64, <-chan Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	q.ID = a.last
	k := &ask{q: q, reply: make(chan Reply, 1)}
	a.open[q.ID] = k
	if a.news != nil {
		close(a.news)
		a.news = nil
	}
	return q.ID, k.reply
}

func (a *gitAsks) drop(n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, n)
}

// answer gives who asked question n its Reply. Nobody may wait for it any more.
func (a *gitAsks) answer(n int64, r Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := a.open[n]; k != nil {
		delete(a.open, n)
		k.reply <- r
	}
}

// wait returns the open questions after number seen, the oldest first, once there is any; nil when ctx ends. A caller that
// begins anew asks with 0 and hears of those again that nobody answered.
func (a *gitAsks) wait(ctx context.Context, seen int64) []Question {
	for {
		a.mu.Lock()
		var out []Question
		for n, k := range a.open {
			if n > seen {
				out = append(out, k.q)
			}
		}
		if a.news == nil {
			a.news = make(chan struct{})
		}
		news := a.news
		a.mu.Unlock()
		if len(out) > 0 {
			slices.SortFunc(out, func(x, y Question) int { return int(x.ID - y.ID) })
			return out
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil
		}
	}
}
