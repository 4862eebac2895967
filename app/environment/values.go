package environment

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// Resolve is what a Runner gets for spec, or why it gets nothing, in a sentence that begins with what: see fleet.Owner.Values.
func (s *Service) Resolve(tx *store.Tx, environment string, spec envspec.Spec, what string) (values []*wire.Value, refused string, err error) {
	values, err = s.vault.Resolve(tx, environment, spec, what)
	if fault.Is(err, fault.Refused) {
		return values, err.Error(), nil
	}
	return values, "", err
}

// Complete refuses what needs a value for each Variable of spec when one is missing, in a sentence that begins with what and
// names them.
func (s *Service) Complete(tx *store.Tx, environment string, spec envspec.Spec, what string) error {
	missing, err := s.vault.Missing(tx, environment, spec)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return variable.Lacking(what, missing)
	}
	return nil
}

// Variables says what may be shown of the values of a version's Variables, or with Web of the draft's, in the order of its Spec.
func (s *Service) Variables(ctx context.Context, g access.Grant, number int) ([]variable.State, error) {
	var states []variable.State
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		var spec envspec.Spec
		if number != Web {
			v, err := s.numbered(tx, env, number)
			if err != nil {
				return err
			}
			spec = v.Spec
		} else if env.Draft != nil {
			spec = env.Draft.Spec
		}
		states, err = s.vault.States(tx, env.ID, spec)
		return err
	})
	return states, err
}

// Enter gives a Sensitive Variable a value in place of one that was lost, by its name in the draft or in the current
// version, for both. It applies at once, also at build, without a Test build: the value keeps its id, so no version comes of
// it and no key moves (ADR 0009, "A lost key"). For a Variable whose value isn't lost it is refused: that is a change of the
// draft.
func (s *Service) Enter(ctx context.Context, g access.Grant, name string, value []byte) error {
	return s.db.Write(ctx, func(tx *store.Tx) error {
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		var vars []envspec.Variable
		if env.Draft != nil {
			vars = append(vars, env.Draft.Spec.Variables...)
		}
		if env.Current != nil {
			vars = append(vars, env.Current.Spec.Variables...)
		}
		n, err := s.vault.Enter(tx, env.ID, vars, name, value, g.Actor())
		if err != nil {
			return err
		}
		if n == 0 {
			return notLost(vars, name)
		}
		tx.Wake(TopicOf(g.Repo()))
		return audit.Record(tx, audit.Entry{Who: g.Actor(), Repo: int64(g.Repo().ID), Action: "variable.enter", Subject: env.ID, Detail: map[string]any{"name": name}})
	})
}

// forget deletes those Sensitive values of vars, which some Spec no longer has, that no other one needs: of a value that was
// replaced, or discarded, before it was ever applied nothing stays.
func (s *Service) forget(tx *store.Tx, environment string, vars []envspec.Variable) error {
	vars = slices.DeleteFunc(slices.Clone(vars), func(v envspec.Variable) bool { return !v.Sensitive || v.ValueID == "" })
	if len(vars) == 0 {
		return nil
	}
	newest, err := store.All(tx, store.Scan1[string], newestSQL, environment)
	if err != nil {
		return fmt.Errorf("look for who needs a value: %w", err)
	}
	for _, v := range vars {
		if slices.ContainsFunc(newest, func(spec string) bool { return strings.Contains(spec, v.ValueID) }) {
			continue // as nearly all are: all versions need not be looked through
		}
		var named int
		if err := tx.Row(namedSQL, environment, "%"+v.ValueID+"%").Scan(&named); err != nil {
			return fmt.Errorf("look for who needs a value: %w", err)
		}
		if named > 0 {
			continue
		}
		if err := s.vault.Forget(tx, environment, v.ValueID); err != nil {
			return err
		}
	}
	return nil
}

func notLost(vars []envspec.Variable, name string) error {
	i := slices.IndexFunc(vars, func(v envspec.Variable) bool { return v.Name == name })
	switch {
	case i < 0:
		return fault.New(fault.NotFound, "This Repo's Environment has no Variable of that name.")
	case vars[i].Link != "":
		return fault.New(fault.Refused, "%s is a Link: its value is that of the Shared variable %s. Enter it there.", name, vars[i].Link)
	}
	return fault.New(fault.Refused, "The value of %s is not lost, so a new one is a change: save it with the draft.", name)
}

// SharedChanged lists the Links, available at build, of a version whose Shared variable got a new value since the version
// was tested. Its builds are made anew with the new value, on each Runner, the next time a Session boots; that combination
// was never tested.
func (s *Service) SharedChanged(ctx context.Context, g access.Grant, number int) ([]variable.Moved, error) {
	var moved []variable.Moved
	err := s.db.Read(ctx, func(tx *store.Tx) error {
		env, err := s.get(tx, g)
		if err != nil {
			return err
		}
		v, err := s.numbered(tx, env, number)
		if err != nil {
			return err
		}
		var tested time.Time
		if err := tx.Row(testedAtSQL, v.TestBuild).Scan(store.At(&tested)); err != nil {
			return fmt.Errorf("read the Test build of version %d: %w", number, err)
		}
		moved, err = s.vault.MovedSince(tx, v.Spec, tested)
		return err
	})
	return moved, err
}
