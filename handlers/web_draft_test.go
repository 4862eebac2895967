package handlers_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/apptest"
	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/app/github/githubtest/checked"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestAConflictOffersAThreeWayChoice(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	ana, bob := s.as("ana"), s.as("bob")
	ana.posted(environmentPath, draft(0, "debian:12", "echo first", "echo start", "", "1GiB"))
	page := bob.see(environmentPath)
	ana.change(environmentPath, environmentPath, url.Values{"bootstrap": {"echo ana's"}, "cpu": {"3"}, "folders": {"none"}, "docker": {"on"}, "memory": {"2GiB"}}, nil)

	p := bob.upload(environmentPath, bob.fill(page, environmentPath, url.Values{"bootstrap": {"echo bob's\n\n"}, "image": {"debian:13"}, "memory": {"4GiB"}}), nil)
	bob.want(p, http.StatusConflict, "ana saved this draft meanwhile", "What ana saved as revision 2", "Only ana changed these", "Take theirs, drop mine", "Save mine over revision 2",
		`name="base" value="2"`, "echo bob&#39;s\n\n</textarea>", `value="debian:13"`, `name="was.bootstrap" value="echo ana&#39;s"`)
	theirs := p.body[strings.Index(p.body, `class="theirs"`):strings.Index(p.body, `class="spec"`)]
	for _, label := range []string{"Bootstrap script", "Memory"} {
		part := theirs[strings.Index(theirs, "<h3>"+label+"</h3>"):]
		if !regexp.MustCompile(`(?s)^<h3>[^<]*</h3>\s*<div class="sides">.*?Theirs.*?(ana&#39;s|2GiB).*?Yours.*?(bob&#39;s|4GiB).*?What both began with.*?(first|1GiB)`).MatchString(part) {
			t.Errorf("%s isn't shown as theirs, mine and what both began with:\n%s", label, part)
		}
	}
	for _, label := range []string{"Image", "CPU", "Start script", "Docker", "Dependency folders"} {
		if strings.Contains(theirs, "<h3>"+label+"</h3>") {
			t.Errorf("%s is no conflict, and shown as one", label)
		}
	}
	for _, label := range []string{"CPU", "Docker", "Dependency folders"} {
		if !strings.Contains(theirs, "<dt>"+label+"</dt>") {
			t.Errorf("that only ana changed %s is not said", label)
		}
	}
	if p := bob.upload(environmentPath, bob.fill(p, environmentPath, nil), nil); p.status != http.StatusSeeOther {
		t.Fatalf("saving mine over theirs: %d\n%s", p.status, p.body)
	}
	got := s.environment().Draft.Spec
	if got.Image != "debian:13" || got.Bootstrap != "echo bob's\n\n" || got.CPU != 3 || !got.Docker || got.Folders == nil || got.Memory != 4<<30 || got.Start != "echo start" {
		t.Errorf("what both wanted isn't there: %+v", got)
	}

	// Where nothing was changed by both, one more press keeps both.
	page = bob.see(environmentPath)
	ana.change(environmentPath, environmentPath, url.Values{"start": {"echo ana"}}, nil)
	p = bob.upload(environmentPath, bob.fill(page, environmentPath, url.Values{"cpu": {"1"}}), nil)
	bob.want(p, http.StatusConflict, "You changed nothing that they changed too", "echo ana</textarea>", `name="cpu" value="1"`)
	ana.change(environmentPath+"/discard", environmentPath+"/discard", nil, nil)
	p = bob.upload(environmentPath, bob.fill(p, environmentPath, nil), nil)
	bob.want(p, http.StatusConflict, "The draft you edited is gone", `name="cpu" value="1"`)
	if p := bob.upload(environmentPath, bob.fill(p, environmentPath, nil), nil); p.status != http.StatusSeeOther {
		t.Fatalf("saving after theirs was discarded: %d\n%s", p.status, p.body)
	}
}

