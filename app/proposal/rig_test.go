package proposal_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// rig is a Hub beside a GitHub: the App is installed on octo's app, which ana may write. ana signed in here, eve never did, and
// bob did once, and has no access to that Repo.
type rig struct {
	*proposal.Service
	t             *testing.T
	gh            *githubtest.Server
	hub           *apptest.Hub
	holder        *github.Holder
	cred          githubtest.App
	ana, bob, eve githubtest.Account
	repo          githubtest.Repo
	inst          githubtest.Installation
	grant         access.Grant // ana's
	runner        *apptest.Runner
}

const (
	path     = proposal.Path
	callback = "http://hub.example/auth/github/callback"
	public   = "https://hub.example"
)

// each runs f on both databases beside github.com, and on one beside an Enterprise Server.
func each(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		f(t, newRig(t, db, githubtest.Options{}, proposal.Options{}))
	})
	t.Run("GHES", func(t *testing.T) {
		t.Parallel()
		f(t, newRig(t, storetest.New(t), githubtest.Options{GHES: true}, proposal.Options{}))
	})
}

// one is a rig on SQLite beside github.com.
func one(t *testing.T, o proposal.Options) *rig {
	t.Helper()
	t.Parallel()
	return newRig(t, storetest.New(t), githubtest.Options{}, o)
}

func newRig(t *testing.T, db *store.DB, where githubtest.Options, o proposal.Options) *rig {
	t.Helper()
	gh := checked.New(t, where)
	r := &rig{t: t, gh: gh, ana: gh.Person("ana"), bob: gh.Person("bob"), eve: gh.Person("eve")}
	org := gh.Org("octo")
	r.repo = gh.Repo("octo/app", true, githubtest.Files{"README.md": githubtest.Text("app\n")})
	other := gh.Repo("octo/other", true, githubtest.Files{"README.md": githubtest.Text("other\n")})
	r.repo.Allow(r.ana, "write")
	r.repo.Allow(r.eve, "write")
	other.Allow(r.bob, "write")
	r.cred = gh.App(githubtest.AppOptions{Callbacks: []string{callback}})
	r.inst = gh.Install(r.cred.ID, org, r.ana, r.repo, other)
	u := gh.URLs()
	app, err := github.New(github.Options{
		Endpoints: github.Endpoints{Web: u.Web, API: u.API, GraphQL: u.GraphQL}, Callback: callback, Version: "test",
		Credentials: github.Credentials{
			AppID: r.cred.ID, Slug: r.cred.Slug, ClientID: r.cred.ClientID, ClientSecret: github.NewSecret(r.cred.ClientSecret),
			PrivateKey: github.NewSecret(r.cred.PrivateKey), WebhookSecrets: []github.Secret{github.NewSecret(r.cred.WebhookSecret)},
		},
	})
	must(t, err)
	r.holder = github.NewHolder(app)
	r.hub = apptest.New(t, db, apptest.Options{Access: access.Options{GitHub: r.holder}, Environment: environment.Options{NoHostCredentials: true}, Proposal: o})
	r.Service = r.hub.Proposals
	who := r.signIn(r.ana)
	r.signIn(r.bob)
	r.grant, err = r.hub.Gate.Repo(t.Context(), who, r.id())
	must(t, err)
	r.runner = r.hub.Runner("r1")
	return r
}

func (r *rig) signIn(who githubtest.Account) access.Person {
	r.t.Helper()
	to, browser, err := r.hub.Gate.BeginSignIn(r.t.Context(), "/")
	must(r.t, err)
	back, err := r.gh.Authorize(to, who)
	must(r.t, err)
	u, err := url.Parse(back)
	must(r.t, err)
	p, _, _, err := r.hub.Gate.FinishSignIn(r.t.Context(), browser, u.Query().Get("state"), u.Query().Get("code"))
	must(r.t, err)
	return p
}

func (r *rig) id() github.RepoID { return github.RepoID(r.repo.ID) }

func account(a githubtest.Account) github.Account {
	kind := "User"
	if strings.HasSuffix(a.Login(), "[bot]") {
		kind = "Bot"
	}
	return github.Account{ID: a.ID, Login: a.Login(), Type: kind}
}

// propose opens a pull request of ana's with a file, and looks at it.
func (r *rig) propose(branch, yaml string) githubtest.Pull {
	r.t.Helper()
	return r.proposeFiles(branch, githubtest.Files{path: githubtest.Text(yaml)})
}

