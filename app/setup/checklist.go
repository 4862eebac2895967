package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// State is how far a step is.
type State string

// The states of a step.
const (
	Done    State = "done"
	ToDo    State = "to do"
	Wrong   State = "wrong"   // it was done, and doesn't hold
	Unknown State = "unknown" // GitHub can't be asked now
)

// Step is one thing that has to be in place before Sessions start.
type Step struct {
	ID    string // stable, for addresses within the page
	Title string
	State State
	Says  string // what is, or what to do, in sentences
	Link  string // where to do it; "": nowhere
	Label string // of the link
}

// Complete says that nothing of steps is left to do.
func Complete(steps []Step) bool {
	return !slices.ContainsFunc(steps, func(s Step) bool { return s.State != Done })
}

// Checklist says what of the App is in place, for somebody who is signed in: of the installations, those that they can reach.
func (s *Service) Checklist(ctx context.Context, who access.Person) ([]Step, error) {
	if who.ID() == "" {
		return nil, fault.New(fault.Unauthorized, "You are not signed in.")
	}
	mine, err := s.known(ctx, who)
	if err != nil {
		return nil, err
	}
	return s.checklist(ctx, mine)
}

// VisitChecklist is Checklist for the browser that brought a token of the console: before the first sign-in nobody else is there.
func (s *Service) VisitChecklist(ctx context.Context, visit string) ([]Step, error) {
	if err := s.db.Read(ctx, func(tx *store.Tx) error {
		_, _, err := visitIn(tx, visit)
		return err
	}); err != nil {
		return nil, err
	}
	return s.checklist(ctx, func(int64) bool { return true })
}

func (s *Service) checklist(ctx context.Context, mine func(int64) bool) ([]Step, error) {
	app, err := s.holder.App()
	if err != nil {
		known, ok, err := s.App(ctx)
		if err != nil {
			return nil, err
		}
		step := Step{ID: "app", Title: "The Hub is a GitHub App", State: ToDo,
			Says: "None is set up. Open the address that the Hub printed on its console when it started, or run claude-hub setup-token on its host for a new one."}
		if ok && known.Lost {
			step.State = Wrong
			step.Says = fmt.Sprintf("The secrets of the App %q were lost with an encryption key. Run claude-hub setup-token on the Hub's host, and set it up again: by hand, with a new "+
				"private key, client secret and webhook secret of its settings at GitHub.", known.Name)
		}
		return []Step{step}, nil
	}
	var all []Installation
	var heard heard
	var aside string
	if err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		if all, err = installations(tx, app.ID()); err != nil {
			return err
		}
		if heard, err = heardOf(tx, app.ID()); err != nil || s.o.Given == nil {
			return err
		}
		err = tx.Row(appNameSQL).Scan(&aside)
		if errors.Is(err, store.ErrNotFound) {
			err = nil
		}
		return err
	}); err != nil {
		return nil, err
	}
	a := s.ask(ctx, app)
	steps := []Step{s.appStep(app, a, aside), s.permissionStep(app, a), s.hookStep(app, a), heardStep(heard, s.deaf(app.Endpoints().Web))}
	return append(steps, s.installationSteps(all, mine)...), nil
}

// appStep: aside is the name of an App that was set up in the browser, and that the config's wins over.
func (s *Service) appStep(app *github.App, a answers, aside string) Step {
	step := Step{ID: "app", Title: "The Hub is a GitHub App", State: Done}
	from := "set up on this page"
	if s.o.Given != nil {
		from = "named by the Hub's config"
	}
	switch {
	case a.selfErr == nil:
		step.Says = fmt.Sprintf("It is %q of %s, %s.", a.self.Name, a.self.Owner.Login, from)
		step.Link, step.Label = app.Endpoints().AppPage(a.self.Slug), "Its page at GitHub"
	case github.Unauthorized.Is(a.selfErr), github.NotFound.Is(a.selfErr):
		step.State = Wrong
		step.Says = fmt.Sprintf("GitHub doesn't accept the key of the App with the id %d, %s: it was deleted there, or its key was.", app.ID(), from)
	default:
		step.State, step.Says = Unknown, sentence(a.selfErr)
	}
	if aside != "" {
		step.Says += fmt.Sprintf(" It wins over %q, which was set up on this page.", aside)
	}
	return step
}

func (s *Service) permissionStep(app *github.App, a answers) Step {
	step := Step{ID: "permissions", Title: "The App asks for what it needs", State: Done}
	if a.selfErr != nil {
		step.State, step.Says = Unknown, sentence(a.selfErr)
		return step
	}
	step.Says = "Permissions: " + granted(s.wanted()) + "."
	var wrong []string
	if lacking := s.Lacking(a.self.Permissions); len(lacking) > 0 {
		wrong = append(wrong, "It lacks the permissions "+strings.Join(lacking, ", ")+".")
	}
	var events []string
	for _, e := range github.Events() {
		if !slices.Contains(a.self.Events, e) {
			events = append(events, e)
		}
	}
	if len(events) > 0 {
		wrong = append(wrong, "It doesn't subscribe to the events "+strings.Join(events, ", ")+".")
	}
	if len(wrong) > 0 {
		step.State = Wrong
		step.Says = strings.Join(wrong, " ") + " Whoever owns the App changes that in its settings."
		step.Link, step.Label = app.Endpoints().AppPage(a.self.Slug), "The App at GitHub"
	}
	return step
}

