package proposal

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store"
)

// showing is what a check run "Environment" is made of beside what is stored.
type showing struct {
	runners []fleet.Runner
	bump    bool    // another attempt, whatever it says
	press   string  // as look has it
	note    *string // nil: as it is
}

// show has the check run "Environment" of a commit say what all pull requests at it propose: two on one head have one check run,
// which speaks of both. It is completed at once. A check run never changes its conclusion: another one is another attempt.
func (s *Service) show(tx *store.Tx, g access.Grant, sha string, how showing) error {
	all, err := at(tx, g.Repo().ID, sha)
	if err != nil {
		return err
	}
	var parts []part
	for _, p := range all {
		one, err := s.part(tx, g, p, how.runners)
		if err != nil {
			return err
		}
		if one.shown() {
			parts = append(parts, one)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return s.showParts(tx, g.Repo(), sha, parts, how)
}

func (s *Service) showParts(tx *store.Tx, repo access.Repo, sha string, parts []part, how showing) error {
	note, err := s.note(tx, repo.ID, sha, how.note)
	if err != nil {
		return err
	}
	return s.complete(tx, s.render(repo, sha, parts, note), showing{bump: how.bump, press: how.press, note: &note})
}

// note is the sentence on top of a commit's check run: a new one, or the one that is there.
func (s *Service) note(tx *store.Tx, repo github.RepoID, sha string, next *string) (string, error) {
	if next != nil {
		return store.Text(*next), nil
	}
	var attempt int
	var conclusion, note string
	err := tx.Row(commitSQL, int64(repo), sha).Scan(&attempt, &conclusion, &note)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return "", fmt.Errorf("read the check run of %s: %w", sha, err)
	}
	return note, nil
}

// complete shows v as the check run "Environment" of its commit.
func (s *Service) complete(tx *store.Tx, v checks.View, how showing) error {
	var attempt int
	var conclusion, note string
	err := tx.Row(tx.Locked(commitSQL), int64(v.Repo), v.SHA).Scan(&attempt, &conclusion, &note)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("read the check run of %s: %w", v.SHA, err)
	}
	if how.note != nil {
		note = *how.note
	}
	if how.bump {
		if how.bump, err = once(tx, v.Repo, how.press, reshown); err != nil {
			return err
		}
	}
	if attempt == 0 || how.bump || conclusion != v.Conclusion {
		attempt++
	}
	if _, err := tx.Exec(keepSQL, int64(v.Repo), v.SHA, attempt, v.Conclusion, note); err != nil {
		return fmt.Errorf("save the check run of %s: %w", v.SHA, err)
	}
	v.ExternalID, v.Completed = externalID(v.Repo, v.SHA, attempt), tx.Now()
	if before, found, err := checks.Read(tx, v.ExternalID); err != nil {
		return err
	} else if found {
		v.Completed = before.Completed
	}
	v.Started = v.Completed
	return checks.Show(tx, v)
}

func externalID(repo github.RepoID, sha string, attempt int) string {
	return fmt.Sprintf("environment/%d/%s/%d", repo, sha, attempt)
}

// part is one pull request with all that is said of it.
type part struct {
	Proposal
	env     environment.Environment // its Draft is the pull request's
	web     *environment.Draft
	verdict environment.Verdict
	states  []variable.State
	tests   []environment.TestBuild
	fit     []fleet.Runner
	onMain  string // digest of the default branch's file; "" unknown or none
	branch  string // its name
}

// shown says that there is something to show: of what proposes nothing there is not, and of what left the file alone no longer
// once it is merged.
func (p part) shown() bool {
	return p.State == Open && p.File != None || p.State == Merged && p.File != None && p.File != Unchanged
}

func (s *Service) part(tx *store.Tx, g access.Grant, p Proposal, runners []fleet.Runner) (part, error) {
	out := part{Proposal: p}
	var err error
	if out.env, out.web, err = s.env.Proposed(tx, g, p.Number); err != nil {
		return out, err
	}
	b, err := readBranch(tx, g.Repo().ID)
	if err != nil {
		return out, err
	}
	out.onMain, out.branch = b.digest, b.branch
	if out.env.Draft == nil {
		return out, nil
	}
	if out.verdict, err = s.env.CheckProposed(tx, g, p.Number); err != nil {
		return out, err
	}
	if out.states, err = s.env.StatesProposed(tx, g, p.Number); err != nil {
		return out, err
	}
	if out.tests, err = s.env.ProposedTests(tx, g, p.Number, 20); err != nil {
		return out, err
	}
	out.fit = s.fitting(runners, g.Repo(), out.env.Draft.Spec)
	return out, nil
}

// before is what is applied, as Explain takes it.
func (p part) before() envspec.Spec {
	if p.env.Current == nil {
		return envspec.Spec{}
	}
	return p.env.Current.Spec
}

