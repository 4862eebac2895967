// Package secret is the values of an assignment's Variables on the Runner. They live in its memory only (ADR 0009): the Hub
// is asked for them at each start and wake and by each new process of the Runner, the redactor learns the Sensitive ones
// before any process gets them, and each process in a Sandbox is handed them by the agent. Nothing here writes them anywhere: a
// Value has no way to become text but [Values.Env], and printed, logged or marshalled it is "[hidden]".
package secret

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// Max is the longest value in bytes. With its name it fits into what Linux passes on to a process (128 KiB a string).
const Max = 64 << 10

// hidden is what a Value looks like to everything that prints.
const hidden = "[hidden]"

// Value is one Variable's.
type Value struct {
	Name      string
	ID        string // of the stored value; build keys hold this in the value's place
	Sensitive bool
	Build     bool // the bootstrap receives it
	entered   int64
	bytes     []byte
}

// String, GoString, Format and MarshalJSON keep a value out of whatever prints its Value.
func (Value) String() string { return hidden }

// GoString is String for %#v.
func (Value) GoString() string { return hidden }

// Format is String for every verb.
func (Value) Format(f fmt.State, _ rune) { f.Write([]byte(hidden)) } //nolint:errcheck // as fmt's own

// MarshalJSON is String as JSON.
func (Value) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// Len is the value's length in bytes.
func (v Value) Len() int { return len(v.bytes) }

// Begins says whether b begins with the value.
func (v Value) Begins(b []byte) bool { return bytes.HasPrefix(b, v.bytes) }

// Start is the value's first two bytes, the first one lowest, for a search; 0 for a shorter value.
func (v Value) Start() uint16 {
	if len(v.bytes) < 2 {
		return 0
	}
	return uint16(v.bytes[0]) | uint16(v.bytes[1])<<8
}

// Values are those of one attempt: a Test build's, or a Session's since its newest start or wake. The nil Values are none. They
// are not changed after From, so they may be used from many goroutines.
type Values struct{ list []Value }

// String, GoString, Format and MarshalJSON are as those of Value.
func (*Values) String() string { return hidden }

// GoString is String for %#v.
func (*Values) GoString() string { return hidden }

// Format is String for every verb.
func (*Values) Format(f fmt.State, _ rune) { f.Write([]byte(hidden)) } //nolint:errcheck // as fmt's own

// MarshalJSON is String as JSON.
func (*Values) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// From takes over what the Hub answered. It refuses what no process could be given as it is: a value with a NUL byte, one
// longer than Max, and a Sensitive one that is too short to be kept out of logs. The error names the Variable.
func From(all []*wire.Value) (*Values, error) {
	vs := &Values{list: make([]Value, 0, len(all))}
	seen := map[string]bool{}
	for _, w := range all {
		v := Value{Name: w.GetName(), ID: w.GetId(), Sensitive: w.GetSensitive(), Build: w.GetBuild(),
			entered: w.GetEnteredMs(), bytes: w.GetValue()}
		switch {
		case v.Name == "" || strings.ContainsAny(v.Name, "=\x00"):
			return nil, fmt.Errorf("the Hub sent a Variable that can't be named %q", v.Name)
		case seen[v.Name]:
			return nil, fmt.Errorf("the Hub sent two values of the Variable %s", v.Name)
		case v.ID == "":
			return nil, fmt.Errorf("the Hub sent a value of the Variable %s that has no id", v.Name)
		case bytes.IndexByte(v.bytes, 0) >= 0:
			return nil, fmt.Errorf("the value of the Variable %s contains a NUL byte, which no environment can hold", v.Name)
		case len(v.bytes) > Max:
			return nil, fmt.Errorf("the value of the Variable %s has %d bytes; at most %d are allowed", v.Name, len(v.bytes), Max)
		}
		if v.Sensitive {
			if err := redact.Check(v.bytes); err != nil {
				return nil, fmt.Errorf("the Variable %s: %w", v.Name, err)
			}
		}
		seen[v.Name] = true
		vs.list = append(vs.list, v)
	}
	slices.SortFunc(vs.list, func(a, b Value) int { return strings.Compare(a.Name, b.Name) })
	return vs, nil
}

// Hide makes the sets know the Sensitive ones. It is called before the first of them is handed to any process.
func (vs *Values) Hide(sets ...*redact.Set) error {
	var errs []error
	for _, v := range vs.all() {
		if !v.Sensitive {
			continue
		}
		for _, s := range sets {
			errs = append(errs, s.Add(v.Name, v.bytes))
		}
	}
	return errors.Join(errs...)
}

// Env is what a process is given, as NAME=value: all of them, or for the bootstrap those that are available at build. It is for
// agent.Cmd.Env, which lives in memory, and for nothing else.
func (vs *Values) Env(build bool) []string {
	var env []string
	for _, v := range vs.all() {
		if v.Build || !build {
			env = append(env, v.Name+"="+string(v.bytes))
		}
	}
	return env
}

// BuildIDs is, by the Variable's name, the id of each value that the bootstrap receives: what a build key holds of them.
func (vs *Values) BuildIDs() map[string]string {
	var ids map[string]string
	for _, v := range vs.all() {
		if v.Build {
			if ids == nil {
				ids = map[string]string{}
			}
			ids[v.Name] = v.ID
		}
	}
	return ids
}

// Handed names the Sensitive ones among Env(build), in the order of Variables, without holding one: what a process that was given
// these may print. A value that is entered in place of a lost one has another name here, though it has the same ID.
func (vs *Values) Handed(build bool) []string {
	var names []string
	for _, v := range vs.all() {
		if v.Sensitive && (v.Build || !build) {
			names = append(names, fmt.Sprintf("%s@%d", v.ID, v.entered))
		}
	}
	return names
}

// Covers says whether the values include all that Handed named.
func (vs *Values) Covers(handed []string) bool {
	now := vs.Handed(false)
	return !slices.ContainsFunc(handed, func(name string) bool { return !slices.Contains(now, name) })
}

// Named says whether a Variable has that name.
func (vs *Values) Named(name string) bool {
	return slices.ContainsFunc(vs.all(), func(v Value) bool { return v.Name == name })
}

// SensitiveAtBuild are those that the bootstrap received and nobody should find in its files.
func (vs *Values) SensitiveAtBuild() []Value {
	var out []Value
	for _, v := range vs.all() {
		if v.Sensitive && v.Build {
			out = append(out, v)
		}
	}
	return out
}

func (vs *Values) all() []Value {
	if vs == nil {
		return nil
	}
	return vs.list
}
