package environment

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

var (
	_ fleet.Owner  = (*Service)(nil)
	_ fleet.Cloner = (*Service)(nil)
)

var (
	imageDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	buildKey    = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// Payload is the Test build as its Runner needs it.
func (s *Service) Payload(_ context.Context, tx *store.Tx, a fleet.Assignment) ([]byte, error) {
	test, err := scanTest(tx.Row(testByIDSQL, a.Subject).Scan)
	if err != nil {
		return nil, fmt.Errorf("read Test build %s: %w", a.Subject, err)
	}
	repo, err := s.repo(tx, test.environment)
	if err != nil {
		return nil, err
	}
	spec, err := encode(test.given())
	if err != nil {
		return nil, err
	}
	out := wire.TestBuild{ID: test.ID, Recipe: wire.Recipe{Environment: test.environment, Spec: json.RawMessage(spec)}, Repo: s.WireRepo(repo)}
	if test.PullRequest != Web {
		out.Proposal = &wire.Proposal{PullRequest: test.PullRequest, Commit: test.Commit, Branch: test.branch, Withheld: test.Withheld}
	}
	return json.Marshal(out)
}

// WireRepo is what a Runner is told of a Repo.
func (s *Service) WireRepo(r access.Repo) wire.Repo {
	host := r.Dev && !s.o.NoHostCredentials
	return wire.Repo{Name: r.Name, CloneURL: r.CloneURL, HostCredentials: host, Token: !host}
}

// CloneRepo is the Repo that the Test build clones.
func (s *Service) CloneRepo(_ context.Context, tx *store.Tx, a fleet.Assignment) (int64, string, error) {
	test, err := scanTest(tx.Row(testByIDSQL, a.Subject).Scan)
	if err != nil {
		return 0, "", fmt.Errorf("read Test build %s: %w", a.Subject, err)
	}
	repo, err := s.repo(tx, test.environment)
	if err != nil {
		return 0, "", err
	}
	return s.TokenRepo(repo)
}

// TokenRepo is the id that GitHub knows a Repo by, or why no token is made for it: the id of one of dev.repos is
// the config's own, and another Repo's at GitHub.
func (s *Service) TokenRepo(r access.Repo) (id int64, refused string, err error) {
	if r.Dev {
		return 0, fmt.Sprintf("The Repo %s isn't cloned: it is one of dev.repos, and this Hub isn't in dev mode any more (keys dev.login and dev.repos of its config).", r.Name), nil
	}
	return int64(r.ID), "", nil
}

// Runners are the ones that can clone the Repo, take the values of spec's Variables, and have Docker in Sandboxes where it asks for that:
// a fleet.Filter.Only.
func (s *Service) Runners(r access.Repo, spec envspec.Spec) func(fleet.Runner) string {
	return func(on fleet.Runner) string {
		if spec.Docker {
			if why := s.fleet.CantRunDocker(on); why != "" {
				return why
			}
		}
		if len(spec.Variables) > 0 {
			if why := s.fleet.CantTakeValues(on); why != "" {
				return why
			}
		}
		if s.WireRepo(r).Token {
			return s.fleet.CantTakeTokens(on)
		}
		return ""
	}
}

func (s *Service) repo(tx *store.Tx, environment string) (access.Repo, error) {
	var id github.RepoID
	if err := tx.Row(repoOfSQL, environment).Scan(&id); err != nil {
		return access.Repo{}, fmt.Errorf("read Environment %s: %w", environment, err)
	}
	return access.ReadRepo(tx, id)
}

// Values are those of the Variables of the Test build's Spec: of exactly the draft that is tested, whatever it is now.
func (s *Service) Values(_ context.Context, tx *store.Tx, a fleet.Assignment) ([]*wire.Value, string, error) {
	test, err := scanTest(tx.Row(testByIDSQL, a.Subject).Scan)
	if err != nil {
		return nil, "", fmt.Errorf("read Test build %s: %w", a.Subject, err)
	}
	return s.Resolve(tx, test.environment, test.given(), "This Test build can't run")
}

// Observe takes a report of a Test build's Runner. A final state is reached once; what comes after it changes nothing.
func (s *Service) Observe(_ context.Context, tx *store.Tx, a fleet.Assignment, r fleet.Report) error {
	if r.State == wire.StateRemoved {
		return nil
	}
	test, err := scanTest(tx.Row(testByIDSQL, a.Subject).Scan)
	if err != nil {
		return fmt.Errorf("read Test build %s: %w", a.Subject, err)
	}
	var detail wire.TestBuildDetail
	if err := json.Unmarshal(r.Detail, &detail); err != nil {
		return fleet.Permanent(fmt.Errorf("decode report of Test build %s: %w", test.ID, err))
	}
	switch r.State {
	case Running:
		return s.progress(tx, test, detail)
	case Passed:
		// Other Runners will be told to pull and to look for these: a hostile one doesn't choose what is sent to them.
		if !imageDigest.MatchString(detail.ImageDigest) || !buildKey.MatchString(detail.BuildKey) {
			return fleet.Permanent(fmt.Errorf("test build %s passed without an image digest and a build key", test.ID))
		}
		return s.finish(tx, test, Passed, detail)
	case Failed, Cancelled:
		return s.finish(tx, test, r.State, detail)
	}
	return fleet.Permanent(fmt.Errorf("test build %s reports an unknown state %q", test.ID, r.State))
}

func (s *Service) progress(tx *store.Tx, test TestBuild, detail wire.TestBuildDetail) error {
	encoded, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("encode detail: %w", err)
	}
	n, err := tx.Exec(progressSQL, test.ID, Running, string(encoded))
	if err != nil {
		return fmt.Errorf("save progress of Test build %s: %w", test.ID, err)
	}
	if n == 0 {
		return nil
	}
	repo, err := s.repo(tx, test.environment)
	if err != nil {
		return err
	}
	return s.changed(tx, repo, test.ID)
}

