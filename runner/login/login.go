// Package login finds out which environment a login shell in a Sandbox ends with, so that every process the Runner starts there
// gets it, as a terminal on the person's own machine would (ADR 0009, "The login environment"). Installers such as mise, rustup
// and nvm put themselves on PATH by way of ~/.bashrc and ~/.profile, which nothing the Runner starts reads on its own.
//
// What runs here was written by strangers: startup files print, exec another shell, exit, set -e, and hang (facts/recipes.md
// B1 to B3). The shell has no terminal and no input, and its whole tree is killed at the [Limit].
package login

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
)

const (
	// Limit is how long a probe takes at most.
	Limit = 10 * time.Second
	// MaxSize is the size in bytes of the largest environment that is taken over.
	MaxSize = 64 << 10
)

// Env is what a login shell ended with, beside what it began with. The nil Env is none.
type Env struct {
	// Entries are NAME=value, as bytes since JSON would mend what is not UTF-8.
	Entries [][]byte `json:"entries,omitempty"`
	Unset   []string `json:"unset,omitempty"` // what the startup files took away
}

// Over is env with e over it.
func (e *Env) Over(env []string) []string {
	if e == nil {
		return env
	}
	out := slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return slices.Contains(e.Unset, name(entry)) })
	for _, entry := range e.Entries {
		out = append(out, string(entry))
	}
	return out
}

// Client runs a command in the Sandbox to its end, and kills its tree when ctx ends: an agent.Client.
type Client interface {
	Run(ctx context.Context, cmd agent.Cmd, stdout, stderr io.Writer) (agent.Exit, error)
}

// Probe is one look at a Sandbox.
type Probe struct {
	Client Client
	ID     string // of its commands at the agent: new for each Probe
	// Env is what the shell begins with. No Variable is in it.
	Env       []string
	Dir, User string
	// Drop are names that are not taken over: those of Variables, and what the caller sets anyway.
	Drop func(name string) bool
	// Holds says whether an entry contains a value that must not be kept.
	Holds func(entry string) bool

	limit time.Duration // zero: Limit
}

// suspect is when a second shell begins that tells which file the first one hangs in, as a part of the limit.
const suspect = 0.7

// Run probes: with bash -lic, else with sh -lc. Without either, or when none of them gives an environment, env is nil. warning
// is a sentence for the Environment's author when something is wrong with the startup files. The error is that ctx ended, or that
// the Sandbox did.
func (p Probe) Run(ctx context.Context) (env *Env, warning string, err error) {
	p.limit = cmp.Or(p.limit, Limit)
	limited, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	for _, sh := range []shell{bash, posix} {
		out, ended, err := p.shell(limited, sh)
		switch {
		case ctx.Err() != nil:
			return nil, "", context.Cause(ctx)
		case errors.Is(err, agent.ErrNotFound), errors.Is(err, agent.ErrDenied), errors.Is(err, agent.ErrInterpreter):
			continue
		case err != nil && limited.Err() == nil:
			return nil, "", err
		case !out.complete && !ended:
			return nil, fmt.Sprintf("the login shell (%s) did not end within %d s, so processes don't get its environment: %s", sh.words, int(p.limit.Seconds()), out.where()), nil
		case !out.complete:
			return nil, fmt.Sprintf("the login shell (%s) ended before it could be asked, so processes don't get its environment: %s", sh.words, out.where()), nil
		case len(out.env) > MaxSize:
			return nil, fmt.Sprintf("the login shell's environment is larger than %d KiB, so processes don't get it", MaxSize>>10), nil
		}
		return p.take(out.env), "", nil
	}
	return nil, "", nil
}

