package session_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// tokens notes which Repos tokens were made for.
type tokens struct{ repos []int64 }

func (m *tokens) Mint(_ context.Context, repo int64) (fleet.Token, string) {
	m.repos = append(m.repos, repo)
	return fleet.Token{Text: "ghs_" + strings.Repeat("0", 36), Expires: time.Now().Add(time.Hour)}, ""
}

func (m *tokens) Revoke(context.Context, string) error { return nil }

// ofTheApp makes the Repo one that the GitHub App is installed on.
func ofTheApp(t *testing.T, db *store.DB) {
	t.Helper()
	err := db.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE repos SET source = 'github', clone_url = 'https://github.com/acme/rocket.git' WHERE id = $1`, int64(apptest.RepoID))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func askToken(t *testing.T, h *apptest.Hub, r *apptest.Runner, item *wire.Item) *wire.CloneTokenResponse {
	t.Helper()
	res, err := h.Fleet.CloneToken(t.Context(), r.ID, &wire.CloneTokenRequest{Id: item.GetId(), Generation: item.GetGeneration(), Fence: item.GetFence()})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestARepoOfTheAppIsClonedWithATokenForItAlone(t *testing.T) {
	t.Parallel()
	db, m := storetest.New(t), &tokens{}
	h := apptest.New(t, db, apptest.Options{Fleet: fleet.Options{Tokens: m}})
	ofTheApp(t, db)
	ana, r := h.Grant("ana"), h.Runner("r1")
	d, err := h.Environments.Save(t.Context(), ana, 0, spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Environments.Test(t.Context(), ana, d.Revision, "r1"); err != nil {
		t.Fatal(err)
	}
	want := wire.Repo{Name: "acme/rocket", CloneURL: "https://github.com/acme/rocket.git", Token: true}
	var test wire.TestBuild
	if r.Fetch(r.Item(), &test); test.Repo != want {
		t.Errorf("the Test build has %+v", test.Repo)
	}
	if res := askToken(t, h, r, r.Item()); len(res.GetToken()) == 0 || res.GetRefused() != "" {
		t.Errorf("the Test build got %q", res.GetRefused())
	}
	r.Pass(r.Item())
	if _, err := h.Environments.Apply(t.Context(), ana, d.Revision, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Sessions.Start(t.Context(), ana, session.StartInput{}); err != nil {
		t.Fatal(err)
	}
	var sn wire.Session
	if r.Fetch(r.Item(), &sn); sn.Repo != want {
		t.Errorf("the Session has %+v", sn.Repo)
	}
	if res := askToken(t, h, r, r.Item()); len(res.GetToken()) == 0 || res.GetRefused() != "" {
		t.Errorf("the Session got %q", res.GetRefused())
	}
	if len(m.repos) != 2 || m.repos[0] != int64(apptest.RepoID) || m.repos[1] != int64(apptest.RepoID) {
		t.Errorf("minted for %v", m.repos)
	}
}

func TestARunnerThatIsTooOldForTokensGetsNothingOfARepoOfTheApp(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	h := apptest.New(t, db, apptest.Options{Fleet: fleet.Options{Tokens: &tokens{}}})
	ana, old := h.Grant("ana"), h.OldRunner("old", 2)
	h.Applied(ana, old, spec()) // of one of dev.repos it does
	sn, err := h.Sessions.Start(t.Context(), ana, session.StartInput{})
	if err != nil {
		t.Fatal(err)
	}
	ofTheApp(t, db)
	ana = h.Grant("ana")
	s := spec()
	s.Bootstrap += "\necho more"
	env, err := h.Environments.Get(t.Context(), ana)
	if err != nil {
		t.Fatal(err)
	}
	base := int64(0)
	if env.Draft != nil {
		base = env.Draft.Revision
	}
	d, err := h.Environments.Save(t.Context(), ana, base, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	const says = "old runs claude-hub test, which is too old to clone with tokens of the GitHub App: install claude-hub of this Hub's version on its host and start it again"
	_, err = h.Environments.Test(t.Context(), ana, d.Revision, "old")
	wantFault(t, err, fault.Unavailable, says)
	_, err = h.Sessions.Start(t.Context(), ana, session.StartInput{})
	wantFault(t, err, fault.Unavailable, says)
	if err := h.Sessions.Sleep(t.Context(), ana, sn.ID); err != nil {
		t.Fatal(err)
	}
	wantFault(t, h.Sessions.Wake(t.Context(), ana, sn.ID), fault.Refused, "Runner "+says)
	young := h.Runner("young")
	if started, err := h.Sessions.Start(t.Context(), ana, session.StartInput{}); err != nil || started.Runner != young.ID {
		t.Errorf("started on %s: %v", started.Runner, err)
	}
}

// The ids of dev.repos are the config's own: GitHub knows another Repo by the same one.
func TestWhatWasOneOfDevReposIsNotClonedWithoutDevMode(t *testing.T) {
	t.Parallel()
	m := &tokens{}
	h := apptest.New(t, storetest.New(t), apptest.Options{Fleet: fleet.Options{Tokens: m}, Environment: environment.Options{NoHostCredentials: true}})
	ana, r := h.Grant("ana"), h.Runner("r1")
	h.Applied(ana, r, spec())
	if _, err := h.Sessions.Start(t.Context(), ana, session.StartInput{}); err != nil {
		t.Fatal(err)
	}
	var sn wire.Session
	if r.Fetch(r.Item(), &sn); sn.Repo.HostCredentials || !sn.Repo.Token {
		t.Errorf("the Session has %+v", sn.Repo)
	}
	res := askToken(t, h, r, r.Item())
	if len(res.GetToken()) > 0 || !strings.Contains(res.GetRefused(), "The Repo acme/rocket isn't cloned: it is one of dev.repos") || len(m.repos) > 0 {
		t.Errorf("got %q, minted for %v", res.GetRefused(), m.repos)
	}
}

func TestOneOfDevReposIsClonedWithTheHostsCredentialsInDevMode(t *testing.T) {
	t.Parallel()
	m := &tokens{}
	h := apptest.New(t, storetest.New(t), apptest.Options{Fleet: fleet.Options{Tokens: m}})
	ana, r := h.Grant("ana"), h.Runner("r1")
	h.Applied(ana, r, spec())
	if _, err := h.Sessions.Start(t.Context(), ana, session.StartInput{}); err != nil {
		t.Fatal(err)
	}
	var sn wire.Session
	if r.Fetch(r.Item(), &sn); !sn.Repo.HostCredentials || sn.Repo.Token {
		t.Errorf("the Session has %+v", sn.Repo)
	}
	if res := askToken(t, h, r, r.Item()); len(res.GetToken()) > 0 || len(m.repos) > 0 {
		t.Errorf("a Runner that asks anyway got one for %v", m.repos)
	}
}