func (s *Service) finish(tx *store.Tx, test TestBuild, state string, detail wire.TestBuildDetail) error {
	if state == Cancelled {
		detail.Failure = whyCancelled(test.CancelledBy, detail)
	}
	encoded, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("encode detail: %w", err)
	}
	digest, key := "", ""
	if state == Passed {
		digest, key = detail.ImageDigest, detail.BuildKey
	}
	n, err := tx.Exec(finishSQL, test.ID, state, string(encoded), digest, key, tx.Now().UnixMilli())
	if err != nil {
		return fmt.Errorf("finish Test build %s: %w", test.ID, err)
	}
	if n == 0 {
		return nil
	}
	if err := s.forget(tx, test.environment, test.Spec.Variables); err != nil {
		return err
	}
	if err := s.vault.Release(tx, test.ID); err != nil {
		return err
	}
	if _, err := s.fleet.Change(tx, test.assignment, fleet.Remove, time.Time{}); err != nil {
		return err
	}
	repo, err := s.repo(tx, test.environment)
	if err != nil {
		return err
	}
	if err := s.changed(tx, repo, test.ID); err != nil {
		return err
	}
	return audit.Record(tx, audit.Entry{Who: "system: Runner's report", Repo: int64(repo.ID), Action: "test-build." + state, Subject: test.ID})
}

// Lost ends a Test build whose deadline passed or whose Runner is silent. That is final: the fence rises, and what
// the Runner reports later is refused.
func (s *Service) Lost(_ context.Context, tx *store.Tx, a fleet.Assignment) error {
	test, err := scanTest(tx.Row(testByIDSQL, a.Subject).Scan)
	if err != nil {
		return fmt.Errorf("read Test build %s: %w", a.Subject, err)
	}
	if test.Final() {
		return nil
	}
	if err := s.fleet.Refence(tx, a.ID); err != nil {
		return err
	}
	state, failure := Lost, &wire.Failure{Code: "lost", Message: "The Runner did not answer for a whole lease. Its log up to then is kept. Start the Test build again, on this Runner or another."}
	switch {
	case test.CancelledBy != "":
		state, failure = Cancelled, &wire.Failure{Code: "cancelled", Message: "Cancelled. The Runner did not confirm that it stopped; it is told to when it answers again."}
	case a.Loss == fleet.DeadlinePassed:
		state, failure = Failed, &wire.Failure{Code: "timeout", Message: fmt.Sprintf("The Test build did not end within %s.", s.o.TestDeadline)}
	}
	failure.Phase = lastPhase(test.Detail)
	detail := test.Detail
	detail.Progress, detail.Failure = nil, failure
	for i, p := range detail.Phases {
		if p.State == wire.PhaseRunning { // nobody else will end it
			detail.Phases[i].State, detail.Phases[i].Ended = wire.PhaseFailed, max(p.Started, tx.Now().UnixMilli())
			if state == Cancelled {
				detail.Phases[i].State = wire.PhaseCancelled
			}
		}
	}
	return s.finish(tx, test, state, detail)
}

func lastPhase(d wire.TestBuildDetail) string {
	if len(d.Phases) == 0 {
		return wire.PhaseImage
	}
	return d.Phases[len(d.Phases)-1].Name
}
