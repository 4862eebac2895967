package setup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// Installation is the App on an account, as GitHub said it last.
type Installation struct {
	ID          int64
	AppID       int64
	Account     github.Account
	All         bool // all Repos of the account
	Suspended   bool
	Removed     bool
	Permissions map[string]string
	URL         string // its settings at GitHub
	AsOf        time.Time
}

// Trouble is why nothing works on the Repos of the installation, in a sentence for who uses one of them; "" if all is well.
func (i Installation) Trouble() string {
	switch {
	case i.Removed:
		return fmt.Sprintf("The GitHub App was uninstalled from %s. Nothing of this Repo is cloned or reported until it is installed again.", i.Account.Login)
	case i.Suspended:
		return fmt.Sprintf("The GitHub App is suspended on %s. Nothing of this Repo is cloned or reported until an owner ends that, in its settings at GitHub: %s", i.Account.Login, i.URL)
	}
	return ""
}

// Of is what is known of an installation; ok is false for one that was never heard of.
func Of(tx *store.Tx, id int64) (i Installation, ok bool, err error) {
	i, err = scanInstallation(tx.Row(installationSQL, id).Scan)
	if errors.Is(err, store.ErrNotFound) {
		return Installation{}, false, nil
	}
	if err != nil {
		return Installation{}, false, fmt.Errorf("read the installation %d: %w", id, err)
	}
	return i, true, nil
}

// Trouble is why nothing works on a Repo of an installation, as Installation.Trouble says it; "" if all is well, and for a Repo
// of none.
func (s *Service) Trouble(ctx context.Context, installation int64) (says string, err error) {
	if installation == 0 {
		return "", nil
	}
	err = s.db.Read(ctx, func(tx *store.Tx) error {
		i, ok, err := Of(tx, installation)
		if ok {
			says = i.Trouble()
		}
		return err
	})
	return says, err
}

func scanInstallation(scan func(...any) error) (i Installation, err error) {
	var permissions string
	var removed time.Time
	if err := scan(&i.ID, &i.AppID, &i.Account.ID, &i.Account.Login, &i.Account.Type, &i.All, &i.Suspended, &permissions, &i.URL, store.At(&i.AsOf), store.At(&removed)); err != nil {
		return i, err
	}
	i.Removed = !removed.IsZero()
	return i, json.Unmarshal([]byte(permissions), &i.Permissions)
}

// installations are those of an App that are installed, by account.
func installations(tx *store.Tx, app int64) ([]Installation, error) {
	all, err := store.All(tx, scanInstallation, installationsSQL, app)
	if err != nil {
		return nil, fmt.Errorf("list the installations: %w", err)
	}
	return all, nil
}

// Installations are those of the present App that are installed, by account. An *github.Error of Kind NoApp: there is none.
func (s *Service) Installations(ctx context.Context) (all []Installation, err error) {
	app, err := s.holder.App()
	if err != nil {
		return nil, err
	}
	err = s.db.Read(ctx, func(tx *store.Tx) (err error) {
		all, err = installations(tx, app.ID())
		return err
	})
	return all, err
}

// Changed is closed when the App or one of its installations changed, as store.DB.Changed is.
func (s *Service) Changed() <-chan struct{} { return s.db.Changed(topic) }

// Installation looks again at the installation that an event is about: created, deleted, suspend, unsuspend,
// new_permissions_accepted, or any other. What counts is what GitHub says now, so events may come late, twice and in any
// order. An *github.Error of Kind Unavailable or RateLimited: try again.
func (s *Service) Installation(ctx context.Context, ev github.Event) error {
	app, err := s.holder.App()
	if err != nil {
		return err
	}
	_, err = s.look(ctx, app, ev.Installation, nil)
	return err
}

