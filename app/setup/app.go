package setup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/store"
)

// App is what anybody signed in may know of the App that the Hub is.
type App struct {
	// FromConfig: the config names it. Then only ID and Web are known without asking GitHub.
	FromConfig bool
	// Lost: it was set up, and its secrets were lost with an encryption key, or damaged. The Hub has no App until it is set up again.
	Lost     bool
	ID       int64
	Web      string // the address of its GitHub
	Slug     string
	Name     string
	Owner    github.Account
	ClientID string
	SetAt    time.Time
}

// App says which App the Hub is, or was (Lost). ok is false when none was ever set up.
func (s *Service) App(ctx context.Context) (app App, ok bool, err error) {
	if s.o.Given != nil {
		a, err := s.holder.App()
		if err != nil {
			return App{}, false, err
		}
		return App{FromConfig: true, ID: a.ID(), Web: a.Endpoints().Web, Slug: a.Slug(), ClientID: s.o.Given.ClientID}, true, nil
	}
	var st stored
	err = s.db.Read(ctx, func(tx *store.Tx) (err error) {
		st, err = s.read(tx)
		return err
	})
	if err != nil || st.ID == 0 {
		return App{}, false, err
	}
	st.Lost = !st.whole()
	st.Web = s.o.At(st.Web).Web
	return st.App, true, nil
}

// Configured says whether the Hub is an App that works as far as this Hub can know without asking GitHub.
func (s *Service) Configured(ctx context.Context) (bool, error) {
	a, ok, err := s.App(ctx)
	return ok && !a.Lost, err
}

// stored is the App in the database, opened.
type stored struct {
	App
	revision     string
	clientSecret github.Secret
	privateKey   github.Secret
	hooks        []hookSecret // newest first
	damaged      error        // why one of them doesn't open
}

// whole says that nothing of it was lost.
func (st stored) whole() bool {
	return st.ID != 0 && !st.clientSecret.Empty() && !st.privateKey.Empty() && len(st.hooks) > 0
}

func (st stored) credentials() github.Credentials {
	c := github.Credentials{AppID: st.ID, Slug: st.Slug, ClientID: st.ClientID, ClientSecret: st.clientSecret, PrivateKey: st.privateKey}
	for _, h := range st.hooks {
		c.WebhookSecrets = append(c.WebhookSecrets, h.secret)
	}
	return c
}

const (
	kindClientSecret  = "client-secret"
	kindPrivateKey    = "private-key"
	kindWebhookSecret = "webhook-secret"
)

func place(id string) seal.Place {
	return seal.Place{Table: "github_secrets", Column: "sealed", Row: id}
}

func (s *Service) read(tx *store.Tx) (st stored, err error) {
	err = tx.Row(appSQL).Scan(&st.revision, &st.Web, &st.ID, &st.Slug, &st.Name, &st.Owner.ID, &st.Owner.Login, &st.ClientID, store.At(&st.SetAt))
	if errors.Is(err, store.ErrNotFound) {
		return stored{}, nil
	}
	if err != nil {
		return stored{}, fmt.Errorf("read the GitHub App: %w", err)
	}
	type secret struct {
		id, kind string
		sealed   []byte
		until    time.Time
	}
	all, err := store.All(tx, func(scan func(...any) error) (x secret, err error) {
		return x, scan(&x.id, &x.kind, &x.sealed, store.At(&x.until))
	}, secretsSQL)
	if err != nil {
		return stored{}, fmt.Errorf("read the GitHub App's secrets: %w", err)
	}
	for _, x := range all {
		if x.sealed == nil || !x.until.IsZero() && !tx.Now().Before(x.until) {
			continue
		}
		plain, err := s.seal.Open(place(x.id), x.sealed)
		if err != nil { // damaged: as good as lost, and replaced by setting the App up again
			st.damaged = fmt.Errorf("open the GitHub App's %s: %w", x.kind, err)
			continue
		}
		switch v := github.NewSecret(string(plain)); x.kind {
		case kindClientSecret:
			st.clientSecret = v
		case kindPrivateKey:
			st.privateKey = v
		default:
			st.hooks = append(st.hooks, hookSecret{v, x.until})
		}
	}
	return st, nil
}

