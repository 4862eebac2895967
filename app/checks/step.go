package checks

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// A step is one request about one check run, or one write at most, between two transactions. claim says beforehand what is
// going to be asked, so that whoever finds the row later knows what GitHub may have got:
//
//	create   POST; creating_since was committed before
//	find     creating_since is there, but no id: look for the check run by its external_id
//	count    annotations were on their way, and no answer came: look how many GitHub has
//	update   PATCH
//	locate   find out the installation; only in lane 0
type action string

const (
	create action = "create"
	find   action = "find"
	count  action = "count"
	update action = "update"
	locate action = "locate"
)

// job is a claimed row, with what GitHub has of it.
type job struct {
	View
	installation int64
	holder       string
	failures     int64 // of the lane
	version      int64
	created      int64
	app          int64
	run          int64 // GitHub's id; 0: none is known
	since        int64 // a POST may have been sent then
	status       string
	noted        int      // annotations at GitHub
	notes        []string // which
	noting       []string // which may be there
	attempts     int64
	refused      int64
	action       action
}

const (
	annotationsEach = 50 // that go with one request
	pickAtMost      = 50 // rows looked at in one transaction
	elderWait       = time.Second
)

func (r *Reconciler) oneStep(ctx context.Context, app *github.App, installation int64) error {
	work, cancel := context.WithTimeout(ctx, workLimit)
	defer cancel()
	j, ok, err := r.claim(work, app.ID(), installation)
	if err != nil || !ok {
		return err
	}
	if err := r.at("claimed " + string(j.action)); err != nil {
		return err
	}
	got := do(work, app, j)
	if err := r.at("did " + string(j.action)); err != nil {
		return err
	}
	// What was done is written down also when this Hub is told to stop meanwhile.
	keep, end := context.WithTimeout(context.WithoutCancel(ctx), lease-workLimit)
	defer end()
	return r.settle(keep, j, got, ctx.Err() != nil)
}

// claim takes the lane and the row that is most urgent in it. ok is false if nothing is due, or somebody else is at it.
func (r *Reconciler) claim(ctx context.Context, app, installation int64) (j job, ok bool, err error) {
	err = r.db.Write(ctx, func(tx *store.Tx) (err error) {
		j, ok, err = claimIn(tx, app, installation)
		return err
	})
	if err != nil {
		return job{}, false, fmt.Errorf("claim a check run: %w", err)
	}
	return j, ok, nil
}

func claimIn(tx *store.Tx, app, installation int64) (job, bool, error) {
	now := tx.Now().UnixMilli()
	if _, err := tx.Exec(makeLaneSQL, installation); err != nil {
		return job{}, false, err
	}
	var holder string
	var held, next, failures int64
	if err := tx.Row(tx.Locked(laneSQL), installation).Scan(&holder, &held, &next, &failures); err != nil {
		return job{}, false, err
	}
	if now < held || now < next {
		return job{}, false, nil
	}
	j, err := pick(tx, app, installation)
	if errors.Is(err, store.ErrNotFound) {
		return job{}, false, nil
	}
	if err != nil {
		return job{}, false, err
	}
	j.installation, j.holder, j.failures = installation, store.NewID(), failures
	switch {
	case installation == 0:
		j.action = locate
	case j.run == 0 && j.since != 0:
		j.action = find
	case len(j.noting) > 0:
		j.action = count
	case j.run == 0:
		j.action, j.since = create, now
		j.noting, _ = j.batch()
	default:
		j.action = update
		j.noting, _ = j.batch()
	}
	if _, err := tx.Exec(holdLaneSQL, installation, j.holder, now+lease.Milliseconds()); err != nil {
		return job{}, false, err
	}
	notes, noting := list(j.notes), list(j.noting)
	if _, err := tx.Exec(markSQL, j.ExternalID, j.app, orNull(j.run), j.since, j.status, j.noted, notes, noting); err != nil {
		return job{}, false, err
	}
	return j, true, nil
}