// look asks GitHub about one installation and keeps the answer. found, if set, is told in the same transaction what changed.
func (s *Service) look(ctx context.Context, app *github.App, id int64, found func(*store.Tx, Installation) error) (Installation, error) {
	app.Forget(id) // what was granted may be another thing now
	asked := s.db.Now()
	got, err := app.Installation(ctx, id)
	gone := github.NotInstalled.Is(err)
	if err != nil && !gone {
		return Installation{}, err
	}
	var now Installation
	var changed bool
	err = s.db.Write(ctx, func(tx *store.Tx) (err error) {
		if gone {
			changed, err = s.gone(tx, id, asked)
		} else {
			changed, err = s.keep(tx, app, got, asked)
		}
		if err == nil {
			now, _, err = Of(tx, id)
		}
		if err == nil && changed && found != nil {
			err = found(tx, now)
		}
		return err
	})
	if err == nil && changed {
		err = s.forget(ctx, id)
	}
	return now, err
}

// forget has everybody's access to the Repos of an installation looked up again. A crash before it costs no more than the age
// that access has anyway.
func (s *Service) forget(ctx context.Context, id int64) error {
	if s.o.Gate == nil {
		return nil
	}
	return s.o.Gate.ForgetInstallation(ctx, id)
}

// keep stores what GitHub said of an installation when it was asked, unless something newer is there, and says whether that
// changed anything.
func (s *Service) keep(tx *store.Tx, app *github.App, got github.Installation, asked time.Time) (bool, error) {
	old, known, err := Of(tx, got.ID)
	if err != nil || known && old.AsOf.After(asked) {
		return false, err
	}
	permissions, err := json.Marshal(got.Permissions)
	if err != nil {
		return false, fmt.Errorf("encode permissions: %w", err)
	}
	if _, err := tx.Exec(saveInstallationSQL, got.ID, app.ID(), got.Account.ID, store.Text(got.Account.Login), got.Account.Type, got.All, got.Suspended,
		store.Text(string(permissions)), got.URL, asked); err != nil {
		return false, fmt.Errorf("save the installation: %w", err)
	}
	now, _, err := Of(tx, got.ID)
	if err != nil {
		return false, err
	}
	if known && !old.Removed && old.AppID == now.AppID && old.Suspended == now.Suspended && old.All == now.All && old.Account == now.Account && maps.Equal(old.Permissions, now.Permissions) {
		return false, nil
	}
	return true, s.changed(tx, now)
}

func (s *Service) gone(tx *store.Tx, id int64, asked time.Time) (bool, error) {
	old, known, err := Of(tx, id)
	if err != nil || !known || old.Removed || old.AsOf.After(asked) {
		return false, err
	}
	if _, err := tx.Exec(removeInstallationSQL, id, tx.Now(), asked); err != nil {
		return false, fmt.Errorf("mark the installation as removed: %w", err)
	}
	old.Removed = true
	return true, s.changed(tx, old)
}

// changed tells who goes by installations.
func (s *Service) changed(tx *store.Tx, i Installation) error {
	state := "installed"
	switch {
	case i.Removed:
		state = "removed"
	case i.Suspended:
		state = "suspended"
	}
	err := audit.Record(tx, audit.Entry{Who: "system: GitHub", Action: "github-app.installation", Subject: fmt.Sprint(i.ID),
		Detail: map[string]any{"account": i.Account.Login, "account_id": i.Account.ID, "state": state, "permissions": i.Permissions}})
	if err == nil && s.o.Changed != nil {
		err = s.o.Changed(tx, i)
	}
	tx.Wake(topic)
	return err
}

// Sync asks GitHub for all installations of the App, and keeps what it says.
func (s *Service) Sync(ctx context.Context) error {
	app, err := s.holder.App()
	if err != nil {
		return err
	}
	asked := s.db.Now()
	all, err := app.Installations(ctx)
	if err != nil {
		return err
	}
	var changed []int64
	err = s.db.Write(ctx, func(tx *store.Tx) error {
		changed = nil
		note := func(id int64, is bool, err error) error {
			if err != nil || !is {
				return err
			}
			changed = append(changed, id)
			if s.o.Found == nil {
				return nil
			}
			now, _, err := Of(tx, id)
			if err != nil {
				return err
			}
			return s.o.Found(tx, now)
		}
		listed := map[int64]bool{}
		for _, got := range all {
			listed[got.ID] = true
			is, err := s.keep(tx, app, got, asked)
			if err := note(got.ID, is, err); err != nil {
				return err
			}
		}
		known, err := installations(tx, app.ID())
		if err != nil {
			return err
		}
		for _, i := range known {
			if listed[i.ID] {
				continue
			}
			is, err := s.gone(tx, i.ID, asked)
			if err := note(i.ID, is, err); err != nil {
				return err
			}
		}
		return nil
	})
	for _, id := range changed {
		if err == nil {
			app.Forget(id)
			err = s.forget(ctx, id)
		}
	}
	return err
}

