package setup

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

// Values are an App's as a person copies them from its settings.
type Values struct {
	Web          string
	AppID        int64
	ClientID     string
	ClientSecret github.Secret
	PrivateKey   github.Secret
	// WebhookSecret is the one in the App's settings. Empty: a new one is made, and set at GitHub together with the Hub's address.
	WebhookSecret github.Secret
	// Lacking accepts an App that lacks permissions.
	Lacking bool
}

// Take makes the Hub an App that exists. GitHub is asked first: whether the id, the key, the client id and its secret are right
// and belong together, and what the App may do. What is wrong is an Invalid fault with the field: web, app-id, client-id,
// client-secret, private-key, webhook-secret, permissions.
func (s *Service) Take(ctx context.Context, visit string, v Values) error {
	if err := s.db.Read(ctx, func(tx *store.Tx) error {
		if _, err := s.mayIn(tx, visit); err != nil {
			return err
		}
		return keyless(s.seal.Ready(tx))
	}); err != nil {
		return err
	}
	web, err := s.web(v.Web)
	if err != nil {
		return err
	}
	if err := s.site(ctx, s.o.At(web).Web); err != nil { // before its GitHub is told anything
		return siteField(err)
	}
	v.ClientID = strings.TrimSpace(v.ClientID)
	if err := v.check(); err != nil {
		return err
	}
	cred := github.Credentials{
		AppID: v.AppID, ClientID: v.ClientID, ClientSecret: v.ClientSecret, PrivateKey: v.PrivateKey, WebhookSecrets: []github.Secret{v.WebhookSecret},
	}
	makeHook := v.WebhookSecret.Empty()
	if makeHook {
		cred.WebhookSecrets[0] = github.NewSecret(access.NewSecret())
	}
	app, err := s.o.Connect(s.o.At(web), cred)
	if err != nil { // of the rest the form is right
		return fault.Field("private-key", "%s", err.Error())
	}
	self, err := s.examine(ctx, app, cred)
	if err != nil {
		return err
	}
	if lacking := s.Lacking(self.Permissions); len(lacking) > 0 && !v.Lacking {
		return fault.Field("permissions", "The App lacks permissions: %s. Grant them in its settings (%s) and send this again; or take it as it is: what needs them doesn't work.",
			strings.Join(lacking, ", "), app.Endpoints().AppPage(self.Slug))
	}
	if makeHook {
		if deaf := s.deaf(web); deaf != "" {
			return fault.Field("webhook-secret", "%s Or give the secret that the App has.", deaf)
		}
		if err := app.SetHook(ctx, s.o.PublicURL+HookPath, cred.WebhookSecrets[0]); err != nil {
			s.tell(err, "the webhook could not be set at GitHub")
			return said(err)
		}
	}
	cred.Slug = self.Slug
	return s.save(ctx, visit, accepted{web: web, cred: cred, name: self.Name, owner: self.Owner, how: "by hand"})
}

func (v Values) check() error {
	fields := map[string]string{}
	if v.AppID <= 0 {
		fields["app-id"] = "The App's id is the number under About on the App's page."
	}
	if v.ClientID == "" {
		fields["client-id"] = "The client id stands under About on the App's page; it begins with Iv."
	}
	if v.ClientSecret.Empty() {
		fields["client-secret"] = "GitHub shows a client secret once, when it is made. Make a new one if you don't have it."
	}
	if v.PrivateKey.Empty() {
		fields["private-key"] = "The private key is the file that GitHub gives when one is made. Make a new one if you don't have it."
	}
	if len(fields) == 0 {
		return nil
	}
	f := fault.New(fault.Invalid, "Values are missing.")
	f.Fields = fields
	return f
}

