// Package apptest is a Hub's domain for tests, with Runners that do what a test says.
package apptest

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// RepoID is the Repo every Hub of this package has.
const RepoID github.RepoID = 42

// Hub is the domain on one database.
type Hub struct {
	DB           *store.DB
	Gate         *access.Gate
	Fleet        *fleet.Fleet
	Seal         *seal.Service
	App          *github.Holder // of Options.Access; else none at first
	Setup        *setup.Service
	Vault        *variable.Vault
	Environments *environment.Service
	Proposals    *proposal.Service
	Sessions     *session.Service
	t            testing.TB
}

// Options that tests vary.
type Options struct {
	// Keys are what Sensitive values are sealed under; none: one of this package. NoKeys is a Hub without any.
	Keys        seal.Keys
	NoKeys      bool
	Fleet       fleet.Options
	Environment environment.Options
	Session     session.Options
	Proposal    proposal.Options
	// Access is what the Gate is opened with, beside what seals. NoDev leaves out dev login and the Repos of dev.repos.
	Access access.Options
	NoDev  bool
	Setup  setup.Options
}

// New makes a Hub on db with the Repo acme/rocket and dev login. Neither its fleet nor its Gate is started: what depends on
// time is for the test to say.
func New(t testing.TB, db *store.DB, o Options) *Hub {
	t.Helper()
	if o.Fleet.MinProtocol == 0 {
		o.Fleet.MinProtocol = 1 // so that OldRunner has an old one to be
	}
	o.Fleet.Log = zerolog.New(zerolog.NewTestWriter(t))
	if o.Keys.Primary() == "" && !o.NoKeys {
		o.Keys = Keys(t, 1)
	}
	sealer := seal.New(db, o.Keys, seal.Columns())
	if err := sealer.Start(t.Context(), "apptest"); err != nil {
		t.Fatal(err)
	}
	if !o.NoDev {
		o.Access.DevLogin = true
		o.Access.DevRepos = []access.Repo{
			{ID: RepoID, Name: "acme/rocket", CloneURL: "file:///srv/rocket.git"},
			{ID: RepoID + 1, Name: "acme/other", CloneURL: "file:///srv/other.git"},
		}
	}
	if o.Access.GitHub == nil {
		o.Access.GitHub = github.NewHolder(nil)
	}
	o.Access.Seal, o.Access.Log = sealer, o.Fleet.Log
	gate, err := access.Open(t.Context(), db, o.Access)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gate.Stop)
	o.Setup.Gate, o.Setup.PublicURL = gate, cmp.Or(o.Setup.PublicURL, "https://hub.example")
	o.Session.Gate, o.Session.GitHub = gate, o.Access.GitHub
	f := fleet.New(db, o.Fleet)
	vault := variable.New(db, sealer, gate)
	env := environment.New(db, f, vault, o.Environment)
	o.Proposal.PublicURL, o.Proposal.Log = cmp.Or(o.Proposal.PublicURL, "https://hub.example"), o.Fleet.Log
	proposals := proposal.New(db, o.Access.GitHub, gate, env, f, o.Proposal)
	return &Hub{DB: db, Gate: gate, Fleet: f, Seal: sealer, App: o.Access.GitHub, Setup: setup.New(db, sealer, o.Access.GitHub, o.Setup), Vault: vault, Environments: env, Proposals: proposals, Sessions: session.New(db, env, f, o.Session), t: t}
}

// Key is the text of one of Keys.
func Key(n byte) string {
	b := make([]byte, 32)
	for j := range b {
		b[j] = n ^ byte(j*7)
	}
	return hex.EncodeToString(b)
}