func TestWhatIsPendingIsReviewedDiscardedAndRestored(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b, r, g := s.as("ana"), s.Runner("r1"), s.Grant("ana")
	one := spec()
	one.Bootstrap = "echo one\necho two\necho three\n"
	one.Variables = []envspec.Variable{{Name: "NPM", Sensitive: true, Build: true}, {Name: "REGION", Value: "eu-hidden-1"}}
	s.AppliedWith(g, r, one, map[string][]byte{"NPM": []byte("npm-token-0123456789")})
	first := s.saved("NPM").ValueID
	if p := b.see(environmentPath); strings.Contains(p.body, "pending change") {
		t.Error("something is pending right after applying")
	}
	b.change(environmentPath, environmentPath, url.Values{"bootstrap": {"echo one\necho 2\necho three\n"}, "cpu": {"2"}}, nil)
	region := environmentPath + "/variables/REGION"
	b.change(region, region, url.Values{"value": {"us-hidden-1"}}, nil)
	npm := environmentPath + "/variables/NPM"
	b.change(npm, npm, url.Values{"value": {"another-token-0123"}}, nil)
	b.see(environmentPath, "4 pending changes", `href="/repos/42/diff">Review`, "This applies without a Test build", "This needs a passing Test build")
	p := b.see(repoPath+"/diff", "From version 1 to the draft", "what the Runner gives", "Applies at once", "@@ -1,3 +1,3 @@", "1 line added, 1 line removed", `<tr class="removed">`, `<tr class="added">`, "echo 2",
		"Value changes (hidden)", "A Test build, and a new build on each Runner")
	for _, value := range []string{"eu-hidden-1", "us-hidden-1", "npm-token", "another-token"} {
		if strings.Contains(p.body, value) {
			t.Errorf("the comparison shows the value %s", value)
		}
	}
	b.see(repoPath+"/diff?from=1&to=1", "They say the same.")
	b.see(repoPath+"/diff?from=none&to=1", "From no Environment to version 1", "Is added (Plain)", "Is added (Sensitive, available at build)")
	for _, bad := range []string{"from=2", "from=x", "to=-1", "to=none", "from=99999999999999999999"} {
		if p := b.get(repoPath + "/diff?" + bad); p.status != http.StatusNotFound {
			t.Errorf("%s: %d", bad, p.status)
		}
	}

	discard := environmentPath + "/discard"
	stale := b.see(discard, "4", "version 1", "can't be brought back")
	b.change(environmentPath, environmentPath, url.Values{"cpu": {"4"}}, nil)
	b.want(b.upload(discard, b.fill(stale, discard, nil), nil), http.StatusConflict, "ana saved this draft meanwhile. Nothing was discarded: look at the newer draft and discard again.")
	b.see(b.change(discard, discard, nil, nil), "The changes are discarded.")
	if p := b.get(discard); p.status != http.StatusSeeOther || p.header.Get("Location") != environmentPath {
		t.Errorf("asked to discard nothing: %d", p.status)
	}
	if v := s.saved("NPM"); v.ValueID != first || s.environment().Draft.Spec.CPU != 0 {
		t.Errorf("after discarding: %+v", s.environment().Draft.Spec)
	}
	if p := b.see(environmentPath); strings.Contains(p.body, "pending change") {
		t.Error("something is pending after discarding")
	}

	b.change(environmentPath, environmentPath, url.Values{"cpu": {"2"}}, nil)
	b.posted(environmentPath+"/apply", url.Values{"revision": {"7"}, "message": {"more CPU"}})
	to := b.posted(repoPath+"/sessions", nil)
	r.MustReport(r.Item(), wire.StateRunning, wire.SessionDetail{Workspace: true, Version: 2})
	b.see(to, "version 2")
	b.see(repoPath+"/versions", "more CPU", "1 awake", "by ana, from the draft", `href="/repos/42/versions/1/restore"`, `href="/repos/42/diff?from=1&amp;to=draft"`)
	p = b.see(repoPath+"/versions/2", "1 awake", "Compare with version 1", "<code>NPM</code>", "digest", "Number of CPUs: <code>what the Runner gives</code> → <code>2</code>")
	if strings.Contains(p.body, "Once applied") || strings.Contains(p.body, "needs a passing Test build") || strings.Contains(p.body, "without a Test build") {
		t.Errorf("an applied version says what its changes need:\n%s", p.body)
	}
	b.see(repoPath+"/diff?from=1&to=2", "From version 1 to version 2", "Applies at once")
	restore := repoPath + "/versions/1/restore"
	b.see(restore, "Restore version 1 as the draft?", "The number of CPUs changes from 2 to what the Runner gives.")
	b.see(b.change(restore, restore, nil, nil), "Saved as revision 8.", "1 pending change<")
	if got := s.environment(); got.Draft.Spec.CPU != 0 || got.Current.Number != 2 || s.saved("NPM").ValueID != first {
		t.Errorf("after restoring: %+v", got.Draft.Spec)
	}
	stale = b.see(restore)
	b.change(environmentPath, environmentPath, url.Values{"cpu": {"8"}}, nil)
	b.see(restore, "The draft has changes that were never applied")
	b.want(b.upload(restore, b.fill(stale, restore, nil), nil), http.StatusConflict, "ana saved this draft meanwhile. Nothing was restored: look at the newer draft and restore again.")
}

