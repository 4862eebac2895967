package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

const kind Kind = "test-kind"

// rig is a Fleet on a clock that stands still, with an Owner that writes what it is told into a table.
type rig struct {
	*Fleet
	t     *testing.T
	db    *store.DB
	owner *owner
	clock *clock
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newRig(t *testing.T, db *store.DB, o Options) *rig {
	t.Helper()
	c := &clock{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	db.SetClock(c.Now)
	r := &rig{Fleet: New(db, o), t: t, db: db, clock: c, owner: &owner{idleAfter: 15 * time.Minute}}
	r.owner.f = r.Fleet
	r.Own(kind, r.owner)
	r.write(func(tx *store.Tx) error {
		_, err := tx.Exec(`CREATE TABLE told (n BIGINT NOT NULL, what TEXT NOT NULL, assignment TEXT NOT NULL)`)
		return err
	})
	t.Cleanup(r.Stop)
	return r
}

func (r *rig) write(f func(tx *store.Tx) error) {
	r.t.Helper()
	if err := r.db.Write(r.t.Context(), f); err != nil {
		r.t.Fatal(err)
	}
}

// runner registers a Runner and says Hello.
func (r *rig) runner(name string) string {
	r.t.Helper()
	id, _ := r.runnerToken(name)
	return id
}

func (r *rig) runnerToken(name string) (id, token string) {
	r.t.Helper()
	invite, _, err := r.NewRegistration(r.t.Context(), "ada")
	if err != nil {
		r.t.Fatal(err)
	}
	id, token, err = r.Register(r.t.Context(), invite, name)
	if err != nil {
		r.t.Fatal(err)
	}
	r.hello(id)
	return id, token
}

func (r *rig) hello(id string) {
	r.t.Helper()
	res, err := r.Hello(r.t.Context(), id, hello(wire.Protocol))
	if err != nil || res.GetUpdate() != "" {
		r.t.Fatalf("Hello: %v %v", res, err)
	}
}

func hello(protocol int32) *wire.HelloRequest {
	return &wire.HelloRequest{Protocol: protocol, Version: "1.2.3", Platform: "linux/amd64", Engine: "oci", CpuLimit: 4, MemoryLimit: 8 << 30, Instance: "i"}
}

func (r *rig) assign(runner, subject string, deadline time.Duration) Assignment {
	r.t.Helper()
	var a Assignment
	r.write(func(tx *store.Tx) (err error) {
		var until time.Time
		if deadline > 0 {
			until = tx.Now().Add(deadline)
		}
		a, err = r.Assign(tx, Assignment{Runner: runner, Kind: kind, Subject: subject, Deadline: until})
		return err
	})
	return a
}

func (r *rig) get(id string) (a Assignment) {
	r.t.Helper()
	err := r.db.Read(r.t.Context(), func(tx *store.Tx) (err error) {
		a, err = r.Get(tx, id)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func (r *rig) sync(runner string, held ...*wire.Held) *wire.SyncResponse {
	r.t.Helper()
	res, err := r.Sync(r.t.Context(), runner, &wire.SyncRequest{Held: held})
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

func (r *rig) report(runner string, a Assignment, seq int64, state string) error {
	return r.Report(r.t.Context(), runner, &wire.ReportRequest{Id: a.ID, Fence: a.Fence, Generation: a.Generation, Seq: seq, State: state, Detail: []byte(`{"n":1}`)})
}

func (r *rig) reap() {
	r.t.Helper()
	if err := r.RunOnce(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// told is what the Owner heard in transactions that were committed.
func (r *rig) told() (all []string) {
	r.t.Helper()
	err := r.db.Read(r.t.Context(), func(tx *store.Tx) (err error) {
		all, err = store.All(tx, store.Scan1[string], `SELECT what FROM told ORDER BY n`)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func (r *rig) expect(want ...string) {
	r.t.Helper()
	got := r.told()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.t.Fatalf("the Owner was told %q, want %q", got, want)
	}
}

type owner struct {
	f         *Fleet
	idleAfter time.Duration

	mu      sync.Mutex
	n       int64
	observe error
	values  []*wire.Value // nil: one that is not Sensitive
	refused string        // why Values has not all
	unwell  error         // what Values answers instead
	asked   int           // how often it did
	lost    func(a Assignment) error
	refence bool
}

func (o *owner) tell(tx *store.Tx, a Assignment, what string) error {
	o.mu.Lock()
	o.n++
	n := o.n
	o.mu.Unlock()
	_, err := tx.Exec(`INSERT INTO told (n, what, assignment) VALUES ($1, $2, $3)`, n, what, a.ID)
	return err
}

func (o *owner) Values(_ context.Context, _ *store.Tx, a Assignment) ([]*wire.Value, string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked++; o.unwell != nil {
		return nil, "", o.unwell
	}
	if o.values != nil {
		return o.values, o.refused, nil
	}
	return []*wire.Value{{Name: "NAME", Value: []byte("of " + a.Subject), Id: "v1"}}, "", nil
}

func (o *owner) Payload(_ context.Context, _ *store.Tx, a Assignment) ([]byte, error) {
	return fmt.Appendf(nil, "%s/%d", a.Subject, a.Generation), nil
}

func (o *owner) Observe(_ context.Context, tx *store.Tx, a Assignment, r Report) error {
	if err := o.tell(tx, a, "observe "+r.State); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.observe
}

func (o *owner) setObserve(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.observe = err
}

func (o *owner) Lost(_ context.Context, tx *store.Tx, a Assignment) error {
	if err := o.tell(tx, a, "lost: "+string(a.Loss)); err != nil {
		return err
	}
	if o.lost != nil {
		if err := o.lost(a); err != nil {
			return err
		}
	}
	if o.refence {
		return o.f.Refence(tx, a.ID)
	}
	return nil
}

func (o *owner) Found(_ context.Context, tx *store.Tx, a Assignment) error {
	return o.tell(tx, a, "found")
}

func (o *owner) IdleAfter(Assignment) time.Duration { return o.idleAfter }

func (o *owner) Idle(_ context.Context, tx *store.Tx, a Assignment, idle time.Duration) error {
	if err := o.tell(tx, a, "idle "+idle.Round(time.Minute).String()); err != nil {
		return err
	}
	_, err := o.f.Change(tx, a.ID, Stop, time.Time{})
	return err
}

var errOwner = errors.New("the owner is unwell")