// Keys are encryption keys that are the same in every run, one for each n, the first one sealing.
func Keys(t testing.TB, ns ...byte) seal.Keys {
	t.Helper()
	given := make([]seal.Given, len(ns))
	for i, n := range ns {
		given[i].Text = Key(n)
	}
	k, err := seal.ParseKeys(given...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// LoseKey is this Hub after the key of its Sensitive values was lost, secrets-reset was run with key n, and it was started
// again. The Hub that was is of no use afterwards.
func (h *Hub) LoseKey(n byte) *Hub {
	h.t.Helper()
	k := Keys(h.t, n)
	if _, err := seal.New(h.DB, k, seal.Columns()).Reset(h.t.Context(), false, func(*store.Tx, seal.Cleared) error { return nil }); err != nil {
		h.t.Fatal(err)
	}
	return New(h.t, h.DB, Options{Keys: k})
}

// Of is the same Runner in contact with h.
func (r *Runner) Of(h *Hub) *Runner {
	r.hub.t.Helper()
	moved := &Runner{ID: r.ID, Name: r.Name, Token: r.Token, hub: h, seq: r.seq}
	moved.Items()
	return moved
}

// Grant is what a person has of the Repo.
func (h *Hub) Grant(login string) access.Grant {
	h.t.Helper()
	who, _, err := h.Gate.SignInDev(h.t.Context(), login)
	if err != nil {
		h.t.Fatal(err)
	}
	g, err := h.Gate.Repo(h.t.Context(), who, RepoID)
	if err != nil {
		h.t.Fatal(err)
	}
	return g
}

// Runner is a registered Runner that said Hello.
type Runner struct {
	ID, Name string
	Token    string // what its calls come with
	hub      *Hub
	seq      int64
}

// Runner registers one, of linux/amd64.
func (h *Hub) Runner(name string) *Runner {
	h.t.Helper()
	return h.RunnerOn(name, "linux/amd64")
}

// RunnerOn registers one of another platform.
func (h *Hub) RunnerOn(name, platform string) *Runner {
	h.t.Helper()
	return h.runner(name, platform, wire.Protocol)
}

// OldRunner registers one of linux/amd64 that speaks an older protocol.
func (h *Hub) OldRunner(name string, protocol int32) *Runner {
	h.t.Helper()
	return h.runner(name, "linux/amd64", protocol)
}

func (h *Hub) runner(name, platform string, protocol int32) *Runner {
	h.t.Helper()
	token, _, err := h.Fleet.NewRegistration(h.t.Context(), "test")
	if err != nil {
		h.t.Fatal(err)
	}
	id, secret, err := h.Fleet.Register(h.t.Context(), token, name)
	if err != nil {
		h.t.Fatal(err)
	}
	r := &Runner{ID: id, Name: name, Token: secret, hub: h}
	var able []string
	if protocol == wire.Protocol {
		able = []string{"docker", wire.CanArchive, wire.CanRun}
	}
	answer, err := h.Fleet.Hello(h.t.Context(), id, &wire.HelloRequest{Protocol: protocol, Version: "test", Platform: platform, Engine: "oci", CpuLimit: 4,
		MemoryLimit: 8 << 30, Instance: "1", Capabilities: able})
	if err != nil || answer.GetUpdate() != "" {
		h.t.Fatalf("hello: %v, %v", answer, err)
	}
	return r
}

// Items is what the Hub wants this Runner to hold.
func (r *Runner) Items() []*wire.Item {
	r.hub.t.Helper()
	answer, err := r.hub.Fleet.Sync(r.hub.t.Context(), r.ID, &wire.SyncRequest{})
	if err != nil {
		r.hub.t.Fatal(err)
	}
	return answer.GetItems()
}

// Item is the only one of Items.
func (r *Runner) Item() *wire.Item {
	r.hub.t.Helper()
	items := r.Items()
	if len(items) != 1 {
		r.hub.t.Fatalf("the Runner should hold one thing, the Hub says %v", items)
	}
	return items[0]
}

// Report reports a state of an item at the item's generation.
func (r *Runner) Report(item *wire.Item, state string, detail any) error {
	r.hub.t.Helper()
	r.seq++
	b, err := json.Marshal(detail)
	if err != nil {
		r.hub.t.Fatal(err)
	}
	return r.hub.Fleet.Report(r.hub.t.Context(), r.ID, &wire.ReportRequest{
		Id: item.GetId(), Fence: item.GetFence(), Generation: item.GetGeneration(), Seq: r.seq, State: state, Detail: b,
	})
}

// MustReport is Report that has to be accepted.
func (r *Runner) MustReport(item *wire.Item, state string, detail any) {
	r.hub.t.Helper()
	if err := r.Report(item, state, detail); err != nil {
		r.hub.t.Fatalf("report %s: %v", state, err)
	}
}

// Fetch decodes an item's payload.
func (r *Runner) Fetch(item *wire.Item, into any) {
	r.hub.t.Helper()
	answer, err := r.hub.Fleet.Fetch(r.hub.t.Context(), r.ID, &wire.FetchRequest{Id: item.GetId(), Generation: item.GetGeneration(), Fence: item.GetFence()})
	if err != nil {
		r.hub.t.Fatal(err)
	}
	if err := json.Unmarshal(answer.GetPayload(), into); err != nil {
		r.hub.t.Fatal(err)
	}
}

// Values asks for an item's values, as a Runner does before it starts anything.
func (r *Runner) Values(item *wire.Item) (values map[string]*wire.Value, refused string) {
	r.hub.t.Helper()
	answer, err := r.hub.Fleet.Values(r.hub.t.Context(), r.ID, &wire.ValuesRequest{Id: item.GetId(), Generation: item.GetGeneration(), Fence: item.GetFence()})
	if err != nil {
		r.hub.t.Fatal(err)
	}
	values = map[string]*wire.Value{}
	for _, v := range answer.GetValues() {
		values[v.GetName()] = v
	}
	return values, answer.GetRefused()
}

// Digest and BuildKey are what Pass reports.
const (
	Digest   = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	BuildKey = "2222222222222222222222222222222222222222222222222222222222222222"
)

// Pass has the Runner pass the Test build it holds.
func (r *Runner) Pass(item *wire.Item) {
	r.hub.t.Helper()
	r.PassOn(item, Digest, BuildKey)
}

// PassOn is Pass on an image of the test's choice.
func (r *Runner) PassOn(item *wire.Item, digest, key string) {
	r.hub.t.Helper()
	r.MustReport(item, wire.StatePassed, wire.TestBuildDetail{ImageDigest: digest, BuildKey: key})
	for _, left := range r.Items() {
		if left.GetId() == item.GetId() {
			r.MustReport(left, wire.StateRemoved, wire.TestBuildDetail{})
		}
	}
}

// Applied saves spec as the draft, tests it on r, and applies it.
func (h *Hub) Applied(g access.Grant, r *Runner, spec envspec.Spec) environment.Version {
	h.t.Helper()
	return h.AppliedWith(g, r, spec, nil)
}

// AppliedWith is Applied with values of Sensitive Variables.
func (h *Hub) AppliedWith(g access.Grant, r *Runner, spec envspec.Spec, given map[string][]byte) environment.Version {
	h.t.Helper()
	ctx := context.WithoutCancel(h.t.Context())
	env, err := h.Environments.Get(ctx, g)
	if err != nil {
		h.t.Fatal(err)
	}
	base := int64(0)
	if env.Draft != nil {
		base = env.Draft.Revision
	}
	draft, err := h.Environments.Save(ctx, g, base, spec, given)
	if err != nil {
		h.t.Fatal(err)
	}
	test, err := h.Environments.Test(ctx, g, draft.Revision, r.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, item := range r.Items() {
		if item.GetKind() == wire.KindTestBuild {
			r.Pass(item)
		}
	}
	version, err := h.Environments.Apply(ctx, g, draft.Revision, "tested by "+test.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	return version
}

// Ago is a time that lies d before now, as the database has it.
func (h *Hub) Ago(d time.Duration) time.Time { return h.DB.Now().Add(-d) }
