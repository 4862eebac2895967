package model

import (
	"context"
	"fmt"
	"time"

	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// newVersion applies an Environment with another build than before: the next wake of each Session replaces its root filesystem.
func (m *model) newVersion(ctx context.Context) error {
	m.version.Lock()
	defer m.version.Unlock()
	m.number++
	yaml := fmt.Sprintf("image: %s\nbootstrap: echo %d >/version\ncpu: 1\nmemory: 256MiB\n", m.image, m.number)
	message := fmt.Sprintf("version %d of the model", m.number)
	for {
		turn := m.Now()
		err := m.applies(ctx, yaml, message)
		if err == nil || ctx.Err() != nil || m.Undisturbed(turn) {
			return err
		}
		select { // a kill left open how far it came: it is looked at from its beginning
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (m *model) applies(ctx context.Context, yaml, message string) error {
	env, err := m.c.Environment(ctx, m.repo)
	if err != nil {
		return err
	}
	if env.Current != nil && env.Current.Message == message {
		return nil
	}
	base := int64(0)
	if env.Draft != nil {
		base = env.Draft.Revision
	}
	draft, err := m.c.SaveDraftYAML(ctx, m.repo, base, "environment.yml", yaml)
	if err != nil {
		return err
	}
	var test schema.TestBuild
	all, err := m.c.Tests(ctx, m.repo)
	if err != nil {
		return err
	}
	for _, one := range all {
		if one.Revision == draft.Revision {
			test = one
		}
	}
	if test.ID == "" {
		if test, err = m.c.StartTest(ctx, m.repo, draft.Revision, "r1"); err != nil {
			return err
		}
	}
	err = m.Insist(ctx, func() (bool, error) {
		test, err = m.c.WaitTest(ctx, m.repo, test.ID, nil)
		return err == nil, err
	})
	if err != nil {
		return err
	}
	if test.State != wire.StatePassed {
		return fmt.Errorf("its Test build ended %s: %s", test.State, asJSON(test.Detail))
	}
	_, err = m.c.Apply(ctx, m.repo, draft.Revision, message)
	return err
}
