package setup_test

import (
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/setup"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestATokenOfTheConsoleOpensTheSetUpOnce(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		token, expires, err := r.NewToken(r.ctx(), "test", false)
		if err != nil || time.Until(expires) > setup.TokenLife || time.Until(expires) < setup.TokenLife-time.Minute {
			t.Fatalf("%v %v", expires, err)
		}
		if r.URL(token) != hubURL+"/setup?token="+token {
			t.Error(r.URL(token))
		}
		visit, _, err := r.Enter(r.ctx(), token)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := r.Visit(r.ctx(), visit); err != nil || v.Refused != nil || v.Rotate {
			t.Errorf("%+v %v", v, err)
		}
		_, _, used := r.Enter(r.ctx(), token)
		r.want(used, fault.Refused, "was used already, or is too old", "claude-hub setup-token")
		for _, wrong := range []string{"", "x", visit, token + "x", "\x00"} {
			if _, _, err := r.Enter(r.ctx(), wrong); err == nil || err.Error() != used.Error() {
				t.Errorf("%q: %v", wrong, err)
			}
		}
		for _, none := range []string{"", token, "x"} {
			_, err := r.Visit(r.ctx(), none)
			r.want(err, fault.Unauthorized, "printed on its console")
			_, err = r.Begin(r.ctx(), none, setup.Plan{Name: "hub"})
			r.want(err, fault.Unauthorized)
			r.want(r.Take(r.ctx(), none, setup.Values{}), fault.Unauthorized)
			r.want(r.RotateHook(r.ctx(), none), fault.Unauthorized)
			_, err = r.VisitChecklist(r.ctx(), none)
			r.want(err, fault.Unauthorized)
		}
	})
}

func TestTokensAndVisitsEndByThemselves(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	clock := storetest.NewClock(db)
	r := newRig(t, db, checked.New(t, githubtest.Options{}))
	token, _, err := r.NewToken(r.ctx(), "test", false)
	if err != nil {
		t.Fatal(err)
	}
	clock.Advance(setup.TokenLife - time.Second)
	visit, _, err := r.Enter(r.ctx(), token)
	if err != nil {
		t.Fatal(err)
	}
	late, _, err := r.NewToken(r.ctx(), "test", false)
	if err != nil {
		t.Fatal(err)
	}
	clock.Advance(setup.TokenLife)
	_, _, err = r.Enter(r.ctx(), late)
	r.want(err, fault.Refused, "too old")
	_, err = r.Visit(r.ctx(), visit)
	r.want(err, fault.Unauthorized)
}

func TestOnlyATokenForChangesReplacesAnApp(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		early := r.enter(false) // before there was an App
		r.create("First", false)
		first := r.app().ID()
		late := r.enter(false)
		for _, visit := range []string{early, late} {
			if v, err := r.Visit(r.ctx(), visit); err != nil || v.Refused == nil || v.Rotate {
				t.Errorf("%+v %v", v, err)
			}
			_, err := r.Begin(r.ctx(), visit, setup.Plan{Name: "Second"})
			r.want(err, fault.Conflict, "claude-hub setup-token")
			r.want(r.Take(r.ctx(), visit, setup.Values{}), fault.Conflict)
			r.want(r.RotateHook(r.ctx(), visit), fault.Conflict)
		}
		r.create("Second", true)
		if r.app().ID() == first {
			t.Error("it is the first one still")
		}
	})
}

func TestAnAppOfTheConfigIsNotChangedHere(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		_, _, err := r.NewToken(r.ctx(), "test", true)
		r.want(err, fault.Refused, "section github")
		_, _, err = r.Enter(r.ctx(), "x")
		r.want(err, fault.Refused, "section github")
	}, func(r *rig) { r.o.Given = &github.Credentials{} })
}
