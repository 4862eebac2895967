package kill

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// session is one Session with what it is known to hold.
type session struct {
	id    string
	made  int
	asked string            // running or asleep
	files map[string]string // name → SHA-256, of execs that ended with code 0
	maybe map[string]string // of execs that were begun
	log   []byte            // as a follower received it
}

func (s *session) String() string { return fmt.Sprintf("the Session of round %d (%s)", s.made, s.id) }

// work does with the Session of a slot what the plan says.
func (r *round) work(slot int) {
	actor := fmt.Sprintf("session %d", slot)
	defer r.at(actor, "")
	var followed sync.WaitGroup
	defer followed.Wait()
	follow, unfollow := context.WithCancel(r.ctx)
	defer unfollow()
	s := r.slots[slot]
	if s != nil {
		followed.Go(func() { r.followSession(follow, s) })
	}
	for n, o := range r.plan.sessions[slot] {
		r.at(actor, "a pause")
		r.wait(o.pause)
		r.at(actor, o.what)
		var err error
		switch o.what {
		case "start":
			if s, err = r.start(slot); err == nil {
				r.slots[slot] = s
				followed.Go(func() { r.followSession(follow, s) })
				err = r.until(s, "running")
			}
		case "write":
			err = r.write(s, fmt.Sprintf("k-%d-%d", r.plan.number, n), o)
		case "talk":
			err = r.talk(s, 5+o.size%20)
		case "sleep":
			if err = r.ask(s, "asleep", r.c.Sleep); err == nil {
				err = r.until(s, "asleep")
			}
		case "wake":
			if err = r.ask(s, "running", r.c.Wake); err == nil {
				err = r.until(s, "running")
			}
		case "nap":
			if err = r.ask(s, "asleep", r.c.Sleep); err == nil {
				if err = r.ask(s, "running", r.c.Wake); err == nil {
					err = r.until(s, "running")
				}
			}
		case "delete":
			r.slots[slot] = nil
			err = r.delete(s)
		}
		if err != nil {
			r.fault(fmt.Sprintf("%s in slot %d", o.what, slot), err)
			return
		}
	}
	if s := r.slots[slot]; s != nil && s.asked == "running" {
		r.at(actor, "look at its Workspace")
		if err := r.look(s); err != nil {
			r.fault(fmt.Sprintf("look at %s", s), err)
		}
	}
}

// start makes a Session, once: its work branch says which it is.
func (r *round) start(slot int) (*session, error) {
	branch := fmt.Sprintf("kill/r%d-s%d", r.plan.number, slot)
	s := &session{made: r.plan.number, asked: "running", files: map[string]string{}, maybe: map[string]string{}}
	err := r.Insist(r.ctx, func() (bool, error) {
		all, err := r.c.Sessions(r.ctx, r.repo)
		if err != nil {
			return false, err
		}
		for _, one := range all {
			if one.WorkBranch == branch {
				s.id = one.ID
				return true, nil
			}
		}
		one, err := r.c.StartSession(r.ctx, r.repo, schema.StartSession{WorkBranch: branch})
		s.id = one.ID
		return err == nil, err
	})
	return s, err
}

func (r *round) ask(s *session, asked string, do func(context.Context, int64, string) (schema.Session, error)) error {
	s.asked = asked
	return r.Insist(r.ctx, func() (bool, error) {
		_, err := do(r.ctx, r.repo, s.id)
		return err == nil, err
	})
}

// until waits until a Session is in a state. There is no way to it over a failure.
func (r *round) until(s *session, state string) error {
	var now schema.Session
	err := r.Insist(r.ctx, func() (bool, error) {
		var err error
		now, err = r.c.WaitSession(r.ctx, r.repo, s.id, func(now schema.Session) bool {
			return (now.State == state && !now.Unreachable) || now.State == "failed"
		}, nil)
		return err == nil, err
	})
	if err == nil && now.State == "failed" {
		result.count(r.t, &result.lost, "lost", "%s was to be %s and failed: %s\n%s", s, state, asJSON(now.Detail), story(s.log))
		return errors.New("the Session failed")
	}
	return err
}

func (r *round) delete(s *session) error {
	return r.Insist(r.ctx, func() (bool, error) {
		err := r.c.DeleteSession(r.ctx, r.repo, s.id, s.id)
		if client.Is(err, fault.NotFound) {
			return true, nil
		}
		return false, err // asked for again until it is gone: that changes nothing
	})
}

// run runs a command in a Session until one run of it came to an end of its own. A run that was cut off by a kill says
// nothing; one that was not, but failed to run, is a fault.
func (r *round) run(s *session, stdin func() io.Reader, argv ...string) (stdout string, err error) {
	err = r.Insist(r.ctx, func() (bool, error) {
		turn := r.Now()
		var out, errs bytes.Buffer
		exit, err := r.c.Run(r.ctx, r.repo, s.id, wire.ChannelSpec{Argv: argv}, client.Stdio{In: stdin(), Out: &out, Err: &errs})
		if r.ctx.Err() != nil {
			return false, context.Cause(r.ctx)
		}
		if err == nil && exit.Failed != "" {
			err = fmt.Errorf("%q could not be run: %s", argv, exit.Failed)
		}
		if err != nil && !r.Undisturbed(turn) {
			return false, nil
		}
		stdout = out.String()
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("%q ended with code %d: %s", argv, exit.Code, errs.String())
		}
		return err == nil, err
	})
	return stdout, err
}

