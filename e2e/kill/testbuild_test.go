package kill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// testBuild is one Test build with what was seen of it.
type testBuild struct {
	plan  plan
	id    string
	final schema.TestBuild // as it was first seen final
	log   []byte           // as a follower received it
	ended bool             // the follower was told that this is all
}

func (tb *testBuild) String() string {
	return fmt.Sprintf("the Test build of round %d (%s)", tb.plan.number, tb.id)
}

func document(image string, p plan) string {
	bootstrap := numbered("boot", p.number, p.build.burst, p.build.bootLines)
	if p.build.kind == fails {
		bootstrap += "exit 3\n"
	}
	// The first line is what a Session's boots are counted by.
	start := "sed 's/.*) //' /proc/1/stat | cut -d' ' -f20 >>/workspace/boots\n" + numbered("start", p.number, 0, p.build.startLines)
	indent := func(s string) string {
		return "  " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n  ") + "\n"
	}
	return fmt.Sprintf("image: %s\nbootstrap: |\n%sstart: |\n%scpu: 1\nmemory: 512MiB\n", image, indent(bootstrap), indent(start))
}

// testBuild saves a draft, has it built, follows it, and applies it if it passed and the plan says so.
func (r *round) testBuild() {
	const actor = "the Test build"
	defer r.at(actor, "")
	r.at(actor, "build: save")
	revision, err := r.save(document(r.image, r.plan))
	if err != nil {
		r.fault("save a draft", err)
		return
	}
	r.at(actor, "build: begin")
	tb := &testBuild{plan: r.plan}
	if tb.id, err = r.beginTest(revision); err != nil {
		r.fault("start a Test build", err)
		return
	}
	r.tests = append(r.tests, tb) // one Test build at a time; checked when this actor has ended
	watched, unwatch := context.WithCancel(r.ctx)
	defer unwatch()
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { r.followTest(watched, tb) })
	if r.plan.build.kind == endsEarly {
		beside.Go(func() { r.cancelTest(watched, tb) })
	}
	err = r.Insist(r.ctx, func() (bool, error) {
		var err error
		tb.final, err = r.c.WaitTest(r.ctx, r.repo, tb.id, func(t schema.TestBuild) {
			if n := len(t.Detail.Phases); n > 0 {
				r.at(actor, "build: "+t.Detail.Phases[n-1].Name)
			}
		})
		return err == nil, err
	})
	if err != nil {
		r.fault("wait for a Test build", err)
		return
	}
	r.at(actor, "build: final")
	if tb.final.State == wire.StatePassed && r.plan.build.apply {
		r.at(actor, "build: apply")
		if err := r.apply(revision); err != nil {
			r.fault("apply a draft that passed", err)
		}
	}
	r.at(actor, "build: end of its log")
	beside.Wait()
}

// fault reports an answer that no kill explains; an end of the round's time is reported elsewhere.
func (r *round) fault(what string, err error) {
	if r.ctx.Err() == nil {
		say("round %d: %s: %v", r.plan.number, what, err)
		r.t.Errorf("round %d: %s: %v", r.plan.number, what, err)
	}
}

func (r *round) save(yaml string) (revision int64, err error) {
	mine := fmt.Sprintf("KILL boot %d ", r.plan.number)
	err = r.Insist(r.ctx, func() (bool, error) {
		env, err := r.c.Environment(r.ctx, r.repo)
		if err != nil {
			return false, err
		}
		base := int64(0)
		if env.Draft != nil {
			if base = env.Draft.Revision; strings.Contains(env.Draft.YAML, mine) {
				revision = base
				return true, nil
			}
		}
		_, err = r.c.SaveDraftYAML(r.ctx, r.repo, base, "environment.yml", yaml)
		return false, err // what is stored is read again, and counts
	})
	return revision, err
}

// beginTest starts the Test build of this round, once.
func (r *round) beginTest(revision int64) (id string, err error) {
	err = r.Insist(r.ctx, func() (bool, error) {
		all, err := r.c.Tests(r.ctx, r.repo)
		if err != nil {
			return false, err
		}
		for _, t := range all {
			if t.Revision == revision {
				id = t.ID
				return true, nil
			}
		}
		started, err := r.c.StartTest(r.ctx, r.repo, revision, "r1")
		id = started.ID
		return err == nil, err
	})
	return id, err
}

func (r *round) cancelTest(ctx context.Context, tb *testBuild) {
	select {
	case <-r.event(r.plan.build.cancelOn):
	case <-r.event("build: final"):
	case <-ctx.Done():
		return
	}
	r.wait(r.plan.build.cancelAfter)
	r.happened("build: cancel")
	if err := r.Insist(ctx, func() (bool, error) { err := r.c.CancelTest(ctx, r.repo, tb.id); return err == nil, err }); err != nil {
		r.fault("cancel a Test build", err)
	}
}

// apply makes a version of the round's draft, once.
func (r *round) apply(revision int64) error {
	message := fmt.Sprintf("of round %d", r.plan.number)
	return r.Insist(r.ctx, func() (bool, error) {
		all, err := r.c.Versions(r.ctx, r.repo)
		if err != nil {
			return false, err
		}
		for _, v := range all {
			if v.Message == message {
				r.versions[v.Number] = v
				return true, nil
			}
		}
		v, err := r.c.Apply(r.ctx, r.repo, revision, message)
		if err == nil {
			r.versions[v.Number] = v
		}
		return err == nil, err
	})
}