// accepted is an App that GitHub made or that was checked with it.
type accepted struct {
	web   string
	cred  github.Credentials
	name  string
	owner github.Account
	how   string // for the audit log
}

// save keeps an App in place of whatever was there, if the browser may still do that.
func (s *Service) save(ctx context.Context, visit string, a accepted) error {
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		was, err := s.mayIn(tx, visit)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(setSQL, store.NewID(), a.web, a.cred.AppID, store.Text(a.cred.Slug), store.Text(a.name), a.owner.ID, store.Text(a.owner.Login),
			store.Text(a.cred.ClientID), tx.Now()); err != nil {
			return fmt.Errorf("save the GitHub App: %w", err)
		}
		if _, err := tx.Exec(dropSecretsSQL); err != nil {
			return fmt.Errorf("drop the secrets of the App before: %w", err)
		}
		add := func(kind string, v github.Secret) {
			if err == nil {
				_, err = s.addSecret(tx, kind, v)
			}
		}
		add(kindClientSecret, a.cred.ClientSecret)
		add(kindPrivateKey, a.cred.PrivateKey)
		for _, h := range a.cred.WebhookSecrets {
			add(kindWebhookSecret, h)
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(endChangesSQL, access.HashSecret(visit)); err != nil {
			return fmt.Errorf("end the browser's right to change it: %w", err)
		}
		tx.Wake(topic)
		return audit.Record(tx, audit.Entry{Who: console, Action: "github-app.set", Subject: fmt.Sprint(a.cred.AppID), Detail: map[string]any{
			"how": a.how, "slug": a.cred.Slug, "name": a.name, "owner": a.owner.Login, "github": s.o.At(a.web).Web, "before": was.ID}})
	})
	if err != nil {
		return err
	}
	// For the page that comes next. The follower does the same, and again if this fails: what is saved is saved.
	if err := s.load(ctx); err != nil {
		s.log.Warn().Err(err).Msg("the GitHub App that was just saved could not be read back yet")
	}
	return nil
}

// Drop takes away the App that was set up with all that is known of it, for a GitHub that is gone with it. by says in the audit log who does.
func (s *Service) Drop(ctx context.Context, by string) error {
	if s.o.Given != nil {
		return errGiven
	}
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		var id int64
		if err := tx.Row(appIDSQL).Scan(&id); errors.Is(err, store.ErrNotFound) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the GitHub App: %w", err)
		}
		for _, q := range []string{dropInstallationsSQL, dropHeardSQL} { // another App may get its id
			if _, err := tx.Exec(q, id); err != nil {
				return fmt.Errorf("drop where the GitHub App is installed: %w", err)
			}
		}
		for _, q := range []string{dropSecretsSQL, dropAppSQL} {
			if _, err := tx.Exec(q); err != nil {
				return fmt.Errorf("drop the GitHub App: %w", err)
			}
		}
		tx.Wake(topic)
		return audit.Record(tx, audit.Entry{Who: by, Action: "github-app.drop", Subject: fmt.Sprint(id)})
	})
	if err != nil {
		return err
	}
	return s.load(ctx)
}

// console is who acts by a token of the console.
const console = "system: set-up page, with a token of the console"

func (s *Service) addSecret(tx *store.Tx, kind string, v github.Secret) (id string, err error) {
	id = store.NewID()
	sealed, key, err := s.seal.Seal(tx, place(id), []byte(v.Reveal()))
	if err != nil {
		return "", keyless(err)
	}
	if _, err := tx.Exec(addSecretSQL, id, kind, sealed, key, tx.Now()); err != nil {
		return "", fmt.Errorf("save the GitHub App's %s: %w", kind, err)
	}
	return id, nil
}

// keyless turns what the operator has to mend before anything can be sealed into a fault that says so.
func keyless(err error) error {
	var retired *seal.RetiredError
	switch {
	case errors.Is(err, seal.ErrNoKey):
		return fault.New(fault.Refused, "This Hub has no encryption key, and keeps the App's secrets only encrypted. Make one with claude-hub keygen, "+
			"put it into hub.encryption_keys or the file of hub.encryption_key_file, restart the Hub, and begin again.")
	case errors.As(err, &retired):
		says := err.Error()
		return fault.New(fault.Refused, "%s.", strings.ToUpper(says[:1])+says[1:])
	}
	return err
}
