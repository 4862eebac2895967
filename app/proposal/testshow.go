package proposal

import (
	"fmt"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/checks"
	"github.com/claude-hub/claude-hub/app/environment"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// maxLines bounds the last lines of a log in a check run, in bytes. Runners send less.
const maxLines = 32 << 10

// watch has the check runs of a Test build say how far it is, in the transaction that says so: it is queued as soon as it was
// asked for, and completed as soon as it ended, whatever becomes of this Hub.
func (s *Service) watch(tx *store.Tx, repo access.Repo, t environment.TestBuild) error {
	if t.PullRequest == environment.Web {
		return nil
	}
	if err := s.showTest(tx, repo, t, t.Commit); err != nil {
		return err
	}
	return s.dueNow(tx, repo, t)
}

// dueNow has the check run "Environment" follow what a Test build begins with and comes to.
func (s *Service) dueNow(tx *store.Tx, repo access.Repo, t environment.TestBuild) error {
	if t.State == environment.Running {
		return nil
	}
	return due(tx, repo.ID, t.PullRequest, tx.Now(), false)
}

// showTest shows a Test build on a commit that it counts for, and on all those where it is shown already.
func (s *Service) showTest(tx *store.Tx, repo access.Repo, t environment.TestBuild, sha string) error {
	id := "test-build/" + t.ID
	if sha != t.Commit {
		id += "/" + sha
	}
	if _, err := tx.Exec(insertRunSQL, id, t.ID, int64(repo.ID), t.PullRequest, sha); err != nil {
		return fmt.Errorf("save the check run of Test build %s: %w", t.ID, err)
	}
	type run struct{ id, sha string }
	runs, err := store.All(tx, func(scan func(...any) error) (r run, err error) { err = scan(&r.id, &r.sha); return r, err }, runsSQL, t.ID)
	if err != nil {
		return fmt.Errorf("list the check runs of Test build %s: %w", t.ID, err)
	}
	for _, r := range runs {
		v := s.renderTest(repo, t)
		v.ExternalID, v.SHA = r.id, r.sha
		if err := checks.Show(tx, v); err != nil {
			return err
		}
	}
	return nil
}

// renderTest makes the check run "Environment / Test build". It is pure.
func (s *Service) renderTest(repo access.Repo, t environment.TestBuild) checks.View {
	page := fmt.Sprintf("%s/repos/%s/tests/%s", s.o.PublicURL, repo.ID, t.ID)
	v := checks.View{Repo: repo.ID, Name: TestName, Status: checks.Queued, DetailsURL: page, Started: t.CreatedAt}
	title := "Queued"
	var summary, text markdown
	switch {
	case t.State == environment.Queued && t.CancelledBy == "":
		summary.paragraph("Waiting for the Runner to begin.")
	case !t.Final():
		v.Status, title = checks.InProgress, "Begins"
		if n := len(t.Detail.Phases); n > 0 {
			title = phase(t.Detail.Phases[n-1].Name)
			if p := t.Detail.Progress; p != nil && p.Total > 0 {
				title += fmt.Sprintf(" (%d %%)", min(100, 100*p.Done/p.Total))
			}
		}
		if p := t.Detail.Progress; p != nil && p.Text != "" {
			summary.paragraph(escape(p.Text))
		}
		if t.CancelledBy != "" {
			title = "Is being cancelled"
		}
	default:
		v.Status, v.Completed = checks.Completed, t.FinishedAt
		v.Conclusion, title = conclude(t)
	}
	if f := t.Detail.Failure; f != nil && t.Final() {
		words := sentence(f.Message)
		if f.ExitCode != nil {
			words += fmt.Sprintf(" Exit code %d.", *f.ExitCode)
		}
		if f.Signal != "" {
			words += " Ended by " + f.Signal + "."
		}
		summary.paragraph(escape(words))
		if lines := strings.TrimSpace(f.LastLines); lines != "" {
			text.paragraph("The last lines of its log:")
			text.block("", lines[max(0, len(lines)-maxLines):])
		}
	}
	if len(t.Detail.Phases) > 0 {
		summary.paragraph(phases(t.Detail.Phases))
	}
	for _, n := range t.Detail.Notes {
		summary.item(escape(n))
	}
	summary.end()
	if t.Withheld {
		summary.paragraph("It comes from a fork, so Sensitive values and Links were withheld. This Test build never counts for Apply.")
	}
	trunk := "The default branch is cloned"
	if t.Detail.Commit != "" {
		trunk = "The default branch was cloned at `" + codeSpan(t.Detail.Commit) + "`"
	}
	summary.paragraph(fmt.Sprintf("The Environment is read at `%s`. %s.", t.Commit, trunk))
	summary.paragraph("[The full log](" + page + ")")
	v.Title, v.Summary, v.Text = masked(title), masked(summary.String()), masked(text.String())
	return v
}

// conclude is how a Test build ended, for GitHub.
func conclude(t environment.TestBuild) (conclusion, title string) {
	where := ""
	f := t.Detail.Failure
	if f != nil && f.Phase != "" {
		where = " in the phase " + phase(f.Phase)
	}
	switch t.State {
	case environment.Passed:
		return "success", "Passed in " + took(t.FinishedAt.Sub(t.CreatedAt))
	case environment.Cancelled:
		return "cancelled", "Cancelled" + where
	case environment.Lost:
		return "failure", "Lost: its Runner did not answer"
	}
	if f != nil && f.Code == "timeout" {
		return "timed_out", "Out of time" + where
	}
	if f != nil && f.ExitCode != nil {
		where += fmt.Sprintf(", exit code %d", *f.ExitCode)
	}
	return "failure", "Failed" + where
}

func phases(all []wire.Phase) string {
	var b strings.Builder
	b.WriteString("| Phase | State | Took | |\n|---|---|---|---|\n")
	for _, p := range all {
		note := escape(p.Note)
		if p.ExitCode != nil {
			note = strings.TrimSpace(note + fmt.Sprintf(" exit code %d", *p.ExitCode))
		}
		spent := ""
		if p.Ended != 0 && p.State != wire.PhaseSkipped {
			spent = took(time.Duration(p.Ended-p.Started) * time.Millisecond)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", escape(phase(p.Name)), escape(p.State), spent, note)
	}
	return strings.TrimRight(b.String(), "\n")
}

// phase is the title of one, safe for a check run.
func phase(name string) string { return fit(plain(wire.PhaseTitle(name)), 40) }

func took(d time.Duration) string {
	if d < 0 {
		return ""
	}
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