// follow reads a log from the end of got on, until it ends or ctx does, and returns all that was received. A gap is nil.
func (r *round) follow(ctx context.Context, log client.Log, got []byte, each func([]byte)) (ended bool, err error) {
	at := int64(len(got))
	err = r.Insist(ctx, func() (bool, error) {
		part, err := r.c.ReadLog(ctx, log, at, 5*time.Second)
		if err != nil {
			return false, err
		}
		if part.Dropped != 0 || part.Next != at+int64(len(part.Data)) {
			return false, fmt.Errorf("a reader at byte %d was given %d bytes up to %d, and %d dropped before them", at, len(part.Data), part.Next, part.Dropped)
		}
		at, ended = part.Next, part.Ended
		each(part.Data)
		return ended, nil
	})
	return ended, err
}

func (r *round) followTest(ctx context.Context, tb *testBuild) {
	ended, err := r.follow(ctx, client.TestLog(r.repo, tb.id), nil, func(b []byte) { tb.log = append(tb.log, b...) })
	tb.ended = ended
	if err != nil {
		r.fault("follow the log of a Test build", err)
	}
}

// checkTest looks at a Test build that ought to be over. Called again after each round: nothing may have changed.
func (k *kills) checkTest(ctx context.Context, tb *testBuild, first bool) {
	var now schema.TestBuild
	var log bytes.Buffer
	err := k.Insist(ctx, func() (bool, error) {
		var err error
		if now, _, _, err = k.c.Test(ctx, k.repo, tb.id, client.Wait{}); err != nil {
			return false, err
		}
		log.Reset()
		_, err = k.c.CopyLog(ctx, client.TestLog(k.repo, tb.id), client.Follow{}, &log)
		return err == nil, err
	})
	if err != nil {
		if ctx.Err() == nil {
			k.t.Errorf("read %s: %v", tb, err)
		}
		return
	}
	if !tb.final.Final {
		return // stuck, and counted as that
	}
	if before, after := asJSON(tb.final), asJSON(now); before != after {
		result.count(k.t, &result.doubled, "doubled", "%s has another result than before:\n%s\n%s", tb, before, after)
		tb.final = now // counted once
	}
	if !bytes.HasPrefix(log.Bytes(), tb.log) {
		result.count(k.t, &result.lost, "lost", "%s: its log is not what a follower received: %s", tb, difference(tb.log, log.Bytes()))
	} else if tb.ended && log.Len() > len(tb.log) {
		result.count(k.t, &result.doubled, "doubled", "%s: its log goes on after its end: %q", tb, log.Bytes()[len(tb.log):])
	}
	if first {
		k.checkOutcome(tb)
	}
	tb.log = log.Bytes()
}

// checkOutcome compares how a Test build ended with what it was meant to come to.
func (k *kills) checkOutcome(tb *testBuild) {
	state, b := tb.final.State, tb.plan.build
	cutShort := false
	switch {
	case state == wire.StatePassed && b.kind != fails, state == wire.StateFailed && b.kind == fails && exitCode(tb.final) == 3:
	case state == wire.StateCancelled && b.kind == endsEarly, state == "lost" && tb.plan.long():
		cutShort = true
	default:
		result.count(k.t, &result.lost, "lost", "%s, which %s, ended as %s: %s\n%s", tb, b.kind, state, asJSON(tb.final.Detail), story(tb.log))
	}
	runs, broken := readLines(tb.log)
	for _, line := range broken {
		result.count(k.t, &result.lost, "lost", "%s: not a whole line: %s", tb, line)
	}
	want := map[string]int{"boot": b.burst + b.bootLines, "start": b.startLines}
	if b.kind == fails {
		delete(want, "start")
	}
	for _, o := range runs {
		n, expected := want[o.name]
		delete(want, o.name)
		switch {
		case !expected || o.twice > 0 || o.next > n:
			result.count(k.t, &result.doubled, "doubled", "%s: lines came more than once: %+v\n%s", tb, *o, story(tb.log))
		case o.lost > 0 || (o.next < n && !cutShort):
			result.count(k.t, &result.lost, "lost", "%s: lines are missing of %d: %+v\n%s", tb, n, *o, story(tb.log))
		}
	}
	if len(want) > 0 && !cutShort {
		result.count(k.t, &result.lost, "lost", "%s has no output of %v\n%s", tb, want, story(tb.log))
	}
	if !tb.ended && state != "lost" {
		result.count(k.t, &result.stuck, "stuck", "%s is %s, but its log has not ended\n%s", tb, state, story(tb.log))
	}
}

func exitCode(t schema.TestBuild) int {
	if t.Detail.Failure == nil || t.Detail.Failure.ExitCode == nil {
		return -1
	}
	return *t.Detail.Failure.ExitCode
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func difference(was, is []byte) string {
	i := 0
	for i < len(was) && i < len(is) && was[i] == is[i] {
		i++
	}
	around := func(b []byte) []byte { return b[min(len(b), max(0, i-60)):min(len(b), i+60)] }
	return fmt.Sprintf("at byte %d of %d received and %d there now: %q became %q", i, len(was), len(is), around(was), around(is))
}

// story is a log for a person: each line short, and of a run of numbered ones only the first and the last.
func story(log []byte) string {
	var out []string
	numbered := 0
	lines := strings.Split(string(log), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "KILL ") {
			numbered++
			if numbered > 1 && i+1 < len(lines) && strings.HasPrefix(lines[i+1], "KILL ") {
				continue
			}
		} else {
			numbered = 0
		}
		out = append(out, "    "+line[:min(len(line), 160)])
	}
	return strings.Join(out[max(0, len(out)-60):], "\n")
}