// compared is a Spec as a check run compares it: of a fork without which Sensitive values it has, since that another value is here than the
// applied one would be seen, too.
func (p part) compared(s envspec.Spec) envspec.Spec {
	if !p.env.Draft.Fork {
		return s
	}
	return valueless(s)
}

// valueless is s without which Sensitive values it has.
func valueless(s envspec.Spec) envspec.Spec {
	s.Variables = slices.Clone(s.Variables)
	for i := range s.Variables {
		if s.Variables[i].Sensitive {
			s.Variables[i].ValueID = ""
		}
	}
	return s
}

// missing are the Variables without a value. Which Shared variables there are is nothing for a fork.
func (p part) missing() (names []string) {
	for _, v := range p.states {
		if v.Status != variable.Set && !(v.Link != "" && p.env.Draft.Fork) {
			names = append(names, v.Name)
		}
	}
	return names
}

// secret says that a fork's Test build doesn't count.
func (p part) secret() bool {
	return p.env.Draft != nil && p.env.Draft.Fork &&
		slices.ContainsFunc(p.env.Draft.Spec.Variables, func(v envspec.Variable) bool { return !v.Plain() })
}

// tested is the newest Test build of exactly the draft.
func (p part) tested() *environment.TestBuild {
	if p.env.Draft == nil {
		return nil
	}
	for i, t := range p.tests {
		if t.TestKey == p.env.Draft.TestKey && (p.env.Draft.Fork || !t.Withheld) { // merged, it needs one with secrets
			return &p.tests[i]
		}
	}
	return nil
}

// opinion is what the check run says of one pull request.
type opinion struct{ conclusion, title, sentence string }

// rank orders conclusions by what a check run that speaks of several pull requests says.
var rank = []string{"success", "neutral", "action_required", "failure"}

// judge is the rule of the check run "Environment" (docs/environments.md, "Proposals"): failure for what is invalid, action_required
// for what can't be applied after the merge as it is, neutral where there is nothing that its author could do about it, success
// else. So a branch protection that wants it lets through what will work, and only that.
func (p part) judge() opinion {
	wrong := 0
	for _, x := range p.Problems {
		if !x.Warning {
			wrong++
		}
	}
	switch p.Outcome {
	case Applied:
		return opinion{"success", "Applied", "This is applied."}
	case Nothing:
		return opinion{"success", "Nothing to apply", "The applied version says the same: there is nothing to apply."}
	case Superseded:
		return opinion{"neutral", "Superseded", "The file was changed again since. What the default branch says now is what counts."}
	case Kept:
		return opinion{"neutral", "The Environment stays", "The file is deleted. The Environment stays as it is, and is kept on the Hub's pages from now on."}
	case Elsewhere:
		return opinion{"neutral", "Not for the default branch", "Only what is merged to the default branch is applied."}
	case Wrong:
		return opinion{"failure", "Invalid, not applied", "What was merged is invalid, so the Environment stays as it is. Mend the file in another pull request."}
	case Needs:
		return opinion{"action_required", "Not applied yet", p.needs()}
	}
	switch p.File {
	case Deleted:
		return opinion{"neutral", "Deletes the file: the Environment stays", "This deletes " + Path + ". The Environment stays as it is, and is kept on the Hub's pages once this is merged."}
	case Unchanged:
		if wrong > 0 {
			return opinion{"neutral", "Unchanged, and invalid", "This leaves the Environment's file as it was, which is invalid."}
		}
		return opinion{"success", "Unchanged", "This doesn't change the Environment."}
	case Invalid:
		return opinion{"failure", fmt.Sprintf("Invalid: %s", count(wrong, "problem")), "What this proposes is invalid. Each problem is at its line."}
	}
	switch missing := p.missing(); {
	case saysAlready(p.env):
		return opinion{"success", "Valid: nothing to apply", fmt.Sprintf("This says what version %d says: there is nothing to apply.", p.env.Current.Number)}
	case p.secret():
		return opinion{"neutral", "Valid, from a fork", "This is valid. It comes from a fork, so it is tested without Sensitive values and Links only, which doesn't count: after the merge it needs a Test build with them."}
	case len(missing) > 0:
		return opinion{"action_required", "Valid: values are missing", "This is valid, but these Variables have no value yet: " + strings.Join(missing, ", ") + "."}
	case p.verdict.OK && !p.ToDefault:
		return opinion{"success", "Valid", "This is valid. It is not for the default branch, so merging it applies nothing."}
	case p.verdict.OK && p.env.Current != nil && p.env.Current.TestKey == p.env.Draft.TestKey:
		return opinion{"success", "Valid: needs no Test build", "This is valid, and needs no Test build. It is applied when it is merged."}
	case p.verdict.OK:
		return opinion{"success", "Valid, and tested", "This is valid, and a Test build of exactly this passed. It is applied when it is merged."}
	case !p.ToDefault:
		return opinion{"neutral", "Valid, not tested", "This is valid. It is not for the default branch, so merging it applies nothing."}
	}
	t := p.tested()
	switch {
	case t != nil && !t.Final():
		return opinion{"action_required", "Valid: Test build " + t.State, "This is valid. Its Test build is " + t.State + "."}
	case t != nil:
		return opinion{"action_required", "Valid: Test build " + t.State, "This is valid, but its Test build " + was(t.State) + ". It needs one that passes before it can be applied."}
	}
	return opinion{"action_required", "Valid: needs a Test build", "This is valid. It needs a passing Test build before it can be applied."}
}

