package model

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// slot is one Session at a time, with the model of its Workspace. Its operations come one after the other.
type slot struct {
	*model
	number int
	made   int // how many Sessions it has had
	id     string
	holds  workspace
	epoch  int  // names the dependency folder: one that was given up is never used again
	broken bool // nothing more is done with it
}

func (s *slot) String() string { return fmt.Sprintf("Session %d (%s)", s.number, s.id) }

// folder is the dependency folder that is used now.
func (s *slot) folder() string { return fmt.Sprintf("d%d/node_modules", s.epoch) }

func (s *slot) do(ctx context.Context, o op) {
	if s.broken || ctx.Err() != nil {
		return
	}
	limited, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	s.note("%s: %s", s, o)
	began := time.Now()
	err := s.try(limited, o)
	switch {
	case ctx.Err() != nil:
		return
	case limited.Err() != nil:
		s.broken = true
		now, rerr := s.c.FindSession(ctx, s.id)
		s.fault(&result.stuck, "stuck", "%s: %s did not end within %s: %v; it is %s, %v", s, o, opLimit, err, asJSON(now), rerr)
	case err != nil:
		s.broken = true
		s.fault(&result.stuck, "stuck", "%s: %s: %v", s, o, err)
	default:
		s.note("%s: op %d done after %s", s, o.n, time.Since(began).Round(time.Millisecond))
	}
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (s *slot) try(ctx context.Context, o op) error {
	switch o.what {
	case "write":
		return s.write(ctx, s.target(o, ""), o)
	case "write-dependency":
		return s.write(ctx, s.target(o, s.folder()+"/"), o)
	case "remove":
		return s.remove(ctx, o)
	case "rename":
		return s.rename(ctx, o)
	case "chmod":
		return s.chmod(ctx, o)
	case "link":
		return s.link(ctx, o)
	case "drop-dependencies":
		return s.giveUp(ctx, `rm -rf "$1"`, absent)
	case "move-dependencies":
		return s.giveUp(ctx, `[ ! -e "$1" ] || mv "$1" "$2"`, path.Dir(s.folder())+"/moved")
	case "read":
		return s.look(ctx)
	case "exec":
		out, _, err := s.exec(ctx, nil, `echo $(($1 * 3))`, fmt.Sprint(o.pick))
		if err == nil && strings.TrimSpace(out) != fmt.Sprint(o.pick*3) {
			err = fmt.Errorf("three times %d is %q", o.pick, out)
		}
		return err
	case "run":
		return s.run(ctx, o, 0, true)
	case "sleep":
		return s.to(ctx, "asleep", s.c.Sleep)
	case "wake":
		return s.to(ctx, "running", s.c.Wake)
	case "restart":
		return s.to(ctx, "running", s.c.Restart)
	case "nap":
		return s.to(ctx, "running", s.c.Sleep, s.c.Wake)
	case "archive":
		s.losesDisks()
		if err := s.to(ctx, "archived", s.c.Archive); err != nil {
			return err
		}
		return s.settle(ctx)
	case "pair":
		return s.pair(ctx, o)
	case "settle":
		return s.settle(ctx)
	case "new":
		if err := s.delete(ctx); err != nil {
			return err
		}
		return s.start(ctx)
	case "version":
		return s.newVersion(ctx)
	}
	return fmt.Errorf("nobody knows how to %s", o.what)
}

// start makes a Session, once: its work branch says which it is. What is in its Workspace then has to stay.
func (s *slot) start(ctx context.Context) error {
	s.made++
	s.epoch, s.holds = 0, workspace{}
	branch := fmt.Sprintf("model/s%d-%d", s.number, s.made)
	err := s.Insist(ctx, func() (bool, error) {
		all, err := s.c.Sessions(ctx, s.repo)
		if err != nil {
			return false, err
		}
		for _, one := range all {
			if one.WorkBranch == branch {
				s.id = one.ID
				return true, nil
			}
		}
		one, err := s.c.StartSession(ctx, s.repo, schema.StartSession{WorkBranch: branch})
		s.id = one.ID
		return err == nil, err
	})
	if err == nil {
		err = s.until(ctx, "running")
	}
	if err != nil {
		return err
	}
	found, err := s.list(ctx)
	if err == nil && found["README.md"] == "" {
		err = fmt.Errorf("its Workspace holds %v", found)
	}
	for name, sum := range found {
		s.holds.is(name, sum, true)
	}
	return err
}

// delete is asked for again until the Session is gone: that changes nothing.
func (s *slot) delete(ctx context.Context) error {
	return s.Insist(ctx, func() (bool, error) {
		err := s.c.DeleteSession(ctx, s.repo, s.id, s.id)
		if client.Is(err, fault.NotFound) {
			return true, nil
		}
		return false, err
	})
}

// asks is something that is asked of a Session.
type asks func(context.Context, int64, string) (schema.Session, error)

// ask asks for something; a refusal of what was asked for before, when no answer came, is one of what has happened since.
func (s *slot) ask(ctx context.Context, do asks) error {
	tries := 0
	return s.Insist(ctx, func() (bool, error) {
		tries++
		_, err := do(ctx, s.repo, s.id)
		if tries > 1 && client.Is(err, fault.Refused) {
			return true, nil
		}
		return err == nil, err
	})
}

// to asks for one thing after the other, and waits for the state that the last leads to.
func (s *slot) to(ctx context.Context, state string, all ...asks) error {
	for _, do := range all {
		if err := s.ask(ctx, do); err != nil {
			return err
		}
	}
	return s.until(ctx, state)
}

// losesDisks is what an archive gives up beside the Workspace.
func (s *slot) losesDisks() {
	for name, e := range s.holds {
		if strings.HasPrefix(name, s.folder()+"/") && e.may[0] != absent {
			s.holds.maybe(name, absent)
		}
	}
	s.epoch++
}

// until waits until the Session is in a state, and goes no further. There is no way to it over a failure.
func (s *slot) until(ctx context.Context, state string) error {
	now, err := s.wait(ctx, func(now schema.Session) bool { return now.State == state && !now.Restarting || now.State == "failed" })
	if err == nil && now.State == "failed" {
		return fmt.Errorf("it was to be %s and failed: %s", state, asJSON(now.Detail))
	}
	return err
}

func (s *slot) wait(ctx context.Context, fits func(schema.Session) bool) (now schema.Session, err error) {
	err = s.Insist(ctx, func() (bool, error) {
		now, err = s.c.WaitSession(ctx, s.repo, s.id, func(now schema.Session) bool { return !now.Unreachable && fits(now) }, nil)
		return err == nil, err
	})
	return now, err
}

// settle has the Session running, wherever it is now.
func (s *slot) settle(ctx context.Context) error {
	for {
		now, err := s.wait(ctx, func(now schema.Session) bool {
			switch now.State {
			case "running", "asleep", "archived", "failed":
				return !now.Restarting
			}
			return false
		})
		if err != nil {
			return err
		}
		switch now.State {
		case "running":
			return nil
		case "asleep":
			err = s.ask(ctx, s.c.Wake)
		case "archived":
			err = s.ask(ctx, func(ctx context.Context, repo int64, id string) (schema.Session, error) {
				return s.c.RestoreSession(ctx, repo, id, true)
			})
		case "failed":
			return fmt.Errorf("it failed: %s", asJSON(now.Detail))
		}
		if err != nil {
			return err
		}
	}
}

// pair asks for two things at once, of which either may be refused or cut off by the other, and has the Session running again.
func (s *slot) pair(ctx context.Context, o op) error {
	var both sync.WaitGroup
	var errs [2]error
	acts := [2]func() error{}
	for i, what := range o.with { // what they change of the model, they change before they begin, or after both
		n := op{n: o.n, slot: o.slot, what: what, size: o.size, seed: o.seed + uint64(i), pick: o.pick}
		name := fmt.Sprintf("p%d-%d", o.n, i)
		switch what {
		case "write":
			content := n.content()
			s.holds.maybe(name, plain(content))
			acts[i] = func() error { return s.writeOnce(ctx, name, content) }
		case "run":
			s.holds.maybe(runFile(n, i), plain(n.line()))
			acts[i] = func() error { return s.run(ctx, n, i, false) }
		case "archive":
			s.losesDisks()
			acts[i] = func() error { return s.ask(ctx, s.c.Archive) }
		default:
			do := map[string]asks{"sleep": s.c.Sleep, "wake": s.c.Wake, "restart": s.c.Restart}[what]
			acts[i] = func() error { return s.ask(ctx, do) }
		}
	}
	for i, act := range acts {
		both.Go(func() { errs[i] = act() })
	}
	both.Wait()
	for i, err := range errs {
		if err != nil && !client.Is(err, fault.Refused) {
			return fmt.Errorf("%s: %w", o.with[i], err)
		}
	}
	return s.settle(ctx)
}

// exec runs a script until one run of it came to an end of its own, with code 0. disturbed: one before it was cut off by a kill.
func (s *slot) exec(ctx context.Context, stdin []byte, script string, args ...string) (out string, disturbed bool, err error) {
	argv := append([]string{"sh", "-c", "cd /workspace && " + script, "sh"}, args...)
	err = s.Insist(ctx, func() (bool, error) {
		turn := s.Now()
		var stdout, stderr bytes.Buffer
		exit, err := s.c.Run(ctx, s.repo, s.id, wire.ChannelSpec{Argv: argv, Stdin: stdin != nil}, client.Stdio{In: bytes.NewReader(stdin), Out: &stdout, Err: &stderr})
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		switch {
		case err == nil && exit.Failed != "":
			err = fmt.Errorf("%q could not be run: %s", script, exit.Failed)
		case err == nil && exit.Code != 0:
			return false, fmt.Errorf("%q ended with code %d: %s", script, exit.Code, stderr.String())
		}
		if err != nil && !s.Undisturbed(turn) {
			disturbed = true
			return false, nil
		}
		out = stdout.String()
		return err == nil, err
	})
	return out, disturbed, err
}

func (o op) content() []byte {
	src := rand.NewChaCha8([32]byte{byte(o.seed), byte(o.seed >> 8), byte(o.seed >> 16), byte(o.seed >> 24)})
	content := make([]byte, o.size)
	_, _ = src.Read(content) // never fails
	return content
}

// line is what a run writes.
func (o op) line() []byte { return fmt.Appendf(nil, "run of op %d, %x\n", o.n, o.seed) }

// target is a file to write: one that is there, or a new one.
func (s *slot) target(o op, below string) string {
	if old := s.holds.loose(below); len(old) > 0 && o.pick%3 == 0 {
		return old[o.pick%len(old)]
	}
	return fmt.Sprintf("%sf%d/f%d", below, o.pick%4, o.n)
}

const writing = `mkdir -p "$(dirname "$1")" && cat >"$(dirname "$1")/` + part + `$$" && mv "$(dirname "$1")/` + part + `$$" "$1"`

func (s *slot) write(ctx context.Context, name string, o op) error {
	content := o.content()
	_, disturbed, err := s.exec(ctx, content, writing, name)
	if err == nil {
		s.holds.is(name, plain(content), disturbed)
	}
	return err
}

// writeOnce tries to write; whether it did is open unless it says so.
func (s *slot) writeOnce(ctx context.Context, name string, content []byte) error {
	argv := []string{"sh", "-c", "cd /workspace && " + writing, "sh", name}
	_, _ = s.c.Run(ctx, s.repo, s.id, wire.ChannelSpec{Argv: argv, Stdin: true}, client.Stdio{In: bytes.NewReader(content), Out: io.Discard, Err: io.Discard}) // see above
	return nil
}

func (s *slot) remove(ctx context.Context, o op) error {
	all := s.holds.loose("")
	if len(all) == 0 {
		return nil
	}
	name := all[o.pick%len(all)]
	_, _, err := s.exec(ctx, nil, `rm -f "$1"`, name)
	if err == nil {
		s.holds.is(name, absent, true)
	}
	return err
}

func (s *slot) rename(ctx context.Context, o op) error {
	all := s.holds.loose("")
	if len(all) == 0 {
		return nil
	}
	from, to := all[o.pick%len(all)], fmt.Sprintf("renamed-%d", o.n)
	_, disturbed, err := s.exec(ctx, nil, `[ -e "$2" ] || [ -L "$2" ] || mv "$1" "$2"`, from, to)
	if err == nil {
		s.holds.is(to, s.holds[from].may[0], disturbed)
		s.holds.is(from, absent, true)
	}
	return err
}

func (s *slot) chmod(ctx context.Context, o op) error {
	all := s.holds.loose("")
	if len(all) == 0 {
		return nil
	}
	name := all[o.pick%len(all)]
	mode := []string{"600", "755", "444", "775", "4755"}[o.size%5]
	now, ok := chmod(s.holds[name].may[0], mode)
	if !ok { // a link, whose target's mode it would be
		return nil
	}
	_, disturbed, err := s.exec(ctx, nil, `chmod "$1" "$2"`, mode, name)
	if err == nil {
		s.holds.is(name, now, disturbed)
	}
	return err
}

// link makes a new link: to a file that is there or was, to nothing, or out of the Workspace.
func (s *slot) link(ctx context.Context, o op) error {
	to := []string{"README.md", "no where/at all", "/etc/passwd"}[o.pick%3]
	name := fmt.Sprintf("link-%d", o.n)
	if o.pick%2 == 0 {
		name = s.folder() + "/.bin/" + name
	}
	_, disturbed, err := s.exec(ctx, nil, `[ -L "$2" ] || { mkdir -p "$(dirname "$2")" && ln -s "$1" "$2"; }`, to, name)
	if err == nil {
		s.holds.is(name, linked+to, disturbed)
	}
	return err
}

// giveUp ends the use of a dependency folder by a script, after which its files are gone, or below to.
func (s *slot) giveUp(ctx context.Context, script, to string) error {
	from := s.folder()
	s.epoch++
	_, disturbed, err := s.exec(ctx, nil, script, from, to)
	if err != nil {
		return err
	}
	for name, e := range s.holds {
		rest, in := strings.CutPrefix(name, from+"/")
		if !in {
			continue
		}
		if to != absent && e.may[0] != absent {
			now := entry{may: e.may, frozen: e.frozen}
			if disturbed { // a move that was cut off may have moved a part
				now = entry{may: append([]string{absent}, e.may...), frozen: true}
			}
			s.holds[to+"/"+rest] = now
		}
		if to != absent && disturbed {
			s.holds.maybe(name, absent)
		} else {
			s.holds.is(name, absent, true)
		}
	}
	return nil
}

func (s *slot) list(ctx context.Context) (map[string]string, error) {
	out, _, err := s.exec(ctx, nil, listing)
	if err != nil {
		return nil, err
	}
	return listed(out)
}

// look compares the Workspace with its model.
func (s *slot) look(ctx context.Context) error {
	found, err := s.list(ctx)
	if err != nil {
		return err
	}
	if wrong := s.holds.check(found); len(wrong) > 0 {
		s.broken = true
		s.fault(&result.lost, "lost", "%s: %s", s, strings.Join(wrong, "\n\t"))
	}
	return nil
}

func runFile(o op, i int) string { return fmt.Sprintf("run-%d-%d", o.n, i) }

// run has a headless run write a file. It is begun once, and where it must it comes to its end whoever is killed; else its Session may be put
// to sleep meanwhile.
func (s *slot) run(ctx context.Context, o op, i int, must bool) error {
	name, mark := runFile(o, i), fmt.Sprintf("op-%d-%d", o.n, i)
	in := schema.StartRun{Argv: []string{"sh", "-c", `echo begun; printf %s "$1" >` + part + `$$ && mv ` + part + `$$ "$2"; sleep 0.3; echo done`, mark, string(o.line()), name}}
	var id string
	err := s.Insist(ctx, func() (bool, error) {
		all, err := s.c.Runs(ctx, s.repo, s.id)
		if err != nil {
			return false, err
		}
		for _, r := range all {
			if strings.Contains(r.Command, mark) {
				id = r.ID
				return true, nil
			}
		}
		r, err := s.c.StartRun(ctx, s.repo, s.id, in)
		id = r.ID
		return err == nil, err
	})
	if err != nil {
		return err
	}
	var log bytes.Buffer
	if err := s.Insist(ctx, func() (bool, error) {
		log.Reset()
		_, err := s.c.CopyLog(ctx, client.RunLog(s.repo, s.id, id), client.Follow{Live: true}, &log)
		return err == nil, err
	}); err != nil {
		return err
	}
	var r schema.Run
	if err := s.Insist(ctx, func() (bool, error) {
		r, err = s.c.WaitRun(ctx, s.repo, s.id, id)
		return err == nil, err
	}); err != nil {
		return err
	}
	whole := r.Exit.Code == 0 && r.Exit.Failed == ""
	switch {
	case whole && log.String() != "begun\ndone\n", strings.Count(log.String(), "begun") > 1:
		s.fault(&result.lost, "lost", "%s: op %d: the log of a run is %q", s, o.n, log.String())
	case must && !whole:
		return fmt.Errorf("the run ended with %s and printed %q", asJSON(r.Exit), log.String())
	case must:
		s.holds.is(name, plain(o.line()), false)
	}
	return nil
}
