package setup_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/store"
)

// of is what the store has of an installation.
func (r *rig) of(id int64) setup.Installation {
	r.t.Helper()
	var i setup.Installation
	if err := r.db.Read(r.ctx(), func(tx *store.Tx) (err error) { i, _, err = setup.Of(tx, id); return err }); err != nil {
		r.t.Fatal(err)
	}
	return i
}

func (r *rig) told(id int64, action string) {
	r.t.Helper()
	if err := r.Installation(r.ctx(), github.Event{Name: "installation", Action: action, Installation: id}); err != nil {
		r.t.Fatal(err)
	}
}

func TestEventsOfInstallationsSayOnlyWhereToLook(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.create("Our Hub", false)
		inst := r.gh.Install(r.app().ID(), r.org, r.ana, r.repo)
		if i := r.of(inst.ID); i.ID != 0 {
			t.Fatalf("%+v", i)
		}
		// Late, twice, and of something that has long been otherwise.
		for _, action := range []string{"deleted", "suspend", "created", "created"} {
			r.told(inst.ID, action)
			if i := r.of(inst.ID); i.ID != inst.ID || i.Account.Login != "octo" || i.Account.ID != r.org.ID || i.Removed || i.Suspended || i.All || i.Trouble() != "" || i.Permissions["checks"] != "write" {
				t.Fatalf("after %s: %+v", action, i)
			}
		}
		if n := r.count("audit_log WHERE action = 'github-app.installation'"); n != 1 {
			t.Errorf("audited %d times", n)
		}
		inst.Suspend(true)
		r.told(inst.ID, "unsuspend")
		if i := r.of(inst.ID); !i.Suspended || !strings.Contains(i.Trouble(), "suspended on octo") {
			t.Fatalf("%+v", i)
		}
		if says, err := r.Trouble(r.ctx(), inst.ID); err != nil || says != r.of(inst.ID).Trouble() {
			t.Errorf("%q %v", says, err)
		}
		for _, none := range []int64{0, 999_999} {
			if says, err := r.Trouble(r.ctx(), none); err != nil || says != "" {
				t.Errorf("%d: %q %v", none, says, err)
			}
		}
		inst.Suspend(false)
		r.told(inst.ID, "suspend")
		if i := r.of(inst.ID); i.Suspended {
			t.Fatalf("%+v", i)
		}
		inst.Grant(map[string]string{"metadata": "read"})
		r.told(inst.ID, "new_permissions_accepted")
		if i := r.of(inst.ID); len(github.Lacking(i.Permissions)) == 0 {
			t.Fatalf("%+v", i)
		}
		inst.Remove()
		r.told(inst.ID, "created")
		if i := r.of(inst.ID); !i.Removed || !strings.Contains(i.Trouble(), "uninstalled from octo") {
			t.Fatalf("%+v", i)
		}
		again := r.gh.Install(r.app().ID(), r.org, r.ana)
		r.told(again.ID, "created")
		if i := r.of(again.ID); !i.All || i.Removed {
			t.Fatalf("%+v", i)
		}
		mend := r.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})
		if err := r.Installation(r.ctx(), github.Event{Installation: again.ID}); !github.Unavailable.Is(err) {
			t.Errorf("while GitHub is down: %v", err)
		}
		mend()
	})
}

func TestWhatNoEventToldIsFoundBySync(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		var told []string
		r.o.Changed = func(_ *store.Tx, i setup.Installation) error {
			told = append(told, i.Account.Login)
			return nil
		}
		r.Service, r.holder = r.hub()
		if err := r.Sync(r.ctx()); !github.NoApp.Is(err) {
			t.Fatal(err)
		}
		r.create("Our Hub", false)
		first, second := r.gh.Install(r.app().ID(), r.org, r.ana, r.repo), r.gh.Install(r.app().ID(), r.ana, r.ana)
		sync := func() {
			t.Helper()
			if err := r.Sync(r.ctx()); err != nil {
				t.Fatal(err)
			}
		}
		sync()
		sync()
		if len(told) != 2 || r.of(first.ID).ID == 0 || r.of(second.ID).ID == 0 {
			t.Fatalf("told %v", told)
		}
		first.Remove()
		second.Suspend(true)
		sync()
		if !r.of(first.ID).Removed || !r.of(second.ID).Suspended || len(told) != 4 {
			t.Errorf("%+v %+v, told %v", r.of(first.ID), r.of(second.ID), told)
		}
		mend := r.gh.Break(githubtest.Fault{Path: "/app/installations", Status: http.StatusBadGateway})
		if err := r.Sync(r.ctx()); !github.Unavailable.Is(err) {
			t.Error(err)
		}
		mend()
		if r.of(second.ID).Removed {
			t.Error("an outage of GitHub counts as an uninstallation")
		}
	})
}

func TestNothingOfAnAppThatWasDroppedIsTheNextOnes(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.create("Our Hub", false)
		inst := r.gh.Install(r.app().ID(), r.org, r.ana, r.repo)
		r.told(inst.ID, "created")
		if err := r.Heard(r.ctx(), "push"); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time there is nothing
			if err := r.Drop(r.ctx(), "test"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.holder.App(); !github.NoApp.Is(err) {
			t.Error(err)
		}
		for _, table := range []string{"github_app", "github_secrets", "github_installations", "github_heard"} {
			if n := r.count(table); n != 0 {
				t.Errorf("%s has %d rows", table, n)
			}
		}
	})
}