// examine asks GitHub whether the values are right and belong together.
func (s *Service) examine(ctx context.Context, app *github.App, cred github.Credentials) (github.Self, error) {
	self, err := app.Self(ctx)
	switch {
	case github.Unauthorized.Is(err), github.NotFound.Is(err):
		s.tell(err, "GitHub doesn't take the App's id and key")
		return self, fault.Field("private-key", "GitHub doesn't accept this private key for the App with the id %d: one of the two is another App's, or the key was deleted.", cred.AppID)
	case err != nil:
		s.tell(err, "GitHub could not be asked about the App")
		return self, said(err)
	case self.ClientID != "" && self.ClientID != cred.ClientID:
		return self, fault.Field("client-id", "This is not the client id of the App %q.", self.Name)
	}
	// A code that never was: GitHub first says whether it knows the client.
	_, err = app.Exchange(ctx, github.NewSecret(access.NewSecret()), github.NewVerifier())
	switch {
	case err == nil || github.Unauthorized.Is(err):
		return self, nil
	case github.Invalid.Is(err):
		s.tell(err, "GitHub doesn't take the App's client secret")
		return self, fault.Field("client-secret", "GitHub doesn't accept this client secret for the client id %s.", cred.ClientID)
	default:
		s.tell(err, "GitHub could not be asked about the App's client secret")
		return self, said(err)
	}
}

// RotateHook gives the App a new webhook secret, and its webhook this Hub's address. Both secrets are accepted from before
// GitHub has the new one until HookOverlap after.
func (s *Service) RotateHook(ctx context.Context, visit string) error {
	var id string
	secret := github.NewSecret(access.NewSecret())
	err := s.db.Write(ctx, func(tx *store.Tx) error {
		changes, _, err := visitIn(tx, visit)
		switch {
		case err != nil:
			return err
		case s.o.Given != nil:
			return errGiven
		case !changes:
			return errSet
		}
		st, err := s.read(tx)
		if err != nil {
			return err
		}
		if !st.whole() {
			return fault.New(fault.Refused, "This Hub has no GitHub App whose webhook secret could be changed.")
		}
		if deaf := s.deaf(st.Web); deaf != "" {
			return fault.New(fault.Refused, "%s", deaf)
		}
		if len(st.hooks) > manyHooks {
			return fault.New(fault.Refused, "The webhook secret was changed %d times within a short while. Wait until the old ones have ended.", manyHooks)
		}
		if id, err = s.addSecret(tx, kindWebhookSecret, secret); err != nil {
			return err
		}
		return s.touch(tx)
	})
	if err == nil {
		err = s.load(ctx)
	}
	if err != nil {
		return err
	}
	app, err := s.holder.App()
	if err != nil {
		return said(err)
	}
	ctx = context.WithoutCancel(ctx)
	err = app.SetHook(ctx, s.o.PublicURL+HookPath, secret)
	if github.Unavailable.Is(err) {
		s.tell(err, "whether GitHub has the new webhook secret is not known")
		return fault.New(fault.Unavailable, "GitHub did not say whether it has the new webhook secret, so the old one and the new one are both accepted. Change it again when GitHub answers.")
	}
	done := s.db.Write(ctx, func(tx *store.Tx) error {
		if err != nil { // GitHub refused it, so it is nobody's
			if _, err := tx.Exec(dropSecretSQL, id); err != nil {
				return fmt.Errorf("drop the new webhook secret: %w", err)
			}
			return s.touch(tx)
		}
		if _, err := tx.Exec(endOldSecretsSQL, tx.Now().Add(HookOverlap), id); err != nil {
			return fmt.Errorf("end the old webhook secret: %w", err)
		}
		if _, err := tx.Exec(pruneSecretsSQL, tx.Now()); err != nil {
			return fmt.Errorf("drop ended webhook secrets: %w", err)
		}
		if err := s.touch(tx); err != nil {
			return err
		}
		return audit.Record(tx, audit.Entry{Who: console, Action: "github-app.webhook-secret", Subject: fmt.Sprint(app.ID()), Detail: map[string]any{"url": s.o.PublicURL + HookPath}})
	})
	if err != nil {
		s.tell(err, "GitHub does not take the new webhook secret")
		err = said(err)
	}
	return errors.Join(err, done, s.load(ctx))
}

// manyHooks bounds how many webhook secrets are accepted at one time.
const manyHooks = 5

// touch has every Hub read the App again.
func (s *Service) touch(tx *store.Tx) error {
	if _, err := tx.Exec(touchSQL, store.NewID()); err != nil {
		return fmt.Errorf("mark the GitHub App as changed: %w", err)
	}
	tx.Wake(topic)
	return nil
}
