package session

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// Gate says what somebody who isn't here may do with a Repo now: an access.Gate.
type Gate interface {
	Sender(ctx context.Context, githubID int64, repo github.RepoID) (access.Grant, error)
}

// Rights are those that the person who started the Session has at this moment, for git in its Sandbox: whoever works in it works
// for them. It is fleet.Lender's.
func (s *Service) Rights(ctx context.Context, a fleet.Assignment) (fleet.Rights, error) {
	var sn Session
	var repo access.Repo
	err := s.db.Read(ctx, func(tx *store.Tx) (err error) {
		if sn, err = scanSession(tx.Row(byIDSQL, a.Subject).Scan); err != nil {
			return fmt.Errorf("read Session %s: %w", a.Subject, err)
		}
		repo, err = access.ReadRepo(tx, sn.repo)
		return err
	})
	if err != nil {
		return fleet.Rights{}, err
	}
	may := fleet.Rights{Repo: int64(repo.ID), Actor: sn.createdBy}
	switch {
	case repo.Dev:
		may.Refused = fmt.Sprintf("%s is one of the Hub's dev.repos, for which it has no credentials.", repo.Name)
		return may, nil
	case s.o.Gate == nil || sn.githubID == 0:
		may.Refused = fmt.Sprintf("This Session was started by %s, who isn't signed in through GitHub, so the Hub has no credentials for it.", sn.CreatedBy)
		return may, nil
	}
	g, err := s.o.Gate.Sender(ctx, sn.githubID, repo.ID)
	var f *fault.Error
	switch {
	case errors.Is(err, access.ErrNotFound), fault.Is(err, fault.Unauthorized):
		may.Refused = fmt.Sprintf("%s has no access to %s now, or is signed out of the Hub. Sign in there, then try again.", sn.CreatedBy, repo.Name)
	case errors.As(err, &f):
		may.Refused = f.Message
	case err != nil:
		return fleet.Rights{}, err
	case !g.Level().CanWrite():
		may.ReadOnly = fmt.Sprintf("Pushing needs write access to %s, which %s doesn't have at GitHub. Or push with credentials of your own.", repo.Name, sn.CreatedBy)
	}
	return may, nil
}

// person is how git names the Session's person: by the address under which GitHub knows them and shows nobody's mail.
func (s *Service) person(sn Session) wire.Person {
	login, _, _ := strings.Cut(sn.CreatedBy, " ") // somebody else may have that login by now; the number counts
	if sn.githubID != 0 && s.o.GitHub != nil {
		if app, err := s.o.GitHub.App(); err == nil {
			if u, err := url.Parse(app.Endpoints().Web); err == nil {
				return wire.Person{Name: sn.CreatedBy, Email: fmt.Sprintf("%d+%s@users.noreply.%s", sn.githubID, login, u.Hostname())}
			}
		}
	}
	return wire.Person{Name: sn.CreatedBy, Email: login + "@localhost"}
}