// installLife is how long the browser may take at GitHub's page.
const installLife = time.Hour

// BeginInstall is where to send a browser that asks to install the App; browser is for its cookie until it is back.
func (s *Service) BeginInstall(ctx context.Context) (to, browser string, err error) {
	app, err := s.holder.App()
	if err != nil {
		return "", "", said(err)
	}
	if app.Slug() == "" {
		if _, err := app.Self(ctx); err != nil {
			s.tell(err, "GitHub could not be asked for the App's address")
			return "", "", said(err)
		}
	}
	browser = access.NewSecret()
	var state string
	err = s.db.Write(ctx, func(tx *store.Tx) (err error) {
		if _, err := tx.Exec(pruneStatesSQL, tx.Now()); err != nil {
			return fmt.Errorf("drop old states: %w", err)
		}
		state, err = newState(tx, browser, stateInstall, "", installLife)
		return err
	})
	return app.Endpoints().InstallURL(app.Slug(), state), browser, err
}

// errForeign is the one answer for an installation that isn't there, is another App's, or is nobody's to see.
var errForeign = fault.New(fault.NotFound, "GitHub doesn't list this installation for you, so nothing was done. Install the App yourself, or ask an owner of the organization for access to one of its Repos.")

// Installed looks at the installation that GitHub's setup_url names, for who came back with it. The id is a hint that anybody
// could have made up (facts/github.md §4, 21): it counts if the person reaches the installation with their own token, and then
// only leads to GitHub being asked about it, as the App. begun says that this browser was sent to install it from here.
func (s *Service) Installed(ctx context.Context, who access.Person, browser, state string, id int64) (i Installation, begun bool, err error) {
	app, err := s.holder.App()
	if err != nil {
		return i, false, said(err)
	}
	if who.ID() == "" {
		return i, false, fault.New(fault.Unauthorized, "You are not signed in.")
	}
	if err := s.db.Write(ctx, func(tx *store.Tx) (err error) {
		_, begun, err = takeState(tx, browser, state, stateInstall)
		return err
	}); err != nil {
		return i, false, err
	}
	reaches, err := s.reachesNow(ctx, who, id)
	if err != nil {
		return i, begun, err
	}
	if id <= 0 || !reaches {
		return i, begun, errForeign
	}
	i, err = s.look(ctx, app, id, s.o.Found)
	if err != nil {
		s.tell(err, "GitHub could not be asked about an installation")
		return i, begun, said(err)
	}
	if i.ID == 0 || i.Removed {
		return Installation{}, begun, errForeign
	}
	return i, begun, nil
}

// reachesNow asks GitHub, with the person's own token, whether they reach an installation. Who came by dev login reaches all
// of them, as they do every Repo.
func (s *Service) reachesNow(ctx context.Context, who access.Person, id int64) (bool, error) {
	if who.Dev() {
		return true, nil
	}
	if s.o.Gate == nil {
		return false, nil
	}
	all, err := s.o.Gate.Installations(ctx, who)
	return slices.ContainsFunc(all, func(i github.Installation) bool { return i.ID == id }), err
}

// known says which installations have a Repo that the person may use, by what is kept of their access.
func (s *Service) known(ctx context.Context, who access.Person) (func(id int64) bool, error) {
	if who.Dev() {
		return func(int64) bool { return true }, nil
	}
	ids := map[int64]bool{}
	if s.o.Gate != nil {
		all, err := s.o.Gate.Repos(access.Reading(ctx), who)
		if err != nil && !fault.Is(err, fault.Unavailable) {
			return nil, err
		}
		for _, r := range all {
			ids[r.Installation] = true
		}
	}
	return func(id int64) bool { return ids[id] }, nil
}