// pick finds the most urgent row of a lane, or store.ErrNotFound. Of check runs with one name on one commit people see the
// newest, so they are made in their order: one that comes too late for that isn't made any more, and one whose elder may be
// on its way waits for it.
func pick(tx *store.Tx, app, installation int64) (job, error) {
	now := tx.Now().UnixMilli()
	for range pickAtMost {
		j, err := scanJob(tx.Row(nextSQL, installation, now).Scan, app)
		if err != nil || installation == 0 || j.run != 0 || j.since != 0 {
			return j, err
		}
		var newer int
		if err := tx.Row(newerSQL, int64(j.Repo), j.SHA, j.Name, j.created, j.ExternalID, app).Scan(&newer); err != nil {
			return job{}, err
		}
		if newer > 0 {
			if _, err := tx.Exec(supersedeSQL, j.ExternalID, now); err != nil {
				return job{}, err
			}
			continue
		}
		var elder string
		var its, due int64
		err = tx.Row(olderSQL, int64(j.Repo), j.SHA, j.Name, j.created, j.ExternalID, now).Scan(&elder, &its, &due)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return j, nil
		case err != nil:
			return job{}, err
		case its == installation && due <= now:
			return scanJob(tx.Row(jobSQL, elder).Scan, app)
		}
		if _, err := tx.Exec(waitSQL, j.ExternalID, now+elderWait.Milliseconds()); err != nil {
			return job{}, err
		}
	}
	return job{}, store.ErrNotFound
}

// scanJob reads a row as what app can do with it.
func scanJob(scan func(...any) error, app int64) (j job, err error) {
	var doc, notes, noting string
	err = scan(&j.ExternalID, &j.Repo, &j.SHA, &j.Name, &j.Status, &j.Conclusion, &doc,
		&j.version, &j.created, &j.app, &j.run, &j.since, &j.status, &j.noted, &notes, &noting, &j.attempts, &j.refused)
	if err != nil {
		return job{}, err
	}
	err = errors.Join(j.decode(doc), json.Unmarshal([]byte(notes), &j.notes), json.Unmarshal([]byte(noting), &j.noting))
	if j.app != app && j.app != 0 { // the check run of another App can't be changed: this one makes its own
		j.run, j.since, j.status, j.noted, j.notes, j.noting = 0, 0, "", 0, nil, nil
	}
	j.app = app
	return j, err
}

func list(s []string) string {
	if len(s) == 0 {
		return "[]"
	}
	b, _ := json.Marshal(s) // strings always encode
	return string(b)
}

func orNull(id int64) any {
	if id == 0 {
		return nil
	}
	return id
}

// shorter says that GitHub refused this version whole.
func (j job) shorter() bool { return j.refused == j.version }

// batch is the annotations that go with the next write: those that GitHub doesn't have. more says that some are left then.
func (j job) batch() (digests []string, batch []github.Annotation) {
	if j.shorter() {
		return nil, nil
	}
	for _, n := range j.Annotations {
		d := digest(n)
		if len(batch) < annotationsEach && !slices.Contains(j.notes, d) && !slices.Contains(digests, d) {
			digests, batch = append(digests, d), append(batch, n)
		}
	}
	return digests, batch
}

// left says whether annotations remain to be sent once GitHub has notes.
func (j job) left(notes []string) bool {
	return !j.shorter() && slices.ContainsFunc(j.Annotations, func(n github.Annotation) bool { return !slices.Contains(notes, digest(n)) })
}