// needs is what is to be done about what was merged.
func (p part) needs() string {
	switch {
	case p.env.Draft != nil && !p.verdict.OK:
		return p.verdict.Reason
	case p.Detail != "":
		return p.Detail
	}
	return "It can be applied now: somebody with access to this Repo does that on the Hub's page."
}

func was(state string) string {
	if state == environment.Failed {
		return "failed"
	}
	return "was " + state
}

// render makes the check run. It is pure: what it is made of is in its arguments.
func (s *Service) render(repo access.Repo, sha string, parts []part, note string) checks.View {
	v := checks.View{Repo: repo.ID, SHA: sha, Name: CheckName, Status: checks.Completed}
	var worst opinion
	var summary, text markdown
	if note != "" {
		summary.paragraph("**" + escape(note) + "**")
	}
	for _, p := range parts {
		o := p.judge()
		if worst.conclusion == "" || slices.Index(rank, o.conclusion) > slices.Index(rank, worst.conclusion) {
			worst = o
		}
		if len(parts) > 1 {
			summary.heading(fmt.Sprintf("Pull request #%d", p.Number))
		}
		s.summarize(&summary, repo, p, o)
		if !p.hidden(repo) {
			p.details(&text, len(parts))
		}
		v.Buttons = addButtons(v.Buttons, p)
		v.Annotations = addAnnotations(v.Annotations, p)
	}
	v.Conclusion, v.Title, v.Summary, v.Text = worst.conclusion, masked(worst.title), masked(summary.String()), masked(text.String())
	v.DetailsURL = s.page(repo.ID, parts[0].Number)
	return v
}

const (
	listed  = 50       // of problems and of changes
	maxDiff = 48 << 10 // bytes of the differences of a check run, in all
)

// page is where people go on from a check run.
func (s *Service) page(repo github.RepoID, number int) string {
	if number == 0 {
		return fmt.Sprintf("%s/repos/%s/environment", s.o.PublicURL, repo)
	}
	return fmt.Sprintf("%s/repos/%s/proposals/%d", s.o.PublicURL, repo, number)
}

func (s *Service) summarize(m *markdown, repo access.Repo, p part, o opinion) {
	m.paragraph(escape(o.sentence))
	if p.File == Invalid || p.Outcome == Wrong {
		for i, x := range p.Problems {
			if i == listed {
				m.item(fmt.Sprintf("and %d more", len(p.Problems)-listed))
				break
			}
			m.item(fmt.Sprintf("`%s` line %d: %s", codeSpan(x.File), x.Line, escape(clip(x.Message, 500))))
		}
		m.end()
	}
	page := s.page(repo.ID, p.Number)
	if d := p.env.Draft; d != nil {
		changes := envspec.Explain(p.compared(p.before()), p.compared(d.Spec))
		if len(changes) > 0 {
			against := "Against nothing: no version is applied yet."
			if p.env.Current != nil {
				against = fmt.Sprintf("Against version %d, which is applied:", p.env.Current.Number)
			}
			m.paragraph(escape(against))
			for i, c := range changes {
				if i == listed {
					m.item(fmt.Sprintf("and %d more", len(changes)-listed))
					break
				}
				if p.hidden(repo) {
					m.item(escape(outline(c, d.Spec)))
					continue
				}
				m.item(escape(c.Sentence))
			}
			m.end()
			if p.hidden(repo) {
				m.paragraph("What is applied was made on the Hub's pages, and this repository is public, so what it says is [only on the Hub's page](" + page + ").")
			}
		}
		if missing := p.missing(); len(missing) > 0 && !d.Fork { // anybody could ask by a fork which names have a value here
			m.paragraph(escape("Without a value: "+strings.Join(missing, ", ")+".") + " Sensitive values never stand in the file: [enter them on the Hub's page](" + page + ").")
		}
		if d.Fork {
			m.paragraph("This comes from a fork. Nothing of it is built unless somebody with access asks for exactly this commit" +
				map[bool]string{true: ", and then without Sensitive values and Links; such a Test build never counts for Apply.", false: "."}[p.secret()])
		}
		for _, drift := range p.drift(repo.Private) {
			m.paragraph("**Drift:** " + escape(drift))
		}
		if t := p.tested(); t != nil {
			m.paragraph(fmt.Sprintf("[Test build](%s/repos/%s/tests/%s): %s.", s.o.PublicURL, repo.ID, t.ID, t.State))
		}
	}
	m.paragraph("[Open it on the Hub](" + page + ") to test it on any Runner" + map[bool]string{true: ", and to apply it.", false: "."}[p.Outcome == Needs] +
		" A button counts only for somebody who has signed in there and has access to this Repo; others are asked to do it there.")
}