func (r *rig) proposeFiles(branch string, files githubtest.Files) githubtest.Pull {
	r.t.Helper()
	p := r.repo.Propose(r.ana, branch, files)
	r.look(p)
	return p
}

// look looks at a pull request, and at what is due then.
func (r *rig) look(p githubtest.Pull) {
	r.t.Helper()
	must(r.t, r.Look(r.t.Context(), r.id(), p.Number))
	r.settle()
}

// settle looks at all that is due.
func (r *rig) settle() {
	r.t.Helper()
	for range 20 {
		wait, err := r.Due(r.t.Context())
		must(r.t, err)
		if wait > 0 {
			return
		}
	}
	r.t.Fatal("there is always something to look at")
}

// shown are the check runs of a name on a commit, oldest first.
func (r *rig) shown(sha, name string) []checks.View {
	r.t.Helper()
	var views []checks.View
	must(r.t, r.hub.DB.Read(r.t.Context(), func(tx *store.Tx) error {
		ids, err := store.All(tx, store.Scan1[string], `SELECT external_id FROM check_runs WHERE repo_id = $1 AND sha = $2 AND name = $3 ORDER BY created_at, external_id`,
			r.repo.ID, sha, name)
		if err != nil {
			return err
		}
		for _, id := range ids {
			v, _, err := checks.Read(tx, id)
			if err != nil {
				return err
			}
			views = append(views, v)
		}
		return nil
	}))
	return views
}

// check is the newest check run "Environment" of a commit.
func (r *rig) check(sha string) checks.View {
	r.t.Helper()
	all := r.shown(sha, proposal.CheckName)
	if len(all) == 0 {
		r.t.Fatalf("%s has no check run", sha)
	}
	return all[len(all)-1]
}

// says wants the newest check run "Environment" of a commit to be so.
func (r *rig) says(sha, conclusion, title string, in ...string) checks.View {
	r.t.Helper()
	v := r.check(sha)
	if v.Status != checks.Completed || v.Conclusion != conclusion || !strings.Contains(v.Title.String(), title) {
		r.t.Fatalf("the check run is %s %s: %s\n%s", v.Status, v.Conclusion, v.Title, v.Summary)
	}
	for _, s := range in {
		if !strings.Contains(v.Summary.String()+"\n"+v.Text.String(), s) {
			r.t.Errorf("%q is missing in\n%s\n%s", s, v.Summary, v.Text)
		}
	}
	return v
}

// get is a pull request as its page has it.
func (r *rig) get(p githubtest.Pull) proposal.Detail {
	r.t.Helper()
	d, err := r.Get(r.t.Context(), r.grant, p.Number)
	must(r.t, err)
	return d
}

// env is the Environment as it is.
func (r *rig) env() environment.Environment {
	r.t.Helper()
	e, err := r.hub.Environments.Get(r.t.Context(), r.grant)
	must(r.t, err)
	return e
}

// test starts a Test build of a pull request as ana on its page, and passes it.
func (r *rig) test(p githubtest.Pull) environment.TestBuild {
	r.t.Helper()
	b, err := r.Test(r.t.Context(), r.grant, p.Number, r.get(p).Draft.Commit, "r1")
	must(r.t, err)
	r.runner.Pass(r.runner.Item())
	r.settle()
	return b
}

func (r *rig) press(sha string, by githubtest.Account) {
	r.t.Helper()
	v := r.check(sha)
	if len(v.Buttons) == 0 {
		r.t.Fatalf("there is no button in\n%s", v.Summary)
	}
	must(r.t, r.Pressed(r.t.Context(), r.id(), github.CheckEvent{SHA: sha, Name: v.Name, ExternalID: v.ExternalID, Button: v.Buttons[0].Identifier}, account(by)))
	r.settle()
}

func (r *rig) tests() []environment.TestBuild {
	r.t.Helper()
	all, err := r.hub.Environments.TestBuilds(r.t.Context(), r.grant, 50)
	must(r.t, err)
	return all
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantFault(t *testing.T, err error, code fault.Code, says string) {
	t.Helper()
	if !fault.Is(err, code) || !strings.Contains(err.Error(), says) {
		t.Fatalf("want %s with %q, got %v", code, says, err)
	}
}
