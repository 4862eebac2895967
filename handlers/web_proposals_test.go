package handlers_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// looked is a pull request of ana's with a file, as a webhook has it looked at.
func (w *town) looked(branch, yaml string) githubtest.Pull {
	w.t.Helper()
	p := w.rocket.Propose(w.ana, branch, githubtest.Files{proposal.Path: githubtest.Text(yaml)})
	w.look(p)
	return p
}

func (w *town) look(p githubtest.Pull) {
	w.t.Helper()
	if err := w.Proposals.Look(w.t.Context(), github.RepoID(w.rocket.ID), p.Number); err != nil {
		w.t.Fatal(err)
	}
}

func TestAPullRequestGoesItsWayOnPages(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		w := newTown(t, db, checked.New(t, githubtest.Options{}), apptest.Options{})
		ana := w.in(w.ana)
		path := "/repos/" + github.RepoID(w.rocket.ID).String()
		ana.see(path+"/proposals", "No open pull request changes")
		p := w.looked("env", "image: node:22\nvariables:\n  TOKEN: {sensitive: true, build: true}\n")
		ana.see(path+"/proposals", "#1 ", ">valid<", "ana")
		page := path + "/proposals/1"
		ana.see(page, "Valid: values are missing", "No Runner is registered yet", "<code>node:22</code>", p.SHA(), "No version is applied yet", page+"/variables/TOKEN")
		r := w.Runner("r1")

		// A value.
		enter := page + "/variables/TOKEN"
		ana.see(enter, "for pull request #1", `name="revision" value="1"`)
		if got := ana.post(enter, url.Values{"revision": {"1"}, "value": {"short"}}); got.status != http.StatusUnprocessableEntity || strings.Contains(got.body, ">short<") {
			t.Errorf("%d\n%s", got.status, got.body)
		}
		if to := ana.posted(enter, url.Values{"revision": {"1"}, "value": {"token-0123456789"}}); !strings.HasPrefix(to, page) {
			t.Errorf("led to %s", to)
		}
		if got := ana.post(enter, url.Values{"revision": {"1"}, "value": {"token-9876543210"}}); got.status != http.StatusConflict {
			t.Errorf("an older revision: %d", got.status)
		}
		ana.want(ana.get(path+"/proposals/1/variables/NOTHING"), http.StatusNotFound)

		// A Test build of exactly this commit.
		if got := ana.post(page+"/tests", url.Values{"commit": {w.rocket.Head("main")}, "runner": {r.ID}}); got.status != http.StatusConflict || !strings.Contains(got.body, "has moved on") {
			t.Errorf("another commit: %d", got.status)
		}
		to := ana.posted(page+"/tests", url.Values{"commit": {p.SHA()}, "runner": {r.ID}})
		ana.see(to, page, p.SHA())
		ana.see(page, "Valid: Test build queued")
		r.Pass(r.Item())
		ana.see(page, "Valid, and tested")
		ana.see(path+"/tests", `proposals/1">#1</a>`)

		// Not before the merge.
		ana.want(ana.post(page+"/apply", url.Values{"commit": {p.SHA()}}), http.StatusConflict, "is not merged")
		carl := w.gh.Person("carl")
		w.rocket.Allow(carl, "write")
		sha := p.Merge(carl, "squash")
		w.look(p)
		ana.see(page, "Not applied yet", "carl merged this", "Apply what was merged")
		to = ana.posted(page+"/apply", url.Values{"commit": {sha}, "message": {"for carl"}})
		ana.see(to, "for carl", "from commit "+sha)
		ana.see(page, "Applied")
		if got := ana.get(page); strings.Contains(got.body, "token-0123") {
			t.Error("a page has a value")
		}

		// Another one, taken over by hand.
		q := w.looked("next", "image: node:24\n")
		next := path + "/proposals/2"
		ana.see(next, "The draft of these pages has no changes of its own")
		to = ana.posted(next+"/adopt", url.Values{"base": {"1"}})
		ana.see(to, "node:24")
		ana.see(next, "says the same")
		ana.want(ana.post(next+"/adopt", url.Values{"base": {"1"}}), http.StatusConflict, "saved this draft meanwhile")
		ana.posted(next+"/again", nil)
		mend := w.gh.Break(githubtest.Fault{Method: "GET", Path: "/pulls/", Status: 502, Body: "{}"})
		ana.want(ana.post(next+"/again", nil), http.StatusServiceUnavailable, "GitHub")
		mend()
		q.Close(w.ana, true)
		w.look(q)
		ana.see(next, "was closed")

		// The way back.
		ana.see(path+"/environment", "/environment/propose")
		ana.see(path+"/environment/propose", "image: node:24", proposal.Path, w.gh.URLs().Web+"/acme/rocket/new/main?filename=.claude-hub%2Fenvironment.yml")
		for _, gone := range []string{"/proposals/99", "/proposals/0", "/proposals/99999999999999999999"} {
			ana.want(ana.get(path+gone), http.StatusNotFound)
		}
	})
}