func digest(n github.Annotation) string {
	b, _ := json.Marshal(n) // strings and numbers always encode
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// wanted is what is sent. What GitHub refused whole goes without everything that it may have refused, so that at least the
// conclusion gets there.
func (j job) wanted() github.CheckRun {
	c := github.CheckRun{
		SHA: j.SHA, Name: j.Name, ExternalID: j.ExternalID, DetailsURL: j.DetailsURL, Status: j.Status, Conclusion: j.Conclusion,
		Started: j.Started, Completed: j.Completed, Title: j.Title.String(), Summary: j.Summary.String(), Text: j.Text.String(), Buttons: j.Buttons,
	}
	if j.shorter() {
		c.Text, c.Buttons = "", nil
		if c.Title != "" {
			c.Summary = "GitHub didn't take the rest of this. It is on the Hub's page, which \"Details\" leads to."
		}
		return c
	}
	_, c.Annotations = j.batch()
	return c
}

// outcome is what came of a job.
type outcome struct {
	run   github.CheckRun
	found bool  // of find
	moved int64 // of locate, or of a Repo that has moved: its installation now
	gone  bool  // GitHub has the Repo, but not the commit
	err   error
}

func do(ctx context.Context, app *github.App, j job) (got outcome) {
	switch j.action {
	case locate:
		got.moved, got.err = app.InstallationOf(ctx, j.Repo)
		return got
	case find:
		got.run, got.found, got.err = app.FindCheckRun(ctx, j.Repo, j.SHA, j.Name, j.ExternalID)
	case count:
		got.run, got.err = app.CheckRun(ctx, j.Repo, j.run)
	case create:
		got.run, got.err = app.CreateCheckRun(ctx, j.Repo, j.wanted())
	case update:
		got.run, got.err = app.UpdateCheckRun(ctx, j.Repo, j.run, j.wanted())
	}
	switch {
	case github.NotFound.Is(got.err), github.Forbidden.Is(got.err):
		// A Repo that was transferred isn't seen by the installation that had it.
		app.ForgetRepo(j.Repo)
		now, err := app.InstallationOf(ctx, j.Repo)
		if err != nil && !github.Unavailable.Is(err) {
			got.err = err
		} else if err == nil && now != j.installation {
			got.moved = now
		}
	case github.Invalid.Is(got.err) && (j.action == create || j.action == find):
		// The head of a fork's pull request may be told of before it can be found (facts/github.md §3).
		_, err := app.Commit(ctx, j.Repo, j.SHA)
		got.gone = github.NotFound.Is(err) || github.Invalid.Is(err)
	}
	return got
}

// settle writes down what came of a job, and gives the lane back. stopping says that this Hub gave up itself.
func (r *Reconciler) settle(ctx context.Context, j job, got outcome, stopping bool) error {
	err := r.db.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(makeLaneSQL, j.installation); err != nil {
			return err
		}
		var holder string
		var held, next, failures int64
		if err := tx.Row(tx.Locked(laneSQL), j.installation).Scan(&holder, &held, &next, &failures); err != nil {
			return err
		}
		if holder != j.holder {
			// This Hub was away for longer than its lease, and what it wrote may have come after what another one wrote since.
			_, err := tx.Exec(doubtSQL, j.ExternalID)
			return err
		}
		now := tx.Now()
		free := now
		if j.action == create || j.action == update {
			free = now.Add(r.o.Pace)
		}
		if got.err == nil {
			if _, err := tx.Exec(releaseLaneSQL, j.installation, free.UnixMilli(), 0); err != nil {
				return err
			}
			if j.failures > 0 {
				if _, err := tx.Exec(againSQL, j.installation); err != nil {
					return err
				}
			}
			return r.succeeded(tx, j, got)
		}
		failures = j.failures
		kind, until := kindOf(got.err)
		switch {
		case stopping:
		case kind == github.RateLimited:
			free = later(free, now.Add(time.Until(until)))
		case troubled(kind):
			failures++
			free = later(free, now.Add(backoff(failures, laneBackoff)))
		}
		if _, err := tx.Exec(releaseLaneSQL, j.installation, free.UnixMilli(), failures); err != nil {
			return err
		}
		return r.failed(tx, j, got, kind, stopping)
	})
	if err != nil {
		return fmt.Errorf("write down what GitHub said of check run %s: %w", j.ExternalID, err)
	}
	return nil
}

// succeeded takes over GitHub's answer.
func (r *Reconciler) succeeded(tx *store.Tx, j job, got outcome) error {
	notes, noted := j.notes, j.noted
	switch j.action {
	case locate:
		_, err := tx.Exec(placeSQL, int64(j.Repo), got.moved)
		return err
	case find:
		if !got.found {
			// It never arrived, if it had time enough to.
			if since := at(j.since); tx.Now().Before(since.Add(settle)) {
				_, err := tx.Exec(laterSQL, j.ExternalID, j.version, j.attempts, since.Add(settle).UnixMilli(), "GitHub didn't answer; it may still be at it.")
				return err
			}
			return errors.Join(r.keep(tx, j, 0, 0, "", 0, nil, nil), exec(tx, dueSQL, j.ExternalID))
		}
		if got.run.Noted > 0 {
			notes, noted = j.noting, got.run.Noted
		}
		// What it shows is known only roughly: the next step writes it whole.
		return errors.Join(r.keep(tx, j, got.run.ID, 0, got.run.Status, noted, notes, nil), exec(tx, dueSQL, j.ExternalID))
	case count:
		if got.run.Noted > noted {
			notes, noted = append(slices.Clone(notes), j.noting...), got.run.Noted
		}
		return errors.Join(r.keep(tx, j, j.run, 0, got.run.Status, noted, notes, nil), exec(tx, dueSQL, j.ExternalID))
	}
	notes, noted = append(slices.Clone(notes), j.noting...), max(got.run.Noted, noted+len(j.noting))
	if err := r.keep(tx, j, got.run.ID, 0, j.Status, noted, notes, nil); err != nil {
		return err
	}
	if j.left(notes) {
		return exec(tx, dueSQL, j.ExternalID)
	}
	now := tx.Now()
	next := now
	if j.Status != Completed {
		next = now.Add(r.o.Progress)
	}
	return exec(tx, agreeSQL, j.ExternalID, j.version, now.UnixMilli(), j.Status, next.UnixMilli())
}

