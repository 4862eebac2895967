package kill

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/store"
)

// check compares what there is with what was acknowledged, after each round.
func (r *round) check(ctx context.Context) {
	for _, tb := range r.tests {
		r.checkTest(ctx, tb, tb.plan.number == r.plan.number)
	}
	r.checkVersions(ctx)
	var all []schema.Session
	if err := r.Insist(ctx, func() (bool, error) {
		var err error
		all, err = r.c.Sessions(ctx, r.repo)
		return err == nil, err
	}); err != nil {
		r.t.Errorf("list Sessions: %v", err)
		return
	}
	known := map[string]*session{}
	for _, s := range r.slots {
		if s != nil {
			known[s.id] = s
		}
	}
	for _, now := range all {
		s := known[now.ID]
		delete(known, now.ID)
		switch {
		case s == nil:
			result.count(r.t, &result.doubled, "doubled", "round %d: a Session %s (%s, %s) that was deleted, or never asked for", r.plan.number, now.ID, now.WorkBranch, now.State)
			continue
		case now.State != s.asked || now.Unreachable:
			result.count(r.t, &result.stuck, "stuck", "round %d: %s is %s (unreachable: %t), not %s: %s", r.plan.number, s, now.State, now.Unreachable, s.asked, asJSON(now.Detail))
		}
		r.checkSessionLog(ctx, s)
	}
	for _, s := range known {
		result.count(r.t, &result.lost, "lost", "round %d: %s is gone", r.plan.number, s)
	}
}

func (k *kills) checkSessionLog(ctx context.Context, s *session) {
	var log bytes.Buffer
	if _, err := k.c.CopyLog(ctx, client.SessionLog(k.repo, s.id), client.Follow{}, &log); err != nil {
		k.t.Errorf("read the log of %s: %v", s, err)
		return
	}
	if !bytes.HasPrefix(log.Bytes(), s.log) {
		result.count(k.t, &result.lost, "lost", "%s: its log is not what a follower received: %s", s, difference(s.log, log.Bytes()))
	}
	s.log = log.Bytes()
	runs, broken := readLines(s.log)
	for _, line := range broken {
		if !strings.HasPrefix(line, `"KILL `) { // a script that is ended by sleep may be in the middle of a line
			result.count(k.t, &result.lost, "lost", "%s: not a whole line: %s", s, line)
		}
	}
	for _, o := range runs { // of scripts that sleep ended, the end is missing
		if o.lost > 0 {
			result.count(k.t, &result.lost, "lost", "%s: lines are missing: %+v\n%s", s, *o, story(s.log))
		}
		if o.twice > 0 {
			result.count(k.t, &result.doubled, "doubled", "%s: lines came more than once: %+v\n%s", s, *o, story(s.log))
		}
	}
}

func (k *kills) checkVersions(ctx context.Context) {
	var all []schema.Version
	if err := k.Insist(ctx, func() (bool, error) {
		var err error
		all, err = k.c.Versions(ctx, k.repo)
		return err == nil, err
	}); err != nil {
		k.t.Errorf("list versions: %v", err)
		return
	}
	there := map[int]schema.Version{}
	messages := map[string]int{}
	for _, v := range all {
		there[v.Number] = v
		messages[v.Message]++
		if messages[v.Message] > 1 {
			result.count(k.t, &result.doubled, "doubled", "%q was applied %d times", v.Message, messages[v.Message])
		}
	}
	for number, v := range k.versions {
		now, ok := there[number]
		switch {
		case !ok && number > len(k.versions)-len(all): // the list is of the newest
			result.count(k.t, &result.lost, "lost", "version %d was applied and is gone", number)
		case ok && asJSON(now) != asJSON(v):
			result.count(k.t, &result.lost, "lost", "version %d has changed:\n%s\n%s", number, asJSON(v), asJSON(now))
		}
	}
}

// finish wakes every Session, looks at all once more, ends Hub and Runner as a person would, and reads in the database
// that each Test build came to one result.
func (k *kills) finish(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, restWithin)
	defer cancel()
	r := k.newRound(limited, plan{number: *rounds})
	defer r.cancel()
	for _, s := range k.slots {
		if s == nil {
			continue
		}
		err := r.ask(s, "running", k.c.Wake)
		if err == nil {
			err = r.until(s, "running")
		}
		if err == nil {
			err = r.look(s)
		}
		if err != nil {
			result.count(k.t, &result.stuck, "stuck", "%s, once more at the end: %v", s, err)
		}
	}
	r.check(ctx)
	k.w.Runner.Stop()
	k.w.Hub.Stop()
	k.checkAudit()
}

func (k *kills) checkAudit() {
	url := k.w.Options.Database
	if url == "" {
		url = filepath.Join(k.w.Dir, "data", "hub.db")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := store.Open(ctx, url)
	if err != nil {
		k.t.Errorf("open the database after everything has ended: %v", err)
		return
	}
	defer func() {
		if err := db.Close(); err != nil {
			k.t.Error(err)
		}
	}()
	type row struct {
		subject string
		n       int
	}
	var rows []row
	if err := db.Read(ctx, func(tx *store.Tx) (err error) {
		rows, err = store.All(tx, func(scan func(...any) error) (r row, err error) { return r, scan(&r.subject, &r.n) },
			`SELECT subject, COUNT(*) FROM audit_log WHERE action IN ('test-build.passed', 'test-build.failed', 'test-build.cancelled', 'test-build.lost') GROUP BY subject`)
		return err
	}); err != nil {
		k.t.Errorf("read the audit log: %v", err)
		return
	}
	known := map[string]*testBuild{}
	for _, tb := range k.tests {
		known[tb.id] = tb
	}
	for _, r := range rows {
		if tb := known[r.subject]; tb == nil {
			result.count(k.t, &result.doubled, "doubled", "a Test build %s that nobody asked for has a result", r.subject)
		} else if r.n != 1 {
			result.count(k.t, &result.doubled, "doubled", "%s has %d results", tb, r.n)
		}
		delete(known, r.subject)
	}
	for _, tb := range known {
		result.count(k.t, &result.lost, "lost", "%s has no result", tb)
	}
}
