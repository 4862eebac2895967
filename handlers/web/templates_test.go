package web

import (
	"maps"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/proposal"
	"github.com/claude-hub/claude-hub/app/session"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// hostile is in every text that comes from outside.
const hostile = `<script>alert("x")</script>&'`

// everyPage is each template with each state its view model can have.
func everyPage(now time.Time) map[string][]any {
	base := Page{Title: "T", Login: "ana", DevLogin: true, Release: "1.2.3", RequestID: "0123456789abcdef", Section: "repos"}
	inRepo := func(tab string) Page {
		p := base
		p.Repo = &RepoNav{ID: "42", Name: "acme/" + hostile, Tab: tab}
		return p
	}
	moving := inRepo("overview")
	moving.Refresh, moving.Notice, moving.Alert, moving.AsOf = 5, hostile, hostile, "12:03 UTC"
	spec := envspec.Spec{Image: hostile, Bootstrap: "\n" + hostile, Start: hostile, CPU: 1.5, Memory: 4 << 30}
	specs := []envspec.Spec{spec, {Image: "debian:12"}}
	draft := &environment.Draft{ID: "d", Revision: 3, Spec: spec, UpdatedAt: now.Add(-time.Minute), UpdatedBy: hostile}
	version := environment.Version{ID: "v", Number: 2, Spec: spec, ImageDigest: "sha256:1", TestBuild: "01234567890", Message: hostile, Source: "web", AppliedAt: now.Add(-50 * time.Hour), AppliedBy: hostile}
	wrong := Form{Values: map[string]string{"image": hostile, "bootstrap": hostile, "runner": hostile, "confirm": hostile, "message": hostile, "branch": hostile, "login": hostile},
		Errors:  []FieldError{{"image", hostile}, {"runner", hostile}, {"confirm", hostile}, {"message", hostile}, {"branch", hostile}, {"login", hostile}, {"bootstrap", hostile}},
		General: hostile}
	changes := envspec.Explain(envspec.Spec{}, spec)
	runners := []RunnerOption{{ID: "1", Name: hostile, Platform: "linux/amd64", Chosen: true}, {ID: "2", Name: "r2", Reason: hostile}}
	starts := []TestStart{
		{Repo: moving.Repo}, {Repo: moving.Repo, HasDraft: true}, {Repo: moving.Repo, HasDraft: true, Revision: 3, Runners: runners, AnyFit: true, Form: wrong},
		{Repo: moving.Repo, HasDraft: true, Revision: 3, Runners: runners[1:]},
	}
	testRow := func(state string) TestRow {
		return TestRow{ID: "0123456789abc", State: state, Runner: hostile, Revision: 3, By: hostile, At: now, Took: "1 s", Phase: "Image", Final: state != environment.Running}
	}
	sessionRow := func(state string) SessionRow {
		return SessionRow{ID: "0123456789abc", State: state, Runner: hostile, WorkBranch: hostile, Unreachable: state == session.Running, Version: 1, Outdated: true, By: hostile, At: now}
	}
	code := 7
	failures := []*Failure{
		nil, failure(&wire.Failure{Phase: wire.PhaseBootstrap, Code: "exit", Message: hostile, ExitCode: &code, LastLines: hostile + "\x1b[31m\nlast\n"}),
		failure(&wire.Failure{Code: "lost", Message: hostile}), failure(&wire.Failure{Phase: wire.PhaseStart, Code: "timeout", Message: hostile, Signal: "SIGKILL"}),
		failure(&wire.Failure{Code: "cancelled", Message: hostile}),
	}
	steps := phases([]wire.Phase{
		{Name: wire.PhaseImage, State: "done", Started: 1, Ended: 90_001, Note: hostile}, {Name: wire.PhaseBootstrap, State: "skipped"},
		{Name: wire.PhaseSnapshot, State: "running", Started: now.UnixMilli() - 500}, {Name: wire.PhaseClone, State: "failed", Started: 1, Ended: 2, ExitCode: &code},
		{Name: wire.PhaseBoot, State: "running", Started: now.UnixMilli() + 9000}, {Name: wire.PhaseStart}, {Name: "new-phase", State: "done"},
	}, now)
	tails := []Tail{
		{Events: "/e", Raw: "/r"}, {Text: hostile + "\n", Rest: hostile, Next: 5, Size: 900 << 20, Earlier: 5, Dropped: 9, Ended: true, Events: "/e", Raw: "/r"},
	}
	own, none := []envspec.Folder{{Pattern: hostile, Beside: "x"}, {Pattern: "y"}}, []envspec.Folder{}
	conflicts := []FieldConflict{{"Image", hostile, hostile, hostile, true}, {"Start script", "", "", "", false}}
	variables := rowsOf(
		[]envspec.Variable{{Name: "A", Value: hostile + "\nx\n", Note: hostile}, {Name: "B"}, {Name: "C", Sensitive: true}, {Name: "D", Sensitive: true, Build: true}, {Name: "E", Sensitive: true}, {Name: "F", Link: hostile}, {Name: "G", Link: "X"}, {Name: "H", Link: "X"}},
		[]variable.State{
			{Name: "C", Sensitive: true, Status: variable.Set, SetAt: now, SetBy: hostile, Digest: "0123abcd"}, {Name: "D", Sensitive: true, Status: variable.Lost}, {Name: "E", Sensitive: true, Status: variable.Missing},
			{Name: "F", Link: hostile, Sensitive: true, Status: variable.Set, SetAt: now}, {Name: "G", Link: "X", Status: variable.Lost}, {Name: "H", Link: "X", Status: variable.Missing},
		})
	lacking := lackingOf(moving.Repo, []variable.State{{Name: "D", Status: variable.Lost}, {Name: "E", Status: variable.Missing}, {Name: "F", Link: hostile, Status: variable.Lost}, {Name: "G", Link: "X", Status: variable.Missing}})
	named := Form{Values: map[string]string{"name": hostile, "kind": envspec.KindSensitive, "value": hostile, "link": hostile, "build": "on", "note": hostile, "text": hostile}, General: hostile,
		Errors: []FieldError{{"name", hostile}, {"kind", hostile}, {"value", hostile}, {"link", hostile}, {"build", hostile}, {"note", hostile}, {"text", hostile}}}
	plain := Form{Values: map[string]string{"kind": envspec.KindPlain, "value": "\n" + hostile}}
	shared := SharedRow{variable.Shared{Name: hostile, Note: hostile, Sensitive: true, Status: variable.Set, Digest: "0123abcd", SetAt: now, SetBy: hostile, CreatedAt: now, CreatedBy: hostile}, variable.Users{Repos: []access.Repo{{Name: hostile}}, Hidden: 2}, sharedPath(hostile)}
	lost, open := shared, shared
	lost.Status = variable.Lost
	open.Sensitive, open.Value, open.Users = false, hostile, variable.Users{}
	inShared := base
	inShared.Section = "shared"
	diff := envspec.Compare(envspec.Spec{Image: "a", Bootstrap: "one\ntwo\n", Variables: []envspec.Variable{{Name: "A"}}}, spec)
	tokens := []TokenRow{
		{Token: access.Token{ID: "t1", Name: hostile, Scopes: access.Scopes(), Created: now, Expires: now.Add(time.Hour)}}, {Token: access.Token{ID: "t2", Name: "ci", Scopes: []access.Scope{access.ScopeRead}, Repos: []github.RepoID{1, 2}, Created: now, Expires: now, Used: now}, Repos: []string{hostile}, Hidden: 1},
		{Token: access.Token{ID: "t3", Name: "old", Repos: []github.RepoID{1}}, Hidden: 1},
	}
	tokenForm := Form{Values: map[string]string{"name": hostile, "repos": hostile, "life": "7"}, General: hostile, Errors: []FieldError{{"name", hostile}, {"scopes", hostile}, {"repos", hostile}, {"life", hostile}}}
	pull := proposal.Proposal{Number: 7, Title: hostile, URL: "https://github.com/" + hostile, Author: github.Account{Login: hostile}, SHA: "0123456789abcdef0123456789abcdef01234567", Base: hostile, State: proposal.Open, File: proposal.Valid, UpdatedAt: now}
	fork, wrongPull, mergedPull := pull, pull, pull
	fork.Fork, fork.ToDefault = true, true
	wrongPull.File, wrongPull.Problems = proposal.Invalid, []proposal.Problem{{File: hostile, Line: 3, Column: 1, Message: hostile}, {File: "x", Line: 1, Message: hostile, Warning: true}}
	mergedPull.State, mergedPull.MergedSHA, mergedPull.MergedBy, mergedPull.Outcome = proposal.Merged, pull.SHA, hostile, proposal.Needs
	proposed := environment.Draft{ID: "p", Revision: 1, Spec: spec, PullRequest: 7, Commit: pull.SHA}
	detail := func(p proposal.Proposal) proposal.Detail {
		return proposal.Detail{Proposal: p, Draft: &proposed, Web: draft, Current: &version, Changes: changes, Heading: hostile, Says: hostile, Drift: []string{hostile}, Withheld: p.Fork}
	}
	pages := map[string][]any{
		"proposals": {
			proposalsPage{Page: inRepo("proposals"), File: proposal.Path},
			proposalsPage{Page: moving, File: proposal.Path, Proposals: []ProposalRow{{pull, "0123456789ab", "valid"}, {fork, "0123456789ab", "invalid"}}},
		},
		"proposal": {
			proposalPage{Page: inRepo("proposals"), Proposal: proposal.Detail{Proposal: wrongPull, Heading: hostile, Says: hostile}, Path: "/x"},
			proposalPage{Page: moving, Proposal: detail(fork), Path: "/x", Diff: diff, Values: []ProposedValue{{Name: "A", Query: "A"}, {Name: "B", Query: "B", Lost: true}, {Name: "C", Link: hostile}}, Runners: runners, AnyFit: true, Start: wrong},
			proposalPage{Page: moving, Proposal: detail(mergedPull), Path: "/x", Diff: diff, Runners: runners[1:], Tests: []TestRow{testRow(environment.Running)}, Apply: wrong, WebBase: 3, Own: true},
			proposalPage{Page: moving, Proposal: detail(mergedPull), Path: "/x", Adopted: true},
			proposalPage{Page: moving, Proposal: detail(pull), Path: "/x"},
		},
		"proposed-value": {proposedValuePage{Page: inRepo("proposals"), Name: hostile, Number: 7, Form: Form{Values: map[string]string{"revision": "1"}}, Path: "/x"}, proposedValuePage{Page: moving, Name: "A", Number: 7, Form: named, Retype: true, Path: "/x"}},
		"propose":        {proposePage{Page: inRepo("environment"), File: proposal.Path, YAML: hostile}, proposePage{Page: moving, File: proposal.Path, YAML: hostile, Files: []ProposedFile{{hostile, hostile}}, Sensitive: []string{"A", hostile}, NewFile: "https://github.com/new", EditFile: "https://github.com/edit"}},
		"variable": {
			variablePage{Page: inRepo("environment"), Form: Form{Values: map[string]string{"kind": envspec.KindPlain}}, Action: "/x"},
			variablePage{Page: moving, Form: named, Old: hostile, Base: 3, Mark: "m", Was: named.Values, Before: variables[2], Shared: []string{"X", hostile}, Conflict: true, Theirs: conflicts, Taken: []TakenField{{"Note", hostile}}, Retype: true, Action: "/x"},
			variablePage{Page: moving, Form: plain, Old: "A", Before: variables[0], Shared: []string{"X"}, Action: "/x"},
			variablePage{Page: moving, Form: Form{Values: map[string]string{"kind": envspec.KindLink, "link": "GONE"}}, Gone: true, Action: "/x"},
		},
		"delete-variable": {deleteVariablePage{Page: moving, Name: hostile, AtBuild: true}, deleteVariablePage{Page: inRepo("environment"), Name: hostile}},
		"value":           {valuePage{Page: inRepo("environment"), Name: hostile}, valuePage{Page: moving, Name: "A", Form: named, Retype: true}},
		"import": {
			importPage{Page: inRepo("environment"), Limit: 1 << 20, Most: 200}, importPage{Page: moving, Form: named, Problems: []envspec.Problem{{Line: 3, Message: hostile}}},
			importPage{Page: moving, Form: Form{General: hostile}, Problems: []envspec.Problem{{Line: 3, Message: hostile}}, Warnings: []envspec.Problem{{Line: 4, Message: hostile}}, Exists: true, All: "keep", Carried: hostile,
				Rows: []EnvRow{
					{Line: 1, Name: "A", Value: hostile, Size: 3, Status: rowNew, Choice: rowTake, Notes: []string{hostile}}, {Index: 1, Line: 2, Name: hostile, Size: 9, Sensitive: true, Build: true, Status: rowConflict, Why: hostile, Choice: rowSkip, Error: hostile},
					{Index: 2, Name: "B", Status: rowSame, Choice: rowSkip}, {Index: 3, Name: "C", Status: rowChanged, Choice: rowTake},
				}},
		},
		"discard": {discardPage{Page: inRepo("environment"), Base: 3}, discardPage{Page: moving, Base: 3, Current: 2, Changes: changes}},
		"restore": {restorePage{Page: inRepo("versions"), Version: version}, restorePage{Page: moving, Version: version, Changes: changes, Pending: true}},
		"diff": {
			diffPage{Page: inRepo("versions"), From: nothing, To: draftWord, FromName: sideName(nothing), ToName: sideName(draftWord)},
			diffPage{Page: moving, From: "1", To: "2", FromSide: []Side{{"1", hostile, true}}, ToSide: []Side{{"2", "version 2", true}}, Diff: diff, Changes: changes, CanUndo: true},
		},
		"shared":          {sharedPage{Page: inShared}, sharedPage{Page: inShared, Rows: []SharedRow{shared, lost, open}, Lost: 1}, sharedPage{Page: inShared, Rows: []SharedRow{lost, lost}, Lost: 2}},
		"add-shared":      {addSharedPage{Page: inShared}, addSharedPage{Page: inShared, Form: named, Retype: true}, addSharedPage{Page: inShared, Form: plain}},
		"shared-variable": {sharedOnePage{Page: inShared, Row: shared}, sharedOnePage{Page: inShared, Row: lost, Value: Form{Values: map[string]string{"kind": envspec.KindSensitive}, Errors: []FieldError{{"value", hostile}}}, Retype: true}, sharedOnePage{Page: inShared, Row: open, Value: plain, Note: Form{General: hostile}, Rename: Form{Errors: []FieldError{{"name", hostile}}}}},
		"delete-shared":   {deleteSharedPage{Page: inShared, Row: shared}, deleteSharedPage{Page: inShared, Row: open}, deleteSharedPage{Page: moving, Row: SharedRow{lost.Shared, variable.Users{}, lost.Path}}},
		"error":           {errorPage{Page: base, Status: 404, Message: hostile}, errorPage{Page: Page{Title: "T"}, Status: 500, Message: "x"}},
		"not-signed-in":   {notSignedInPage{Page: Page{Title: "T"}, Message: hostile, Again: "/sign-in?return_to=%2Fx", InstallURL: "https://github.com/apps/x/installations/new"}, notSignedInPage{Page: base, Message: "x"}},
		"account":         {accountPage{Page: base, Dev: true, Browsers: 1}, accountPage{Page: base, GitHubID: 7, GitHub: hostile, Browsers: 2, Tokens: 3}},
		"tokens":          {tokensPage{Page: base}, tokensPage{Page: base, Form: tokenForm, Tokens: tokens, Scopes: []ScopeOption{{access.ScopeRead, "see", true}, {access.ScopeTokens, "x", false}}, Lives: []LifeOption{{7, false}, {90, true}}, Made: &tokens[0].Token, Secret: hostile, Hub: "http://hub"}},
		"open":            {openPage{Page: base}, openPage{Page: moving, Form: Form{Values: map[string]string{"repo": hostile}, Errors: []FieldError{{"repo", hostile}}}, InstallURL: "https://github.com/apps/x/installations/new"}, openPage{Page: base, Form: Form{General: hostile}}},
		"not-sent":        {notSentPage{Page: Page{Title: "T", DevLogin: true, Release: "1.2.3"}}},
		"sign-in":         {signInPage{Page: Page{Title: "T", DevLogin: true}, Form: wrong, ReturnTo: "/"}, signInPage{Page: Page{Title: "T"}}, signInPage{Page: Page{Title: "T"}, GitHub: "/auth/github"}, signInPage{Page: Page{Title: "T", DevLogin: true}, GitHub: "/auth/github", Form: wrong}, signInPage{Page: Page{Title: "T", DevLogin: true}, ReturnTo: "/"}},
		"versions":        {versionsPage{Page: inRepo("versions")}, versionsPage{Page: moving, Versions: []VersionRow{{Version: version, Awake: 1, Asleep: 2}, {Version: version}}, Current: 2, HasDraft: true}},
		"repos": {
			reposPage{Page: base, NoRunner: true}, reposPage{Page: moving, Repos: []RepoRow{{ID: "1", Name: hostile}, {ID: "2", Name: "b", Version: 2, Draft: 3, Running: 1, Asleep: 1, Failed: 1}, {ID: "3", Name: "c", Testing: true}}},
			reposPage{Page: base, AnyOnline: true}, reposPage{Page: base, App: true}, reposPage{Page: base, App: true, InstallURL: "https://github.com/apps/x/installations/new", Checked: now},
			reposPage{Page: moving, App: true, InstallURL: "https://github.com/apps/x/installations/new", Repos: []RepoRow{{ID: "1", Name: hostile}}, Total: 90, Found: 70, Query: hostile, Previous: "/?page=1", Next: "/?page=3", Checked: now},
			reposPage{Page: base, Total: 9, Query: hostile},
		},
		"repo": {
			repoPage{Page: inRepo("overview")}, repoPage{Page: moving, Draft: draft, Verdict: environment.Verdict{Reason: hostile}},
			repoPage{Page: moving, Draft: draft, Verdict: environment.Verdict{OK: true, Reason: hostile}}, repoPage{Page: moving, Current: &version, Lacking: lacking},
			repoPage{Page: moving, Current: &version, Draft: draft, Row: RepoRow{Draft: 3}, Tests: []TestRow{testRow("running")}, Sessions: []SessionRow{sessionRow("running")}},
		},
		"tests": {}, "environment": {
			environmentPage{Page: inRepo("environment"), Form: Form{Values: formOf(envspec.Default())}},
			environmentPage{Page: moving, Drift: hostile, Form: wrong, Base: 3, Draft: draft, Current: &version, Changes: nil, Start: starts[1], Apply: wrong},
			environmentPage{Page: moving, Form: wrong, Base: 4, Was: formOf(spec), VariablesNotice: hostile, Draft: draft, Conflict: true, Conflicts: conflicts, Taken: []TakenField{{"CPU", hostile}}, Start: starts[2], Variables: variables},
			environmentPage{Page: moving, Form: wrong, Base: 4, Draft: draft, Conflict: true, Start: starts[2]},
			environmentPage{Page: moving, Form: Form{Values: formOf(envspec.Spec{Folders: &own, Docker: true})}, Draft: draft, Current: &version, Changes: changes, Start: starts[2], Lacking: lacking},
			environmentPage{Page: moving, Form: Form{Values: formOf(envspec.Spec{Folders: &none})}},
		},
		"port": {
			portPage{Page: inRepo("sessions"), Session: session.Session{ID: "s", State: session.Asleep}, Port: 80, Path: "/p", To: "/" + hostile, Meaning: hostile},
			portPage{Page: moving, Session: session.Session{ID: "s", State: session.Waking}, Port: 80, Path: "/p", To: "/", Meaning: hostile},
			portPage{Page: inRepo("sessions"), Port: 80, Go: "http://s-80.ports.localhost/"},
		},
		"restart": {
			restartPage{Page: inRepo("sessions"), Session: session.Session{ID: "s", Version: 1}}, restartPage{Page: moving, Session: session.Session{ID: "s", Version: 1}, Next: 2}, restartPage{Page: moving, Session: session.Session{ID: "s", Version: 1}, Next: 2, Fresh: true},
		},
		"archive": {
			archivePage{Page: inRepo("sessions"), Session: session.Session{ID: "s"}, Loses: hostile, Unsaved: hostile}, archivePage{Page: moving, Session: session.Session{ID: "s", State: session.Running}},
		},
		"delete": {
			deletePage{Page: inRepo("sessions"), Session: session.Session{ID: "s"}, Runner: hostile, Counting: true},
			deletePage{Page: moving, Session: session.Session{ID: "s"}, Runner: hostile, Form: wrong, Unsaved: hostile, Loses: true},
		},
		"runners": {
			runnersPage{Page: base}, runnersPage{Page: base, Command: hostile, Expires: now},
			runnersPage{Page: moving, Runners: []RunnerRow{
				{Runner: fleet.Runner{ID: "1", Name: hostile, Registered: now}, Never: true},
				{Runner: fleet.Runner{ID: "2", Name: "b", Online: true, Version: hostile, Platform: "linux/amd64", Engine: "oci", Limits: fleet.Limits{CPU: 4, Memory: 8 << 30}, Missing: []string{hostile}, Update: hostile}, Since: now, TestBuilds: 1},
				{Runner: fleet.Runner{ID: "3", Name: "c"}, Since: now.Add(-time.Hour)},
			}},
		},
		"sessions": {
			sessionsPage{Page: inRepo("sessions")}, sessionsPage{Page: inRepo("sessions"), Current: &version},
			sessionsPage{Page: moving, Current: &version, Form: wrong, Runners: runners, AnyFit: true}, sessionsPage{Page: moving, Current: &version, Runners: runners[1:]},
		},
	}
	for _, start := range starts {
		p := testsPage{Page: moving, Start: start}
		pages["tests"] = append(pages["tests"], p)
		for _, state := range []string{environment.Queued, environment.Running, environment.Passed, environment.Failed, environment.Cancelled, environment.Lost} {
			p.Tests = append(p.Tests, testRow(state))
		}
		pages["tests"] = append(pages["tests"], p)
	}
	for _, draftOf := range specs {
		p := environmentPage{Page: moving, Draft: draft, Current: &version, Changes: changes, Warnings: []string{hostile}, Unavailable: []UnavailableRow{{Name: hostile, Line: 3, Mark: "m"}}, Start: starts[3], Verdict: environment.Verdict{OK: true, Reason: hostile}}
		p.Form.Values = formOf(draftOf)
		row := testRow(environment.Running)
		p.Newest = &row
		pages["environment"] = append(pages["environment"], p)
	}
	for i, state := range []string{environment.Queued, environment.Running, environment.Passed, environment.Failed, environment.Cancelled, environment.Lost} {
		test := environment.TestBuild{ID: "0123456789abc", Revision: 3, Spec: specs[i%2], State: state, CreatedAt: now, CreatedBy: hostile}
		if i > 1 {
			test.FinishedAt, test.ImageDigest = now, "sha256:1"
			test.Detail.Commit, test.Detail.Notes = "abc", []string{hostile}
		}
		for j, f := range failures {
			p := testPage{Page: moving, Test: test, Runner: hostile, Took: "1 s", Phases: steps, Failure: f, Log: tails[j%2], Current: j%2 == 0, Applied: j % 3, Cancelling: j == 1, Waiting: hostile}
			if j%2 == 0 {
				p.Progress = &wire.Progress{Text: hostile, Done: int64(j), Total: int64(2 * j)}
			}
			pages["test"] = append(pages["test"], p)
		}
	}
	runs := []session.Run{{ID: "0123456789abc", Command: hostile + "\x1b[31m", CreatedAt: now, CreatedBy: hostile}, {ID: "b", Command: "true", CreatedAt: now, CreatedBy: "ana", StartedAt: now, Stopping: true},
		{ID: "c", Command: "true", CreatedAt: now, CreatedBy: "ana", StartedAt: now, EndedAt: now, Exit: wire.ChannelExit{Code: 125, Failed: hostile}}}
	rows := []SessionRow{}
	for i, state := range []string{session.Starting, session.Running, session.Stopping, session.Asleep, session.Waking, session.Failed, session.Archiving, session.Archived, session.Deleting} {
		rows = append(rows, sessionRow(state))
		sn := session.Session{ID: "0123456789abc", State: state, Unreachable: i%2 == 0, Freed: i%2 == 0, Version: 1, Branch: hostile, WorkBranch: hostile, DiskSize: 20 << 30, CreatedAt: now, CreatedBy: hostile}
		sn.Detail.Notes = []string{hostile}
		for j, f := range failures {
			p := sessionPage{Page: moving, Ports: j > 0, Opened: []PortRow{{80, "/p"}, {8080, "/p"}}[:j%3], Session: sn, Meaning: meaning(sn, hostile), Runner: hostile, Next: j, Fresh: j > 1, Phases: steps, Failure: f, StartFailed: failures[len(failures)-1-j], Boot: []string{"", hostile}[j%2], Lacking: lacking[:j%2], Log: tails[j%2], Shell: hostile,
				Terminals: terminalRows([]fleet.Terminal{{ID: "a", OpenedBy: hostile, Opened: now}, {ID: "b", OpenedBy: "ana", Opened: now, Ended: now, Exit: wire.ChannelExit{Code: 125, Failed: hostile}}}, "/p")[:j%3], Runs: runRows(runs, "/p")[:j%(len(runs)+1)]}
			if p.Meaning == "" {
				panic("no words for the state " + state)
			}
			pages["session"] = append(pages["session"], p)
		}
	}
	for i, run := range runs {
		pages["run"] = append(pages["run"], runPage{Page: moving, Run: run, Session: "0123456789abc", Path: "/p", Meaning: hostile, Took: "1 s", Log: tails[i%2]})
	}
	pages["terminal"] = []any{
		terminalPage{Page: inRepo("sessions"), Session: "0123456789abc", Path: "/p", By: hostile, Nonce: "n", Shell: hostile}, terminalPage{Page: moving, Session: "s", Path: "/p", By: "ana", Ended: hostile, Nonce: "n"},
	}
	pages["sessions"] = append(pages["sessions"], sessionsPage{Page: moving, Current: &version, Runners: runners, AnyFit: true, Sessions: rows, Lacking: lacking}, sessionsPage{Page: moving, Current: &version, Archived: rows})
	maps.Copy(pages, setupPages(base, now))
	pages["deliveries"] = []any{deliveriesPage{Page: base}, deliveriesPage{Page: moving, Asides: []webhook.Aside{
		{ID: "g-1", Event: hostile, Action: hostile, Received: now.Add(-time.Hour), Set: now, Tries: 1, Why: hostile}, {ID: "g-2", Event: "push", Set: now, Tries: 12, Why: "It failed."},
	}}}
	for _, before := range []int{0, 1} {
		pages["version"] = append(pages["version"], versionPage{Page: moving, Version: version, Current: true, Before: before, Changed: diff, Runner: hostile, YAML: hostile, Awake: 1, Moved: []variable.Moved{{Name: "A", Shared: hostile, At: now, By: hostile}}, Variables: variables, Lacking: lacking},
			versionPage{Page: inRepo("versions"), Version: environment.Version{Number: 1, Spec: specs[1], AppliedAt: now}, Before: before})
	}
	return pages
}

func TestEveryPageRendersInEveryState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	w, err := New(Deps{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	all := everyPage(now)
	id := regexp.MustCompile(` id="([^"]*)"`)
	described := regexp.MustCompile(`aria-(?:describedby|labelledby)="([^"]*)"`)
	label := regexp.MustCompile(` for="([^"]*)"`)
	for name := range w.pages {
		if len(all[name]) == 0 {
			t.Errorf("the test has no state of the page %s", name)
		}
		for i, view := range all[name] {
			rw := httptest.NewRecorder()
			if err := w.render(rw, httptest.NewRequest("GET", "/", nil), 200, name, view); err != nil {
				t.Errorf("%s, state %d: %v", name, i, err)
				continue
			}
			html := rw.Body.String()
			if strings.Contains(html, "<script>alert") || strings.Contains(html, "ZgotmplZ") || strings.Contains(html, "<no value>") {
				t.Errorf("%s, state %d: text from outside became markup, or is missing:\n%s", name, i, html)
			}
			if strings.Count(html, "<h1") != 1 || !strings.Contains(html, `<main id="main"`) || !strings.Contains(html, "<title>T · claude-hub</title>") {
				t.Errorf("%s, state %d: a page has one heading, a main part and a title", name, i)
			}
			if strings.Contains(html, "Sign out") && !strings.Contains(html, "<footer>claude-hub 1.2.3</footer>") {
				t.Errorf("%s, state %d: the footer says which claude-hub this is", name, i)
			}
			ids := map[string]int{}
			for _, m := range id.FindAllStringSubmatch(html, -1) {
				if ids[m[1]]++; ids[m[1]] > 1 {
					t.Errorf("%s, state %d: the id %s is there twice", name, i, m[1])
				}
			}
			for _, m := range append(described.FindAllStringSubmatch(html, -1), label.FindAllStringSubmatch(html, -1)...) {
				for _, to := range strings.Fields(m[1]) {
					if ids[to] == 0 {
						t.Errorf("%s, state %d: %s points to nothing", name, i, m[0])
					}
				}
			}
			if v, ok := view.(signInPage); (!ok || v.DevLogin) && strings.Contains(html, "Dev login is on") != strings.Contains(html, `class="dev-login"`) {
				t.Errorf("%s, state %d: dev login is not told", name, i)
			}
		}
	}
}

func TestOnlyALocalPathIsComeBackTo(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{"/repos/1?x=2": "/repos/1?x=2", "//x": "/", "/\\x": "/", "http://x/": "/", "x": "/", "": "/", "/sign-in": "/", "/a\nb": "/"} {
		if got := local(to); got != want {
			t.Errorf("local(%q) = %q, want %q", to, got, want)
		}
	}
}

func TestTimesAndSizesAreForPeople(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{-1: "", 70 * time.Millisecond: "70 ms", 2500 * time.Millisecond: "2.5 s", 59 * time.Second: "59 s", 133 * time.Second: "2 min 13 s", 90 * time.Minute: "1 h 30 min"} {
		if got := took(d); got != want {
			t.Errorf("took(%s) = %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1536: "1.5 KiB", 20 << 30: "20 GiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
	now := time.Now()
	for d, want := range map[time.Duration]string{time.Second: "just now", -time.Hour: "just now", 40 * time.Second: "40 s ago", 5 * time.Minute: "5 min ago", 3 * time.Hour: "3 h ago", 72 * time.Hour: "3 days ago"} {
		if got := ago(now, now.Add(-d)); got != want {
			t.Errorf("ago(%s) = %q, want %q", d, got, want)
		}
	}
}

// TestNoPageHidesWhatEveryPageShows: a field of a view model named as one of Page would be shown in its place.
func TestNoPageHidesWhatEveryPageShows(t *testing.T) {
	t.Parallel()
	common := map[string]bool{}
	for f := range reflect.TypeFor[Page]().NumField() {
		common[reflect.TypeFor[Page]().Field(f).Name] = true
	}
	for name, views := range everyPage(time.Now()) {
		view := reflect.TypeOf(views[0])
		for f := range view.NumField() {
			if field := view.Field(f); !field.Anonymous && common[field.Name] {
				t.Errorf("the page %s has a %s of its own", name, field.Name)
			}
		}
	}
}

func TestEveryScopeIsExplainedOnThePageAndInTheDocs(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/access.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range access.Scopes() {
		if scopeWords[s] == "" || !strings.Contains(string(doc), "| `"+string(s)+"` | "+scopeWords[s]+" |\n") {
			t.Errorf("%s: %q", s, scopeWords[s])
		}
	}
	if len(scopeWords) != len(access.Scopes()) {
		t.Error("there are words for a scope that there isn't")
	}
}