func (s *Service) hookStep(app *github.App, a answers) Step {
	ours := s.o.PublicURL + HookPath
	step := Step{ID: "hook", Title: "Webhooks go to this Hub", State: Done, Says: "They go to " + ours + "."}
	switch {
	case a.hookErr != nil:
		step.State, step.Says = Unknown, sentence(a.hookErr)
	case a.hook != ours:
		step.State = Wrong
		step.Says = fmt.Sprintf("They go to %s, not to %s. Change the webhook's address in the App's settings", orNowhere(a.hook), ours)
		if s.o.Given == nil {
			step.Says += ", or run claude-hub setup-token on the Hub's host and change the webhook secret: that sets both"
		}
		step.Says += "."
	}
	return step
}

func orNowhere(url string) string {
	if url == "" {
		return "nowhere"
	}
	return url
}

func heardStep(h heard, deaf string) Step {
	step := Step{ID: "webhook", Title: "A webhook arrived", State: Done}
	switch {
	case !h.at.IsZero():
		step.Says = fmt.Sprintf("The last one that is known of is of %s UTC (%s).", h.at.UTC().Format("2006-01-02 15:04"), h.event)
	case deaf != "":
		step.State, step.Says = Wrong, deaf
	default:
		step.State = ToDo
		step.Says = "None yet. One comes when the App is installed. If none does: the App's settings at GitHub, under Advanced, show what the Hub answered."
	}
	return step
}

func (s *Service) installationSteps(all []Installation, mine func(int64) bool) []Step {
	install := Step{ID: "install", Title: "The App is installed", State: Done, Link: "/setup/install", Label: "Install it on another account, or change which Repos it has"}
	var steps []Step
	var on []string
	others, suspended := 0, 0
	for _, i := range all {
		if !mine(i.ID) {
			others++
			if i.Suspended {
				suspended++
			}
			continue
		}
		on = append(on, i.Account.Login)
		if step, wrong := s.trouble(i); wrong {
			steps = append(steps, step)
		}
	}
	switch {
	case len(on) > 0:
		install.Says = "On " + strings.Join(on, ", ") + "."
	case others == 0:
		install.State, install.Label = ToDo, "Install it"
		install.Says = "It isn't yet. Install it on an organization or an account, for the Repos that are to be used here."
	default:
		install.State, install.Says = Wrong, "On nothing with a Repo that you may use."
	}
	if others > 0 {
		install.Says += fmt.Sprintf(" Accounts with the App and no Repo that you may use: %d", others)
		if suspended > 0 {
			install.Says += fmt.Sprintf(", of which %d suspended it", suspended)
		}
		install.Says += "."
	}
	return append([]Step{install}, steps...)
}

func (s *Service) trouble(i Installation) (Step, bool) {
	step := Step{ID: fmt.Sprintf("installation-%d", i.ID), Title: "The installation on " + i.Account.Login, State: Wrong, Link: i.URL, Label: "Its settings at GitHub"}
	lacking := s.Lacking(i.Permissions)
	if i.Account.Type == "User" { // a person has no members
		lacking = slices.DeleteFunc(lacking, func(p string) bool { return strings.HasPrefix(p, "members:") })
	}
	switch {
	case i.Suspended:
		step.Says = "It is suspended, so nothing works on its Repos. An owner ends that in its settings."
	case len(lacking) > 0:
		step.Says = "It grants less than the App asks for: " + strings.Join(lacking, ", ") + " is missing. An owner accepts the App's request in its settings."
	default:
		return step, false
	}
	return step, true
}

func granted(p map[string]string) string {
	var all []string
	for name, level := range p {
		all = append(all, name+": "+level)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// sentence is why GitHub could not be asked.
func sentence(err error) string {
	var e *github.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return "GitHub could not be asked."
}

// askedFor is how long what GitHub said of the App is good for the checklist: several pages re-test at once.
const askedFor = 15 * time.Second

type answers struct {
	self    github.Self
	selfErr error
	hook    string
	hookErr error
}

type asked struct {
	mu  sync.Mutex
	of  *github.App
	at  time.Time
	got answers
}

func (a *asked) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of = nil
}

// ask asks GitHub about the App, or remembers. One page asks at a time and the others wait for its answer.
func (s *Service) ask(ctx context.Context, app *github.App) answers {
	s.asked.mu.Lock()
	defer s.asked.mu.Unlock()
	if s.asked.of == app && time.Since(s.asked.at) < askedFor {
		return s.asked.got
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 8*time.Second) // a page waits no longer
	defer cancel()
	var a answers
	a.self, a.selfErr = app.Self(ctx)
	a.hook, a.hookErr = app.HookURL(ctx)
	s.asked.of, s.asked.at, s.asked.got = app, time.Now(), a
	return a
}

type heard struct {
	event string
	at    time.Time
}

func heardOf(tx *store.Tx, app int64) (h heard, err error) {
	err = tx.Row(heardSQL, app).Scan(&h.event, store.At(&h.at))
	if errors.Is(err, store.ErrNotFound) {
		return heard{}, nil
	}
	return h, err
}

// Heard notes that a webhook arrived whole and signed, at most once a minute: in between it costs nothing.
func (s *Service) Heard(ctx context.Context, event string) error {
	app, err := s.holder.App()
	if err != nil {
		return err
	}
	now := s.db.Now()
	last := s.heard.Load()
	if now.UnixMilli()-last < time.Minute.Milliseconds() || !s.heard.CompareAndSwap(last, now.UnixMilli()) {
		return nil
	}
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(hearSQL, app.ID(), store.Text(event), tx.Now())
		tx.Wake(topic + "-heard")
		return err
	})
	if err != nil {
		s.heard.Store(last)
	}
	return err
}