func TestADraftThatWasNeverAppliedCanBeDiscardedWhole(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b := s.as("ana")
	discard := environmentPath + "/discard"
	if p := b.get(discard); p.status != http.StatusSeeOther {
		t.Fatalf("nothing to discard: %d", p.status)
	}
	b.want(b.upload(discard, url.Values{"base": {"0"}}, nil), http.StatusSeeOther)
	b.add("REGION", "plain", "eu-1", nil)
	b.see(environmentPath, "Discard the draft")
	b.see(repoPath+"/diff", "From no Environment to the draft", "Is added (Plain)")
	b.see(b.change(discard, discard, nil, nil), "The changes are discarded.", "None yet.")
	if env := s.environment(); env.Draft != nil {
		t.Errorf("the draft is still there: %+v", env.Draft)
	}
}

func TestAVersionTellsThatASharedValueChangedSince(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b, r, g := s.as("ana"), s.Runner("r1"), s.Grant("ana")
	b.change("/add-shared", "/add-shared", url.Values{"name": {"WIDE"}, "kind": {"plain"}, "value": {"one"}}, nil)
	recipe := spec()
	recipe.Variables = []envspec.Variable{{Name: "MINE", Link: "WIDE", Build: true}}
	s.Applied(g, r, recipe)
	if p := b.see(repoPath + "/versions/1"); strings.Contains(p.body, "shared value of") {
		t.Error("a change is told before there was one")
	}
	b.see("/shared/WIDE", "It is available at build in the Environment of acme/rocket: there each Runner makes a new build with it the next time a Session boots")
	b.see(b.change("/shared/WIDE", "/shared/WIDE/value", url.Values{"value": {"two"}}, nil), "The value is saved. Sessions get a new value")
	b.see(repoPath+"/versions/1", "<code>MINE</code>: shared value of <code>WIDE</code> changed", "by ana", "that was never tested")
}

