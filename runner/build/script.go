package build

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// leftoverGrace is how long processes that a bootstrap left get between SIGTERM and SIGKILL.
const leftoverGrace = 5 * time.Second

// RunScript runs a script as RunCommand does, and says in the log when it has been silent for long.
func (b *Builder) RunScript(ctx context.Context, s sandbox.Sandbox, log *Log, phase, boot string, cmd agent.Cmd) (agent.Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go b.sayStillRunning(ctx, log, phase)
	return b.RunCommand(ctx, s, log, phaseWords(phase), boot, cmd, endedDuring(phase))
}

// RunCommand starts a process, or finds it running under its ID, and follows it into the log to its end. It returns when
// its process has ended and its output is kept, whatever else holds its pipe open (facts/recipes.md B5). When ctx ends,
// the process goes on: what becomes of the Sandbox is the caller's decision. boot is the agent's name of its boot, what names it
// in errors, and ended is the error when the Sandbox ends first.
func (b *Builder) RunCommand(ctx context.Context, s sandbox.Sandbox, log *Log, what, boot string, cmd agent.Cmd, ended error) (agent.Exit, error) {
	log.Begin(cmd.ID + "@" + boot)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.Done():
			// What the agent said before it ended is read first, if it comes through.
			select {
			case <-time.After(time.Second):
				cancel(ended)
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
	}()
	c := Dial(s)
	tries := 0
	for {
		exit, err := follow(ctx, c, log, cmd)
		var said *agent.Error
		switch {
		case err == nil:
			return exit, nil
		case ctx.Err() != nil:
			return exit, context.Cause(ctx)
		case errors.As(err, &said), errors.Is(err, log.Failed()):
			return exit, err
		}
		// The connection broke although the Sandbox lives: the process is still there.
		if tries++; tries == 10 {
			return exit, fmt.Errorf("%s can't be followed: %w", what, err)
		}
		select {
		case <-time.After(time.Duration(tries) * 100 * time.Millisecond):
		case <-ctx.Done():
			return exit, context.Cause(ctx)
		}
	}
}

func follow(ctx context.Context, c *agent.Client, log *Log, cmd agent.Cmd) (agent.Exit, error) {
	started, err := c.Start(ctx, cmd)
	if err != nil {
		return agent.Exit{}, err
	}
	if started.DirFallback {
		log.Mark("%s can't be entered, so the script starts in /", cmd.Dir)
	}
	if err := log.Follow(ctx, c, cmd.ID); err != nil {
		return agent.Exit{}, err
	}
	return c.Wait(ctx, cmd.ID)
}

func endedDuring(phase string) error {
	return &Failed{wire.Failure{Phase: phase, Code: CodeEnded, Message: fmt.Sprintf("the Sandbox ended in the middle of %s", phaseWords(phase))}}
}

func (b *Builder) sayStillRunning(ctx context.Context, log *Log, phase string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(b.cfg.Quiet - min(log.quiet(), b.cfg.Quiet) + 10*time.Millisecond):
		}
		if q := log.quiet(); q >= b.cfg.Quiet {
			log.Mark("%s is still running, last output %s ago", phaseWords(phase), roughly(q))
			select {
			case <-ctx.Done():
				return
			case <-time.After(b.cfg.Quiet):
			}
		}
	}
}

func roughly(d time.Duration) string {
	if d >= time.Minute {
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
}

// Script makes a command of a script's text.
func Script(id, name, body string, env []string, dir, user string) agent.Cmd {
	return agent.Cmd{ID: id, Script: &agent.Script{Name: name, Body: []byte(body)}, Env: env, Dir: dir, User: user}
}

// leftovers names processes in a few words: "2 background processes stopped: redis-server, sleep". Empty when there
// are none. A name is masked before its folder is cut off: what is left of a value with a slash could not be.
func leftovers(set *redact.Set, procs []agent.Process, verb string) string {
	if len(procs) == 0 {
		return ""
	}
	count := map[string]int{}
	for _, p := range procs {
		count[filepath.Base(set.Text(p.Argv[0]).String())]++
	}
	names := make([]string, 0, len(count))
	for n, k := range count {
		if k > 1 {
			n = fmt.Sprintf("%s (%d)", n, k)
		}
		names = append(names, n)
	}
	sort.Strings(names)
	more := ""
	if len(names) > 8 {
		more = fmt.Sprintf(" and %d more", len(names)-8)
		names = names[:8]
	}
	word := "processes"
	if len(procs) == 1 {
		word = "process"
	}
	return fmt.Sprintf("%d background %s %s: %s%s", len(procs), word, verb, strings.Join(names, ", "), more)
}