func TestAPullRequestGoesItsWayByTheAPI(t *testing.T) {
	t.Parallel()
	w := newTown(t, storetest.New(t), checked.New(t, githubtest.Options{}), apptest.Options{})
	ana := w.in(w.ana)
	token, looking := ana.tokenOf(access.ScopeRead, access.ScopeEnvironments), ana.tokenOf(access.ScopeRead)
	p := w.looked("env", "image: node:22\nvariables:\n  TOKEN: {sensitive: true}\n")
	r := w.Runner("r1")
	path := "/repos/" + github.RepoID(w.rocket.ID).String() + "/proposals"
	var all []schema.Proposal
	w.api(http.MethodGet, path, looking, nil, &all)
	if len(all) != 1 || all[0].Number != 1 || all[0].File != "valid" || all[0].Author != "ana" || all[0].Commit != p.SHA() {
		t.Fatalf("%+v", all)
	}
	get := func() (d schema.ProposalDetail) {
		t.Helper()
		w.api(http.MethodGet, path+"/1", looking, nil, &d)
		return d
	}
	if d := get(); d.Draft == nil || d.At != p.SHA() || d.Heading != "Valid: values are missing" || len(d.Missing) != 1 || len(d.Changes) != 2 {
		t.Fatalf("%+v", d)
	}
	do := func(status int, what string, body any) page {
		t.Helper()
		got := w.api(http.MethodPost, path+"/1"+what, token, body, nil)
		if got.status != status {
			t.Fatalf("%s: %d %s", what, got.status, got.body)
		}
		return got
	}
	do(http.StatusConflict, "/tests", schema.TestProposal{Commit: p.SHA(), Runner: "r1"}) // a value is missing
	text := "token-0123456789"
	do(http.StatusNoContent, "/variables/TOKEN/enter", schema.EnterProposed{Revision: 1, Value: schema.Value{Text: &text}})
	do(http.StatusUnprocessableEntity, "/tests", schema.TestProposal{Commit: p.SHA()})
	do(http.StatusCreated, "/tests", schema.TestProposal{Commit: p.SHA(), Runner: "r1"})
	if got := w.api(http.MethodPost, path+"/1/tests", looking, schema.TestProposal{Commit: p.SHA(), Runner: "r1"}, nil); got.status != http.StatusForbidden {
		t.Errorf("a token that may only read: %d", got.status)
	}
	r.Pass(r.Item())
	if d := get(); !d.Verdict.OK || len(d.Tests) != 1 || d.Tests[0].PullRequest != 1 || d.Tests[0].Commit != p.SHA() {
		t.Fatalf("%+v", d)
	}
	do(http.StatusConflict, "/apply", schema.ApplyProposal{Commit: p.SHA()})
	do(http.StatusNoContent, "/again", struct{}{})
	do(http.StatusOK, "/adopt", schema.AdoptProposal{})
	sha := p.Merge(w.gh.Bot("queue[bot]"), "merge")
	w.look(p)
	if d := get(); d.State != "merged" || d.Outcome != "needs" || d.Merged != sha {
		t.Fatalf("%+v", d)
	}
	if got := do(http.StatusCreated, "/apply", schema.ApplyProposal{Commit: sha, Message: "m"}); !strings.Contains(got.body, `"source":"commit `+sha+`"`) {
		t.Errorf("%s", got.body)
	}
	if d := get(); d.Outcome != "applied" || d.Draft != nil {
		t.Errorf("%+v", d)
	}
}