func TestAnAnswerThatWasAskedForEarlierDoesNotUndoALaterOne(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.create("Our Hub", false)
		inst := r.gh.Install(r.app().ID(), r.org, r.ana, r.repo)
		r.told(inst.ID, "created")
		// The list is asked for and answered; before it is kept, the installation is suspended and that is heard of.
		mend := r.gh.Break(githubtest.Fault{Path: "/app/installations", After: true, Delay: 600 * time.Millisecond, Times: 1})
		defer mend()
		done := make(chan error, 1)
		go func() { done <- r.Sync(r.ctx()) }()
		until(t, "the list is on its way", func() bool { return r.gh.Asked(http.MethodGet, "/app/installations") > 0 || len(done) > 0 })
		inst.Suspend(true)
		r.told(inst.ID, "suspend")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if !r.of(inst.ID).Suspended {
			t.Error("the older answer won")
		}
	})
}

func TestComingBackFromAnInstallationIsBelievedOnlyByGitHubsWord(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.create("Our Hub", false)
		gate, err := access.Open(r.ctx(), r.db, access.Options{DevLogin: true})
		if err != nil {
			t.Fatal(err)
		}
		who, _, err := gate.SignInDev(r.ctx(), "ana")
		if err != nil {
			t.Fatal(err)
		}
		to, browser, err := r.BeginInstall(r.ctx())
		if err != nil {
			t.Fatal(err)
		}
		inst, back, err := r.gh.InstallFrom(to, r.org, r.ana, r.repo)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(back)
		if err != nil || !strings.HasPrefix(back, hubURL+setup.InstalledPath) {
			t.Fatal(back, err)
		}
		state := u.Query().Get("state")
		if _, begun, err := r.Installed(r.ctx(), who, "another browser", state, inst.ID); err != nil || begun {
			t.Errorf("another browser began it: %v %v", begun, err)
		}
		i, begun, err := r.Installed(r.ctx(), who, browser, state, inst.ID)
		if err != nil || !begun || i.ID != inst.ID || i.Account.Login != "octo" {
			t.Errorf("%+v %v %v", i, begun, err)
		}
		if _, begun, err := r.Installed(r.ctx(), who, browser, state, inst.ID); err != nil || begun {
			t.Errorf("the state is good twice: %v %v", begun, err)
		}
		_, _, err = r.Installed(r.ctx(), access.Person{}, browser, state, inst.ID)
		r.want(err, fault.Unauthorized)
		_, _, err = r.Installed(r.ctx(), who, browser, "", inst.ID+1000)
		r.want(err, fault.NotFound)
		if i := r.of(inst.ID + 1000); i.ID != 0 {
			t.Errorf("an installation that isn't was kept: %+v", i)
		}
	})
}

func TestTheChecklistSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		if s := r.step("app"); s.State != setup.ToDo {
			t.Errorf("%+v", s)
		}
		r.create("Our Hub", false)
		check := func(id string, state setup.State, says ...string) {
			t.Helper()
			s := r.step(id)
			if s.State != state {
				t.Errorf("%+v, want %s", s, state)
			}
			for _, w := range says {
				if !strings.Contains(s.Says, w) {
					t.Errorf("%q doesn't say %q", s.Says, w)
				}
			}
		}
		check("app", setup.Done, `"Our Hub" of octo`)
		check("hook", setup.Done)
		check("webhook", setup.ToDo)
		check("install", setup.ToDo)
		if err := r.Heard(r.ctx(), "ping"); err != nil {
			t.Fatal(err)
		}
		for range 100 { // within the minute nothing is written
			if err := r.Heard(r.ctx(), "push"); err != nil {
				t.Fatal(err)
			}
		}
		check("webhook", setup.Done, "(ping)")
		inst := r.gh.Install(r.app().ID(), r.org, r.ana, r.repo)
		r.told(inst.ID, "created")
		check("install", setup.Done, "On octo.")
		inst.Grant(map[string]string{"metadata": "read", "contents": "read"})
		r.told(inst.ID, "new_permissions_accepted")
		steps, err := r.VisitChecklist(r.ctx(), r.enter(true))
		if err != nil || setup.Complete(steps) || !strings.Contains(steps[len(steps)-1].Says, "checks: write") {
			t.Errorf("%+v %v", steps, err)
		}
		if _, err := r.Checklist(r.ctx(), access.Person{}); !fault.Is(err, fault.Unauthorized) {
			t.Error("nobody gets a checklist")
		}
		all, err := r.Checklist(r.ctx(), r.dev("bob"))
		if err != nil || len(all) != len(steps) {
			t.Errorf("%+v %v", all, err)
		}

		// The webhook goes elsewhere, and then GitHub is away. A new Hub knows of no earlier answer.
		r.gh.HookURL(r.app().ID(), "https://elsewhere.example/hook")
		r.again()
		check("hook", setup.Wrong, "https://elsewhere.example/hook", hubURL+setup.HookPath)
		visit := r.enter(true)
		if err := r.RotateHook(r.ctx(), visit); err != nil {
			t.Fatal(err)
		}
		check("hook", setup.Done)
		r.gh.Break(githubtest.Fault{Status: http.StatusBadGateway})
		r.again()
		check("app", setup.Unknown, "GitHub has trouble")
		check("hook", setup.Unknown, "GitHub has trouble")
		check("webhook", setup.Done)
	})
}

// again is the Hub after a restart.
func (r *rig) again() {
	r.t.Helper()
	r.Service, r.holder = r.hub()
	if err := r.Start(r.ctx()); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(r.Stop)
}
