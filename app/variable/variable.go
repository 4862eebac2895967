// Package variable keeps the values of Variables, and the Shared variables (ADR 0009, "Variables"; facts/reliability.md §2).
//
// A Spec as it is stored names a value by its id and holds none. Plain values are readable. Sensitive ones are sealed, and
// write-only from the moment they are kept: Resolve opens them for a Runner, and nothing else gives one out, to its author
// neither. A value never changes under its id, so what a build or a Test build was made with can be told by ids; the one
// exception is a value that secrets-reset cleared: what is entered in its place takes its id, so that it applies at once.
//
// No value of any Variable is in an error, a log or an audit entry that this package makes.
package variable

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/store"
)

// Vault is the values in one database. Its methods may be called concurrently.
type Vault struct {
	db   *store.DB
	seal *seal.Service
	gate *access.Gate
}

// New makes a Vault. gate says which Repos' names a person may be shown.
func New(db *store.DB, seal *seal.Service, gate *access.Gate) *Vault {
	return &Vault{db: db, seal: seal, gate: gate}
}

// Given is new values by the name of their Variable. It prints without them.
type Given map[string][]byte

// Format keeps the values out of everything that fmt makes.
func (g Given) Format(f fmt.State, _ rune) {
	names := make([]string, 0, len(g))
	for name := range g {
		names = append(names, name)
	}
	slices.Sort(names)
	_, _ = fmt.Fprintf(f, "[hidden values of: %s]", strings.Join(names, ", "))
}

// LogValue keeps the values out of logs.
func (g Given) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(g)) }

// MarshalText keeps the values out of JSON and the like: a map with it is encoded as text.
func (g Given) MarshalText() ([]byte, error) { return []byte(fmt.Sprint(g)), nil }

// text is a Plain value that is carried in a struct: readable by who asks for it, and still no matter of logs.
type text string

func (text) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[hidden]")) }

// sealedPlace is where the value of a row of variable_values is sealed for.
func sealedPlace(id string) seal.Place {
	return seal.Place{Table: "variable_values", Column: "sealed", Row: id}
}

func sharedPlace(id string) seal.Place {
	return seal.Place{Table: "shared_variables", Column: "sealed", Row: id}
}

// row is a stored value. It prints without it.
type row struct {
	id        string
	sensitive bool
	plain     text
	sealed    []byte
	lost      bool
	setAt     time.Time
	setBy     string // login
}

func scanRow(scan func(...any) error) (r row, err error) {
	var plain *string
	var lost time.Time
	err = scan(&r.id, &r.sensitive, &plain, &r.sealed, store.At(&lost), store.At(&r.setAt), &r.setBy)
	if plain != nil {
		r.plain = text(*plain)
	}
	r.lost = !lost.IsZero()
	return r, err
}

// rows reads values of an Environment by their ids. What another Environment has is as absent as what nobody has.
func rows(tx *store.Tx, environment string, ids []string) (map[string]row, error) {
	ids = slices.DeleteFunc(ids, func(id string) bool { return id == "" })
	found := make(map[string]row, len(ids))
	for batch := range slices.Chunk(ids, 400) {
		var q strings.Builder
		q.WriteString(valuesSQL)
		args := []any{environment}
		for i, id := range batch {
			if i > 0 {
				q.WriteString(", ")
			}
			fmt.Fprintf(&q, "$%d", i+2)
			args = append(args, store.Text(id))
		}
		q.WriteString(")")
		all, err := store.All(tx, scanRow, q.String(), args...)
		if err != nil {
			return nil, fmt.Errorf("read the values of Variables: %w", err)
		}
		for _, r := range all {
			found[r.id] = r
		}
	}
	return found, nil
}

// own are the ids of the values that vars themselves have, their Links not.
func own(vars []envspec.Variable) []string {
	ids := make([]string, 0, len(vars))
	for _, v := range vars {
		if v.Link == "" {
			ids = append(ids, v.ValueID)
		}
	}
	return ids
}

// checkSensitive says in a sentence about name why value can't be a Sensitive one.
func checkSensitive(name string, value []byte) error {
	switch {
	case len(value) == 0:
		return fmt.Errorf("%s got an empty value. Leave it out to keep the one it has, or give it one of at least %d characters", name, redact.MinLength)
	case slices.Contains(value, 0):
		return fmt.Errorf("the value of %s holds a NUL byte, which no environment variable can", name)
	case len(value) > envspec.MaxValue:
		return fmt.Errorf("the value of %s has %d bytes; at most %d are possible", name, len(value), envspec.MaxValue)
	}
	if err := redact.Check(value); err != nil {
		return fmt.Errorf("%s can't be Sensitive: %w", name, err)
	}
	return nil
}

// checkPlain likewise for a Plain one.
func checkPlain(name, value string) error {
	switch {
	case strings.IndexByte(value, 0) >= 0:
		return fmt.Errorf("the value of %s holds a NUL byte, which no environment variable can", name)
	case !utf8.ValidString(value):
		return fmt.Errorf("the value of %s is not UTF-8 text. Make it Sensitive: a Sensitive value may be any bytes", name)
	case len(value) > envspec.MaxValue:
		return fmt.Errorf("the value of %s has %d bytes; at most %d are possible", name, len(value), envspec.MaxValue)
	}
	return nil
}

// sealing turns what the operator has to mend before a value can be sealed into a fault that says so.
func sealing(err error) error {
	var retired *seal.RetiredError
	switch {
	case errors.Is(err, seal.ErrNoKey), errors.As(err, &retired):
		return fault.New(fault.Refused, "%s.", sentence(err.Error()))
	}
	return err
}

// sentence begins as a sentence does.
func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + strings.TrimSuffix(s[1:], ".")
}

// list writes names as a sentence has them.
func list(names []string) string {
	switch n := len(names); n {
	case 0:
		return ""
	case 1:
		return names[0]
	default:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
}

// Lacking is the fault for something that needs values which Missing says aren't there. what begins its sentence: "This
// draft can't be tested".
func Lacking(what string, missing []string) *fault.Error {
	if len(missing) == 1 {
		return fault.New(fault.Refused, "%s: the Variable %s has no value. Enter one for it first.", what, missing[0])
	}
	return fault.New(fault.Refused, "%s: the Variables %s have no value. Enter one for each first.", what, list(missing))
}