func TestSharedVariablesAreManagedByAnyoneSignedIn(t *testing.T) {
	t.Parallel()
	s := newTown(t, storetest.New(t), checked.New(t, githubtest.Options{}), apptest.Options{})
	b, stranger, r := s.in(s.ana), s.in(s.bob), s.Runner("r1")
	g := b.grant(s.rocket)
	const secret = "shared-secret-12345"
	b.see("/shared", "There is none yet.")
	for _, c := range []struct {
		set  url.Values
		says []string
	}{
		{url.Values{"name": {"a b"}, "value": {secret}}, []string{`<a href="#name">`, "letters, digits and _ only", "give it again"}},
		{url.Values{"name": {"X"}, "value": {"t1ny!"}}, []string{`id="value-error"`, "too short to be kept out of logs"}},
		{url.Values{"name": {"X"}, "value": {secret}, "note": {strings.Repeat("n", 1025)}}, []string{`id="note-error"`}},
		{url.Values{"name": {"X"}, "kind": {"plain"}, "value": {strings.Repeat("y", 64<<10+1)}}, []string{`id="value-error"`}},
	} {
		p := b.upload("/add-shared", b.fill(b.see("/add-shared"), "/add-shared", c.set), nil)
		b.want(p, http.StatusUnprocessableEntity, c.says...)
		if strings.Contains(p.body, secret) {
			t.Error("a Sensitive value comes back")
		}
	}
	b.see(b.change("/add-shared", "/add-shared", url.Values{"name": {"WIDE"}, "note": {"for <all>"}, "value": {secret}}, nil), "WIDE is saved.", "for &lt;all&gt;", "Sensitive, set", "digest", "nobody")
	b.want(b.upload("/add-shared", b.fill(b.see("/add-shared"), "/add-shared", url.Values{"name": {"WIDE"}, "value": {secret}}), nil), http.StatusUnprocessableEntity, "There is a Shared variable WIDE already.")

	recipe := spec()
	recipe.Variables = []envspec.Variable{{Name: "MINE", Link: "WIDE"}}
	s.Applied(g, r, recipe)
	page := "/shared/WIDE"
	if p := b.see(page, "acme/rocket", "Sessions get a new value at their next start or wake."); strings.Contains(p.body, secret) {
		t.Error("a Sensitive value is shown")
	}
	for _, path := range []string{"/shared", page} {
		if p := stranger.see(path, "1 Repo that you have no access to"); strings.Contains(p.body, "rocket") {
			t.Errorf("%s names a Repo to who has no access to it", path)
		}
	}
	stranger.change(page, page+"/note", url.Values{"note": {"a stranger's note"}}, nil)
	b.see(page, "a stranger&#39;s note")
	linked := "can&#39;t be %s while a draft or an applied version links it: that of "
	if p := b.see(page+"/delete", "of acme/rocket, so it can't be deleted"); strings.Contains(p.body, `action="`+page) {
		t.Error("what is linked is offered to be deleted")
	}
	stranger.see(page+"/delete", "of 1 Repo that you have no access to, so it can't be deleted")
	b.want(b.upload(page+"/delete", url.Values{"revision": {"2"}}, nil), http.StatusConflict, strings.Replace(linked, "%s", "deleted", 1)+"acme/rocket")
	b.want(stranger.upload(page+"/rename", b.fill(b.see(page), page+"/rename", url.Values{"name": {"OTHER"}}), nil), http.StatusConflict, strings.Replace(linked, "%s", "renamed", 1)+"1 Repo that you have no access to")

	stale := b.see(page)
	stranger.change(page, page+"/value", url.Values{"value": {"another-secret-12345"}}, nil)
	p := b.upload(page+"/value", b.fill(stale, page+"/value", url.Values{"value": {"a-third-secret-12345"}}), nil)
	b.want(p, http.StatusConflict, "was changed meanwhile", "give it again")
	if strings.Contains(p.body, "third-secret") {
		t.Error("a Sensitive value comes back")
	}
	b.want(b.upload(page+"/value", b.fill(b.see(page), page+"/value", url.Values{"kind": {"plain"}}), nil), http.StatusUnprocessableEntity, "what was Sensitive never becomes Plain")
	b.want(b.upload(page+"/value", b.fill(b.see(page), page+"/value", url.Values{"kind": {"plain"}, "value": {"x"}}), map[string]string{"value-file": "y"}), http.StatusUnprocessableEntity, "There is a text and a file")

	for path, action := range map[string]string{"/add-shared": "/add-shared", page: page + "/value"} {
		p = b.upload(action, b.fill(b.see(path), action, nil), nil)
		b.want(p, http.StatusUnprocessableEntity, `id="value-error"`, "Enter its value, of at least 8 characters")
	}

	p = b.upload("/add-shared", b.fill(b.see("/add-shared"), "/add-shared", url.Values{"name": {"a b"}, "kind": {"plain"}}), map[string]string{"value-file": "lost"})
	b.want(b.upload("/add-shared", b.fill(p, "/add-shared", url.Values{"name": {"OPEN"}}), nil), http.StatusUnprocessableEntity, `id="value-error"`, "Give the value again")
	b.change("/add-shared", "/add-shared", url.Values{"name": {"OPEN"}, "kind": {"plain"}}, map[string]string{"value-file": "a\r\nb\r\n"})
	b.change("/shared/OPEN", "/shared/OPEN/value", nil, nil) // as it is
	stale = b.see("/shared/OPEN", "Plain, <code>")
	stranger.change("/shared/OPEN", "/shared/OPEN/note", url.Values{"note": {"their note"}}, nil)
	p = b.upload("/shared/OPEN/note", b.fill(stale, "/shared/OPEN/note", url.Values{"note": {"my note"}}), nil)
	b.want(p, http.StatusConflict, "What is saved now", "<h3>Note</h3>", "their note", "my note")
	p = b.upload("/shared/OPEN/value", b.fill(stale, "/shared/OPEN/value", url.Values{"value": {"c\nd\n"}}), nil)
	b.want(p, http.StatusConflict, "<h3>Value</h3>", "a\r\nb\r\n", "c\nd\n")
	p = b.upload("/shared/OPEN/value", b.fill(stale, "/shared/OPEN/value", url.Values{"kind": {"sensitive"}, "value": {secret}}), nil)
	b.want(p, http.StatusConflict, "<h3>Kind</h3>", "hidden", "give it again")
	if strings.Contains(p.body, secret) {
		t.Error("a conflict shows a Sensitive value")
	}
	b.see(b.change("/shared/OPEN", "/shared/OPEN/rename", url.Values{"name": {"READABLE"}}, nil), "Saved.", "READABLE")
	all, _, err := s.Vault.Shared(t.Context(), g.Who())
	if err != nil || len(all) != 2 || all[0].Name != "READABLE" || all[0].Value != "a\r\nb\r\n" {
		t.Errorf("%v, %v", all, err)
	}
	ask := "/shared/READABLE/delete"
	if p := b.see("/shared/READABLE", `href="`+ask+`"`); strings.Contains(p.body, `action="`+ask+`"`) {
		t.Error("it is deleted without a question")
	}
	stale = b.see(ask, "Delete the Shared variable <code>READABLE</code>?", "Nothing links it now.", "Its value is deleted with it, for good")
	stranger.change("/shared/READABLE", "/shared/READABLE/note", url.Values{"note": {"still in use"}}, nil)
	p = b.upload(ask, b.fill(stale, ask, nil), nil)
	b.want(p, http.StatusConflict, "was changed meanwhile", "Delete it</button>")
	b.see("/shared/READABLE")
	if p = b.upload(ask, b.fill(p, ask, nil), nil); p.status != http.StatusSeeOther || p.header.Get("Location") != "/shared" {
		t.Errorf("deleting it: %d to %q", p.status, p.header.Get("Location"))
	}
	for _, gone := range []string{"/shared/READABLE", ask} {
		if p := b.get(gone); p.status != http.StatusNotFound {
			t.Errorf("%s of a deleted one: %d", gone, p.status)
		}
	}
	if p := b.upload(ask, url.Values{"revision": {"1"}}, nil); p.status != http.StatusNotFound {
		t.Errorf("deleting it twice: %d", p.status)
	}
	if p := s.browser().get("/shared"); p.status != http.StatusSeeOther {
		t.Errorf("signed out: %d", p.status)
	}
}