func nothing() io.Reader { return strings.NewReader("") }

// talk has a process say again, line by line, what it is told: a command that ends well has had all of its input, and
// all of its output has arrived, whoever was killed meanwhile.
func (r *round) talk(s *session, lines int) error {
	var all strings.Builder
	for i := range lines {
		fmt.Fprintf(&all, "line %d of %d\n", i, lines)
	}
	out, err := r.run(s, func() io.Reader { return &slowly{ctx: r.ctx, rest: all.String()} }, "cat")
	switch {
	case err != nil:
		return err
	case len(out) < all.Len() || !strings.HasPrefix(out, all.String()):
		result.count(r.t, &result.lost, "lost", "round %d: a command in %s ended with code 0, was told %d lines, and said %q", r.plan.number, s, lines, out)
	case len(out) > all.Len():
		result.count(r.t, &result.doubled, "doubled", "round %d: a command in %s was told %d lines, and said more: %q", r.plan.number, s, lines, out)
	}
	return nil
}

// slowly is read line by line, as a person types.
type slowly struct {
	ctx  context.Context
	rest string
}

func (s *slowly) Read(b []byte) (int, error) {
	if s.rest == "" {
		return 0, io.EOF
	}
	select {
	case <-time.After(40 * time.Millisecond):
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	}
	n := copy(b, s.rest[:strings.IndexByte(s.rest, '\n')+1])
	s.rest = s.rest[n:]
	return n, nil
}

// write has a process in the Sandbox write a file: whole or not at all, and on the disk before it says so.
func (r *round) write(s *session, name string, o op) error {
	src := rand.NewChaCha8([32]byte{byte(o.seed), byte(o.seed >> 8), byte(o.seed >> 16), byte(o.seed >> 24)})
	content := make([]byte, o.size)
	_, _ = src.Read(content) // never fails
	sum := sha256.Sum256(content)
	s.maybe[name] = hex.EncodeToString(sum[:])
	out, err := r.run(s, func() io.Reader { return bytes.NewReader(content) }, "sh", "-c",
		`dd of=".$1.$$" conv=fsync 2>/dev/null && mv ".$1.$$" "$1" && sync && sha256sum "$1"`, "sh", name)
	if err != nil {
		return err
	}
	s.files[name] = s.maybe[name]
	if !strings.HasPrefix(out, s.files[name]) { // by what it was given, not by what became of it later
		result.count(r.t, &result.lost, "lost", "round %d: a command in %s was given %d bytes with SHA-256 %s, ended with code 0, and wrote %s",
			r.plan.number, s, o.size, s.files[name], out)
	}
	return nil
}

// lookAt prints what a Workspace holds, which boots its start script ran in, and the boot it is in now.
const lookAt = `ls | grep '^k-' | xargs -r sha256sum; echo ==; cat boots; echo ==; sed 's/.*) //' /proc/1/stat | cut -d' ' -f20`

// look compares a running Session's Workspace with what is known of it. Its start script runs beside it, so that one is
// waited for.
func (r *round) look(s *session) error {
	for {
		out, err := r.run(s, nothing, "sh", "-c", lookAt)
		if err != nil {
			return err
		}
		parts := strings.Split(out, "==\n")
		if len(parts) != 3 {
			return fmt.Errorf("what was printed makes no sense: %q", out)
		}
		boots, now := strings.Fields(parts[1]), strings.TrimSpace(parts[2])
		if !slices.Contains(boots, now) { // the round's time ends this
			r.wait(100 * time.Millisecond)
			if r.ctx.Err() != nil {
				return context.Cause(r.ctx)
			}
			continue
		}
		slices.Sort(boots)
		if once := slices.Compact(slices.Clone(boots)); len(once) != len(boots) {
			result.count(r.t, &result.doubled, "doubled", "%s: a start script ran twice in one boot: %q\n%s", s, boots, story(s.log))
		}
		r.compare(s, parts[0])
		return nil
	}
}

func (r *round) compare(s *session, sums string) {
	there := map[string]string{}
	for line := range strings.Lines(sums) {
		if f := strings.Fields(line); len(f) == 2 {
			there[f[1]] = f[0]
		}
	}
	for name, sum := range s.files {
		if there[name] != sum {
			result.count(r.t, &result.lost, "lost", "%s: the file %s has SHA-256 %q, not %s", s, name, there[name], sum)
			delete(s.files, name) // counted once
		}
	}
	for name, sum := range there {
		if s.maybe[name] != sum {
			result.count(r.t, &result.lost, "lost", "%s: the file %s has SHA-256 %s, and nothing like it was written", s, name, sum)
			s.maybe[name] = sum
		}
	}
}

func (r *round) followSession(ctx context.Context, s *session) {
	_, err := r.follow(ctx, client.SessionLog(r.repo, s.id), s.log, func(b []byte) { s.log = append(s.log, b...) })
	if err != nil && ctx.Err() == nil && !client.Is(err, fault.NotFound) {
		r.fault(fmt.Sprintf("follow the log of %s", s), err)
	}
}