// drift says where file, applied version and web draft have gone apart, beyond what is proposed. named says who wrote the web draft,
// which is for those with access to the Repo to know.
func (p part) drift(named bool) (all []string) {
	if c := p.env.Current; c != nil && p.State == Open && p.onMain != "" && p.onMain != digest(c.Spec) {
		all = append(all, fmt.Sprintf("the file on %s is not what version %d says, which is applied from %s.", cmp.Or(p.branch, "the default branch"), c.Number, sourceWords(c.Source)))
	}
	if w := p.web; w != nil && len(envspec.Explain(p.compared(w.Spec), p.compared(p.env.Draft.Spec))) > 0 &&
		(p.env.Current == nil || len(envspec.Explain(p.compared(p.env.Current.Spec), p.compared(w.Spec))) > 0) {
		who := ""
		if named {
			who = ", by " + w.UpdatedBy
		}
		all = append(all, fmt.Sprintf("the draft on the Hub's pages (revision %d%s) has changes that are neither applied nor in this file. They stay there, as a draft.", w.Revision, who))
	}
	return all
}

func sourceWords(source string) string {
	if source == "web" {
		return "the Hub's pages"
	}
	return source
}

// hidden says that the check run, which everybody can read in a public Repo, may not show what is applied: that isn't in the Repo,
// and only who has access to it may read its Environment (ADR 0009).
func (p part) hidden(repo access.Repo) bool {
	c := p.env.Current
	return c != nil && !repo.Private && c.Source == "web" && digest(c.Spec) != p.onMain
}

// outline says which field changes and what that needs, and nothing of what it was.
func outline(c envspec.Change, next envspec.Spec) string {
	what := c.Field + " changes."
	if name, ok := strings.CutPrefix(c.Field, "variables."); ok {
		what = "A Variable is removed."
		if slices.ContainsFunc(next.Variables, func(v envspec.Variable) bool { return v.Name == name }) {
			what = name + " is added or changes."
		}
	}
	if c.Affects == envspec.Nothing {
		return what + " This applies without a Test build."
	}
	return what + " This needs a passing Test build."
}

// details is the difference line by line.
func (p part) details(m *markdown, parts int) {
	d := p.env.Draft
	if d == nil {
		return
	}
	diff := envspec.Compare(p.compared(p.before()), p.compared(d.Spec))
	if diff.Empty() {
		return
	}
	if parts > 1 {
		m.heading(fmt.Sprintf("Pull request #%d", p.Number))
	}
	text, room := diff.String(), maxDiff/parts
	if len(text) > room { // GitHub would cut the beginning, and with it what makes it a block
		text = clip(text, room) + "\n… (the rest is on the Hub's page)"
	}
	m.block("diff", text)
}

// addButtons offers the Runners that fit, where a Test build is of use. GitHub shows three at most.
func addButtons(have []github.Button, p part) []github.Button {
	if p.env.Draft == nil || saysAlready(p.env) || p.verdict.OK || len(p.missing()) > 0 && !p.env.Draft.Fork {
		return have
	}
	if t := p.tested(); t != nil && !t.Final() {
		return have
	}
	for _, r := range p.fit {
		b := github.Button{Label: fit("Test on "+r.Name, 20), Description: fit("Test build of this commit on "+r.Name, 40), Identifier: buttonOf(r)}
		if len(have) == github.MaxButtons {
			break
		}
		if !slices.ContainsFunc(have, func(x github.Button) bool { return x.Identifier == b.Identifier }) {
			have = append(have, b)
		}
	}
	return have
}

func addAnnotations(have []github.Annotation, p part) []github.Annotation {
	if p.File != Valid && p.File != Invalid && p.File != Unchanged {
		return have
	}
	for _, x := range p.Problems {
		n := github.Annotation{Path: x.File, Start: x.Line, End: x.Line, StartColumn: x.Column, EndColumn: x.Column, Level: "failure", Title: "Invalid", Message: sentence(x.Message)}
		if x.Warning {
			n.Level, n.Title = "warning", "Worth a look"
		}
		if !slices.Contains(have, n) {
			have = append(have, n)
		}
	}
	return have
}
