package handlers_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestACommandIsStartedOnASessionsPage(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		s := newSite(t, db, apptest.Options{})
		g, r, b := s.Grant("ana"), s.Runner("r1"), s.as("ana")
		s.Applied(g, r, spec())
		sn, err := s.Sessions.Start(t.Context(), g, session.StartInput{Runner: r.ID})
		if err != nil {
			t.Fatal(err)
		}
		page := sessionPage(g.Repo().ID.String(), sn.ID)
		form := `action="` + page + `/runs"`
		if strings.Contains(b.get(page).body, form) {
			t.Error("a command can be started while nothing is up")
		}
		item := r.Item()
		r.MustReport(item, wire.StateRunning, wire.SessionDetail{Version: 1, Workspace: true})
		b.see(page, form)

		run := b.posted(page+"/runs", url.Values{"command": {" echo \"<b>\"\r\nmake test "}, "time_limit": {"90m"}})
		b.see(run, "echo &#34;&lt;b&gt;&#34;", "make test", "waiting")
		b.see(page, run)
		all, err := s.Sessions.Runs(t.Context(), g, sn.ID)
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		var asked wire.Run
		for _, i := range r.Items() {
			if i.GetKind() == string(wire.KindRun) {
				r.Fetch(i, &asked)
			}
		}
		if want := []string{"sh", "-c", "echo \"<b>\"\nmake test"}; !slices.Equal(asked.Argv, want) || asked.LimitMS != 90*60*1000 {
			t.Errorf("its Runner is asked for %q within %d ms, want %q within 90 minutes", asked.Argv, asked.LimitMS, want)
		}

		for _, c := range []struct {
			command, limit, says string
			status               int
		}{
			{"  ", "", "Say what to run.", http.StatusUnprocessableEntity},
			{"make lint", "soon", "A time limit is a number with a unit, such as 90m or 2h.", http.StatusUnprocessableEntity},
			{"make lint", "1ms", "A time limit is a second at least; 0 is none.", http.StatusUnprocessableEntity},
			{"make " + strings.Repeat("x", 300_000), "", "Put more into a file.", http.StatusUnprocessableEntity},
		} {
			b.want(b.post(page+"/runs", url.Values{"command": {c.command}, "time_limit": {c.limit}}), c.status, c.says, strings.TrimSpace(c.command), `value="`+c.limit+`"`)
		}
		if err := s.Sessions.Sleep(t.Context(), g, sn.ID); err != nil {
			t.Fatal(err)
		}
		b.want(b.post(page+"/runs", url.Values{"command": {"make lint"}}), http.StatusConflict, "This Session is stopping. It runs commands when it is up.", "make lint")
	})
}

func sessionPage(repo, id string) string { return "/repos/" + repo + "/sessions/" + id }