// keep writes down what GitHub has of a check run.
func (r *Reconciler) keep(tx *store.Tx, j job, run, since int64, status string, noted int, notes, noting []string) error {
	return exec(tx, keepSQL, j.ExternalID, orNull(run), since, status, noted, list(notes), list(noting))
}

func exec(tx *store.Tx, q string, a ...any) error {
	_, err := tx.Exec(q, a...)
	return err
}

// failed decides when the row is tried again. Where GitHub certainly did nothing, nothing is looked for next time.
func (r *Reconciler) failed(tx *store.Tx, j job, got outcome, kind github.Kind, stopping bool) error {
	now := tx.Now()
	if !unclear(kind) && (j.action == create || j.action == update) {
		if err := r.keep(tx, j, j.run, 0, j.status, j.noted, j.notes, nil); err != nil {
			return err
		}
	}
	message := store.Text(got.err.Error())
	parked := now.Add(parkedFor).UnixMilli()
	log := r.log.Warn().Str("check_run", j.ExternalID).Int64("repo", int64(j.Repo)).Str("kind", string(kind)).Str("detail", detailOf(got.err))
	switch {
	case stopping || kind == github.RateLimited:
		log.Discard()
		return nil
	case got.moved != 0:
		log.Discard()
		return exec(tx, placeSQL, int64(j.Repo), got.moved)
	case kind == github.NotInstalled, kind == github.Suspended && j.action == locate:
		log.Msg("the App isn't installed on the Repo of a check run; tried again when it is")
		return exec(tx, parkRepo, int64(j.Repo), string(kind), message, parked)
	case kind == github.Suspended:
		log.Msg("the installation of a check run is suspended; tried again when it is not")
		return exec(tx, parkLane, j.installation, string(kind), message, parked)
	case kind == github.Invalid && got.gone && j.attempts < maxAttempts:
		log.Msg("GitHub doesn't know a check run's commit yet")
		return r.again(tx, j, message)
	case kind == github.Invalid && !got.gone && !j.shorter():
		log.Msg("GitHub doesn't take a check run; tried without annotations, text and buttons")
		return exec(tx, shorterSQL, j.ExternalID, j.version, message)
	case kind == github.NotFound, kind == github.Forbidden, kind == github.Invalid, kind == github.Empty:
		log.Msg("GitHub doesn't take a check run; tried again in an hour")
		return exec(tx, parkSQL, j.ExternalID, j.version, string(kind), message, parked)
	}
	log.Msg("a check run could not be written; tried again")
	return r.again(tx, j, message)
}

func (r *Reconciler) again(tx *store.Tx, j job, message string) error {
	limit := maxBackoff
	if j.Status == Completed {
		limit = finalBackoff
	}
	n := j.attempts + 1
	return exec(tx, laterSQL, j.ExternalID, j.version, n, tx.Now().Add(backoff(n, limit)).UnixMilli(), message)
}

// backoff is the wait after n failures in a row.
func backoff(n int64, limit time.Duration) time.Duration {
	return min(firstBackoff<<min(n-1, 20), limit)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// unclear says that GitHub may have done it nevertheless.
func unclear(kind github.Kind) bool { return kind == github.Unavailable || kind == "" }

// troubled says that it isn't for this check run that GitHub did nothing.
func troubled(kind github.Kind) bool { return unclear(kind) || kind == github.Unauthorized }

func kindOf(err error) (github.Kind, time.Time) {
	var e *github.Error
	if errors.As(err, &e) {
		return e.Kind, e.Until
	}
	return "", time.Time{}
}

func detailOf(err error) string {
	var e *github.Error
	if errors.As(err, &e) {
		return e.Detail
	}
	return err.Error()
}
