package variable

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// Fill puts the values of Plain Variables into Specs of one Environment, as they were stored. What other Specs share their
// slices with them is left as it is.
func (v *Vault) Fill(tx *store.Tx, environment string, specs ...*envspec.Spec) error {
	var ids []string
	seen := map[string]bool{}
	for _, s := range specs {
		for _, x := range s.Variables {
			if x.Plain() && !seen[x.ValueID] {
				seen[x.ValueID] = true
				ids = append(ids, x.ValueID)
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	stored, err := rows(tx, environment, ids)
	if err != nil {
		return err
	}
	for _, s := range specs {
		s.Variables = slices.Clone(s.Variables)
		for i := range s.Variables {
			x := &s.Variables[i]
			if !x.Plain() {
				continue
			}
			r, ok := stored[x.ValueID]
			if !ok || r.sensitive {
				return fmt.Errorf("the Plain Variable %s of Environment %s has no value in the database", x.Name, environment)
			}
			x.Value = string(r.plain)
		}
	}
	return nil
}

// Status says whether there is a value.
type Status string

const (
	Set     Status = "set"
	Lost    Status = "lost"    // secrets-reset cleared it
	Missing Status = "missing" // none was ever entered; of a Link: there is no such Shared variable
)

// State is what may be shown of a Variable's value.
type State struct {
	Name      string
	Sensitive bool // of a Link: what the Shared variable is
	Link      string
	Status    Status
	SetAt     time.Time // when the value was first stored, or entered in place of a lost one; zero when missing
	SetBy     string    // login
	// Digest is 8 hex digits by which Sensitive values can be compared without being read (seal.Keys.Digest). "" of what is
	// Plain, lost or missing, and of what can't be opened.
	Digest string
}

// States says of each Variable of spec, in its order, what may be shown to who may use the Environment.
func (v *Vault) States(tx *store.Tx, environment string, spec envspec.Spec) ([]State, error) {
	all, err := v.look(tx, environment, spec)
	if err != nil {
		return nil, err
	}
	states := make([]State, len(all))
	for i, f := range all {
		states[i] = State{Name: f.Name, Sensitive: f.Sensitive, Link: f.Link, Status: f.status, SetAt: f.setAt, SetBy: f.setBy}
		if f.Link != "" {
			states[i].Sensitive = f.sensitive
		}
		if f.status != Set || !f.sensitive {
			continue
		}
		if plain, err := v.seal.Open(f.place, f.sealed); err == nil {
			states[i].Digest = v.seal.Digest(plain)
		}
	}
	return states, nil
}

// found is a Variable with what is stored of it.
type found struct {
	envspec.Variable
	status    Status
	id        string // of the value
	sensitive bool
	plain     text
	sealed    []byte
	place     seal.Place
	setAt     time.Time
	setBy     string
}

// label names it in a sentence.
func (f found) label() string {
	if f.Link != "" {
		return fmt.Sprintf("%s (linked from the Shared variable %s)", f.Name, f.Link)
	}
	return f.Name
}

func (v *Vault) look(tx *store.Tx, environment string, spec envspec.Spec) ([]found, error) {
	stored, err := rows(tx, environment, own(spec.Variables))
	if err != nil {
		return nil, err
	}
	all := make([]found, 0, len(spec.Variables))
	for _, x := range spec.Variables {
		f := found{Variable: x, status: Missing}
		if x.Link != "" {
			s, err := shared(tx, x.Link)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
			if err == nil {
				f.status, f.id, f.sensitive, f.plain, f.sealed, f.setAt, f.setBy = s.Status, s.valueID, s.Sensitive, s.plain, s.sealed, s.SetAt, s.SetBy
				f.place = sharedPlace(s.ID)
			}
		} else if r, ok := stored[x.ValueID]; ok && r.sensitive == x.Sensitive {
			f.status, f.id, f.sensitive, f.plain, f.sealed, f.setAt, f.setBy = Set, r.id, r.sensitive, r.plain, r.sealed, r.setAt, r.setBy
			f.place = sealedPlace(r.id)
			if r.lost {
				f.status = Lost
			}
		}
		all = append(all, f)
	}
	return all, nil
}

// Missing names the Variables and Links without a value, in the order of names: never entered, or lost with a key. Of a Link
// it says which Shared variable that is. Lacking makes a sentence of it.
func (v *Vault) Missing(tx *store.Tx, environment string, spec envspec.Spec) ([]string, error) {
	all, err := v.look(tx, environment, spec)
	if err != nil {
		return nil, err
	}
	return missing(all), nil
}

func missing(all []found) (names []string) {
	for _, f := range all {
		if f.status != Set {
			names = append(names, f.label())
		}
	}
	slices.Sort(names)
	return names
}

// Resolve opens all values of spec, for a Runner and nobody else, in the order of names. Those that are missing, and those
// that don't open with this Hub's keys, are a fault of code refused that names them; so is more than a process can be given, which
// Shared variables that grew may come to. No Runner gets any value then, but those there are are answered beside it, to be
// masked in what a running Sandbox prints. what begins its sentence.
func (v *Vault) Resolve(tx *store.Tx, environment string, spec envspec.Spec, what string) ([]*wire.Value, error) {
	all, err := v.look(tx, environment, spec)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b found) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	values := make([]*wire.Value, 0, len(all))
	var closed []string
	total := 0
	for _, f := range all {
		if f.status != Set {
			continue
		}
		plain := []byte(f.plain)
		if f.sensitive {
			if plain, err = v.seal.Open(f.place, f.sealed); err != nil {
				var unknown *seal.UnknownKeyError
				var damaged *seal.DamagedError
				if !errors.As(err, &unknown) && !errors.As(err, &damaged) {
					return nil, fmt.Errorf("open the value of %s: %w", f.Name, err)
				}
				closed = append(closed, f.label())
				continue
			}
		}
		total += len(f.Name) + len(plain)
		values = append(values, &wire.Value{Name: f.Name, Value: plain, Id: f.id, Sensitive: f.sensitive, Build: f.AtBuild(), EnteredMs: f.setAt.UnixMilli()})
	}
	if names := missing(all); len(names) > 0 {
		return values, Lacking(what, names)
	}
	if len(closed) > 0 {
		slices.Sort(closed)
		return values, fault.New(fault.Refused, "%s: this Hub can't decrypt the value of %s, with the keys it has or since it is damaged. "+
			"Give the Hub the right encryption key, or enter a new value.", what, list(closed))
	}
	if total > envspec.MaxVariablesTotal {
		return values, fault.New(fault.Refused, "%s: names and values of its Variables and Links have %d bytes together; at most %d are possible. "+
			"Take Links out, or make the values of their Shared variables shorter.", what, total, envspec.MaxVariablesTotal)
	}
	return values, nil
}
