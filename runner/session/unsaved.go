package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// countLimit bounds git's count of what is unsaved, so that a huge Workspace doesn't keep a Session awake.
const countLimit = 10 * time.Second

// What git is asked. A person's own configuration (status.showUntrackedFiles, a submodule's ignore) makes none of it less.
var (
	// Each file is counted, not the folder of new ones that holds it.
	changed = []string{"status", "--porcelain", "-z", "--untracked-files=all", "--ignore-submodules=none"}
	// --all is with every HEAD, also one that is on no branch (a checkout of a commit, a rebase, another worktree). Tags come with a
	// fetch and may name what no branch has; stashes are counted apart, since each is made of several commits.
	unpushed = []string{"rev-list", "--count", "--exclude=refs/tags/*", "--exclude=refs/stash", "--exclude=refs/remotes/*", "--all", "--not", "--remotes"}
	stashed  = []string{"stash", "list", "--format=%H"}
)

// countFirst is how long after a boot is counted for the first time, on the Session's page.
const countFirst = 10 * time.Second

// watchUnsaved keeps the count that people see fresh while somebody or something is at work. It returns when the Sandbox has ended
// or the Runner stops.
func (m *Machine) watchUnsaved(s sandbox.Sandbox) {
	timer := time.NewTimer(min(countFirst, m.countEvery))
	defer timer.Stop()
	for counted := (time.Time{}); ; {
		select {
		case <-s.Done():
			return
		case <-m.life.Done():
			return
		case <-timer.C:
		}
		timer.Reset(m.countEvery)
		if !m.Followed() || !m.act.since(counted) {
			continue
		}
		counted = time.Now()
		unsaved := m.count(m.life)
		select {
		case <-s.Done():
			return
		case <-m.life.Done():
			return
		default:
		}
		if unsaved == nil || !m.act.isOpen() { // it is going to sleep, which counts by itself
			continue
		}
		m.edit(func(st *State) { st.Unsaved = unsaved }) //nolint:errcheck // a count that is not kept is made again
		m.track.Tell()
	}
}

// Count asks git in the Sandbox, as the Workspace's user, what exists in the Workspace only. What git can't say within
// the limit is unknown, never zero.
func (m *Machine) Count(ctx context.Context) {
	if unsaved := m.count(ctx); unsaved != nil {
		m.edit(func(st *State) { st.Unsaved = unsaved }) //nolint:errcheck // a count that is not kept is made again
	}
}

// count is nil where nothing runs that could be asked.
func (m *Machine) count(ctx context.Context) *wire.Unsaved {
	c := m.client()
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, countLimit)
	defer cancel()
	unsaved := &wire.Unsaved{}
	var err error
	if unsaved.Files, err = m.files(ctx, c); err == nil {
		unsaved.Commits, err = m.commits(ctx, c)
	}
	if err != nil {
		unsaved = &wire.Unsaved{Unknown: m.log().Text(uncounted(ctx, err))}
	}
	unsaved.At = time.Now().UnixMilli()
	return unsaved
}

func uncounted(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, agent.ErrNotFound):
		return "there is no git in the image"
	case ctx.Err() != nil:
		return fmt.Sprintf("git did not answer within %s", countLimit)
	}
	return err.Error()
}

func (m *Machine) git(ctx context.Context, c *agent.Client, id string, w *limited, args ...string) error {
	m.mu.Lock()
	img := m.base.Meta.Image
	m.mu.Unlock()
	exit, err := c.Run(ctx, agent.Cmd{
		ID: fmt.Sprintf("%s-%d", id, time.Now().UnixNano()), Argv: append([]string{"git", "--no-optional-locks"}, args...),
		Env: m.b.Env(build.WithCaches(img), m.login(), "LC_ALL=C", "GIT_TERMINAL_PROMPT=0"), Dir: build.WorkspaceGuest, User: img.User, Split: true,
	}, w, &limited{left: 4096})
	if err != nil {
		return err
	}
	if exit.Code != 0 {
		return fmt.Errorf("git ended with exit code %d", exit.Code)
	}
	return nil
}

func (m *Machine) files(ctx context.Context, c *agent.Client) (int, error) {
	w := &limited{left: 64 << 20, keep: true}
	if err := m.git(ctx, c, "unsaved-files", w, changed...); err != nil {
		return 0, err
	}
	return entries(w.b.Bytes()), nil
}

// entries counts those of git status --porcelain -z: a rename or copy is followed by the old name.
func entries(b []byte) int {
	n := 0
	parts := bytes.Split(b, []byte{0})
	for i := 0; i < len(parts); i++ {
		if len(parts[i]) < 3 {
			continue
		}
		n++
		if bytes.ContainsAny(parts[i][:2], "RC") {
			i++
		}
	}
	return n
}

func (m *Machine) commits(ctx context.Context, c *agent.Client) (int, error) {
	w := &limited{left: 64, keep: true}
	if err := m.git(ctx, c, "unsaved-commits", w, unpushed...); err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(w.b.String()))
	if err != nil || n < 0 {
		return 0, errors.New("git did not print a count")
	}
	w = &limited{left: 4 << 20, keep: true}
	if err := m.git(ctx, c, "unsaved-stashes", w, stashed...); err != nil {
		return 0, err
	}
	return n + bytes.Count(w.b.Bytes(), []byte{'\n'}), nil
}

// limited takes so many bytes and then fails; what a Sandbox prints has no other end.
type limited struct {
	left int
	keep bool
	b    bytes.Buffer
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errors.New("more output than expected")
	}
	if l.keep {
		l.b.Write(p)
	}
	return len(p), nil
}