func TestEachRefusalIsSaidOnThePage(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{})
	b, r, g := s.as("ana"), s.Runner("r1"), s.Grant("ana")
	b.want(b.post(repoPath+"/sessions", nil), http.StatusConflict, "This Repo has no applied Environment yet. A Repo needs one before its first Session.")
	b.want(b.post(repoPath+"/tests", url.Values{"revision": {"1"}, "runner": {r.ID}}), http.StatusConflict, "This Repo has no draft yet. Save one first.")
	b.add("REGION", "plain", "eu-1", nil)
	const untested = "This draft needs a passing Test build of exactly what it says now. Start one first."
	b.want(b.post(environmentPath+"/apply", url.Values{"revision": {"1"}}), http.StatusConflict, untested)
	b.posted(repoPath+"/tests", url.Values{"revision": {"1"}, "runner": {r.ID}})
	item, code := r.Item(), 3
	r.MustReport(item, wire.StateFailed, wire.TestBuildDetail{Failure: &wire.Failure{Phase: wire.PhaseBootstrap, Code: "exit", Message: "The bootstrap script ended with exit code 3.", ExitCode: &code}})
	r.MustReport(r.Item(), wire.StateRemoved, wire.TestBuildDetail{})
	b.want(b.post(environmentPath+"/apply", url.Values{"revision": {"1"}}), http.StatusConflict, "and the newest one failed in the phase bootstrap (")
	b.want(b.upload(environmentPath+"/add-variable", b.fill(b.see(environmentPath+"/add-variable"), environmentPath+"/add-variable", url.Values{"name": {"REGION"}, "kind": {"sensitive"}, "value": {"a-secret-1234"}}), nil),
		http.StatusUnprocessableEntity, "There is a Variable or Link REGION already: each has a name of its own.")

	saved, err := s.Environments.Save(t.Context(), g, 1, envspec.Spec{Image: "debian:12", Variables: []envspec.Variable{{Name: "NPM", Sensitive: true}}}, variable.Given{})
	if err != nil {
		t.Fatal(err)
	}
	b.see(environmentPath, "No value yet.", "This draft can&#39;t be applied: the Variable NPM has no value. Enter one for it first.")
	b.want(b.post(repoPath+"/tests", url.Values{"revision": {"2"}, "runner": {r.ID}}), http.StatusConflict, "This draft can&#39;t be tested: the Variable NPM has no value. Enter one for it first.")
	if saved.Revision != 2 {
		t.Fatal(saved.Revision)
	}
	recipe := envspec.Default()
	recipe.Docker = true
	d, err := s.Environments.Save(t.Context(), g, saved.Revision, recipe, nil)
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{"revision": {fmtInt(d.Revision)}, "runner": {s.OldRunner("old", 1).ID}}
	b.want(b.post(repoPath+"/tests", form), http.StatusServiceUnavailable, "old has no Docker in its Sandboxes")
}

func TestAHubWithoutAKeySaysHowToGetOne(t *testing.T) {
	t.Parallel()
	s := newSite(t, storetest.New(t), apptest.Options{NoKeys: true})
	b := s.as("ana")
	for _, path := range []string{environmentPath + "/add-variable", "/add-shared"} {
		p := b.upload(path, b.fill(b.see(path), path, url.Values{"name": {"X"}, "kind": {"sensitive"}, "value": {"a-secret-1234"}}), nil)
		b.want(p, http.StatusConflict, "No encryption key is configured", "claude-hub keygen")
	}
}