// shell asks a shell as it starts by itself. When that gives no answer, another one reads the same files under supervision: it
// answers even if one of them ends it, and tells where it is.
func (p Probe) shell(ctx context.Context, sh shell) (out answer, ended bool, err error) {
	again, giveUp := context.WithCancel(ctx)
	defer giveUp()
	plain := p.ask(ctx, sh.name, sh.plain)
	late := time.NewTimer(time.Duration(suspect * float64(p.limit)))
	defer late.Stop()
	select {
	case first := <-plain:
		if first.err == nil && !first.complete {
			first = <-p.ask(again, sh.name+"-again", sh.supervised)
		}
		return first.answer, first.err == nil, first.err
	case <-late.C:
	}
	second := p.ask(again, sh.name+"-again", sh.supervised)
	first := <-plain
	giveUp()
	if traced := <-second; !first.complete {
		first.at = traced.at
	}
	return first.answer, first.err == nil, first.err
}

type end struct {
	answer
	err error
}

func (p Probe) ask(ctx context.Context, id string, argv func(mark string) []string) <-chan end {
	done := make(chan end, 1)
	go func() {
		mark := rand.Text() + rand.Text()
		o, t := &output{mark: []byte(mark)}, &trace{mark: []byte(mark)}
		_, err := p.Client.Run(ctx, agent.Cmd{ID: p.ID + "-" + id, Argv: argv(mark), Env: p.Env, Dir: p.Dir, User: p.User, Split: true}, o, t)
		env, complete := o.result()
		done <- end{answer{env: env, complete: complete, at: t.last()}, err}
	}()
	return done
}

// answer is what a shell said of its environment, and where it was last.
type answer struct {
	env      []byte
	complete bool
	at       string
}

func (a answer) where() string {
	if a.at == "" {
		return "which of its startup files is at fault could not be told"
	}
	return "look at " + a.at
}

// take makes an Env of what /proc/self/environ says.
func (p Probe) take(environ []byte) *Env {
	e := &Env{}
	seen := map[string]bool{}
	for _, entry := range bytes.Split(environ, []byte{0}) {
		n := name(string(entry))
		seen[n] = true
		if !carries(n) || p.Drop != nil && p.Drop(n) || p.Holds != nil && p.Holds(string(entry)) {
			continue
		}
		e.Entries = append(e.Entries, bytes.Clone(entry))
	}
	for _, entry := range p.Env {
		if n := name(entry); !seen[n] && carries(n) && !slices.Contains(e.Unset, n) && (p.Drop == nil || !p.Drop(n)) {
			e.Unset = append(e.Unset, n)
		}
	}
	return e
}

// own is what belongs to the shell or the terminal that it was seen in, not to the next one.
var own = []string{"_", "PWD", "OLDPWD", "SHLVL", "PPID", "TERM", "COLUMNS", "LINES", "SHELLOPTS", "BASHOPTS", "BASH_ENV", "BASH_XTRACEFD"}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// carries says whether a name is carried over. Exported functions (BASH_FUNC_x%%) are not: a function would stand in for a command in every
// script, where the login shell of a person has it only at the prompt; and who wants it there gets it from ~/.bashrc, which
// terminals and Claude Code's Bash tool read themselves.
func carries(name string) bool { return identifier.MatchString(name) && !slices.Contains(own, name) }

func name(entry string) string {
	n, _, _ := strings.Cut(entry, "=")
	return n
}

// IDPrefix begins the IDs of all Probes' commands.
const IDPrefix = "login-"

// Sweep ends shells of a Probe whose Runner was killed. It is called when no other Probe of the Sandbox is under way.
func Sweep(ctx context.Context, c *agent.Client) error {
	list, err := c.List(ctx)
	if err != nil {
		return err
	}
	for _, s := range list {
		if !strings.HasPrefix(s.ID, IDPrefix) {
			continue
		}
		if err := c.Signal(ctx, s.ID, 9, true); err != nil {
			return err
		}
		if _, err := c.Wait(ctx, s.ID); err != nil {
			return err
		}
		if err := c.Forget(ctx, s.ID); err != nil {
			return err
		}
	}
	return nil
}
