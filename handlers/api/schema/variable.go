package schema

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/claude-hub/claude-hub/envspec"
)

// Value is a value on its way to the Hub, as text or, for any bytes, as base64. No answer has one.
type Value struct {
	Text   *string `json:"text,omitempty"`
	Base64 *[]byte `json:"base64,omitempty"`
}

// ValueOf is b, byte for byte.
func ValueOf(b []byte) Value {
	if b == nil {
		b = []byte{}
	}
	return Value{Base64: &b}
}

// Bytes are the value's. Its error is a sentence without it.
func (v Value) Bytes() ([]byte, error) {
	switch {
	case (v.Text == nil) == (v.Base64 == nil):
		return nil, fmt.Errorf("give the value either as “text” or as “base64”")
	case v.Base64 != nil:
		return *v.Base64, nil
	}
	for i, r := range *v.Text {
		if r == utf8.RuneError {
			return nil, fmt.Errorf("the text of the value has a character at byte %d that JSON did not carry: send it as “base64”", i)
		}
	}
	return []byte(*v.Text), nil
}

// Format keeps it out of everything that fmt makes.
func (Value) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[hidden]")) }

// Conflict is what somebody else saved meanwhile. Nothing of the caller's was stored. To save over it, save again with its
// revision as the base.
type Conflict struct {
	Theirs *Draft `json:"theirs,omitempty"` // absent: the draft was discarded
}

// Base names the revision of the draft that the caller had read, 0 for none.
type Base struct {
	Base int64 `json:"base"`
}

// Restore makes a version's Spec the draft.
type Restore struct {
	Base    int64 `json:"base"`
	Version int   `json:"version"`
}

// Discarded is what is there once a draft was given up: one that says what the current version says, or none.
type Discarded struct {
	Draft *Draft `json:"draft,omitempty"`
}

// Diff is what is different between two Specs. A side is "draft", "none" (no Environment) or the number of a version.
type Diff struct {
	From string `json:"from"`
	To   string `json:"to"`
	envspec.Diff
	Text string `json:"text"` // the same for a terminal; empty: nothing is different
}

// Variable is one of a draft or a version, with what may be shown of its value.
type Variable struct {
	Name    string     `json:"name"`
	Kind    string     `json:"kind"`            // plain, sensitive or link
	Value   *string    `json:"value,omitempty"` // of a Plain one only
	Link    string     `json:"link,omitempty"`  // the name of the Shared variable
	Hidden  bool       `json:"hidden"`          // its value is Sensitive; of a Link: the Shared variable's is
	AtBuild bool       `json:"at_build"`        // the bootstrap receives it
	Note    string     `json:"note,omitempty"`
	Status  string     `json:"status"` // set; lost: its encryption key was; missing: none was ever entered
	SetAt   *time.Time `json:"set_at,omitempty"`
	SetBy   string     `json:"set_by,omitempty"`
	Digest  string     `json:"digest,omitempty"` // by it Sensitive values of one Hub can be compared
}

// EnterValue puts a value in the place of a lost one.
type EnterValue struct {
	Value Value `json:"value"`
}

// SharedChange is a Link of a version, available at build, whose Shared variable got a new value since the version was tested.
type SharedChange struct {
	Name   string    `json:"name"` // the Link's own
	Shared string    `json:"shared"`
	At     time.Time `json:"at"`
	By     string    `json:"by"`
}

// OnVersion counts the Sessions that stand on a version.
type OnVersion struct {
	Version int `json:"version"`
	Awake   int `json:"awake"`  // they go on on it until their next wake
	Asleep  int `json:"asleep"` // they wake on the newest version
}

// Shared is a Shared variable.
type Shared struct {
	Name        string     `json:"name"`
	Note        string     `json:"note,omitempty"`
	Sensitive   bool       `json:"sensitive"`
	Revision    int64      `json:"revision"`
	Status      string     `json:"status"`          // set, or lost: its encryption key was
	Value       *string    `json:"value,omitempty"` // of a Plain one only
	Digest      string     `json:"digest,omitempty"`
	SetAt       *time.Time `json:"set_at,omitempty"`
	SetBy       string     `json:"set_by,omitempty"`
	CreatedAt   time.Time  `json:"created_at"`
	CreatedBy   string     `json:"created_by"`
	Users       *Users     `json:"users,omitempty"`       // absent in the answers to changes
	Consequence string     `json:"consequence,omitempty"` // what a new value means for them, in words
}

// Users are the Repos whose draft or current version links a Shared variable.
type Users struct {
	Repos         []Repo `json:"repos"`    // that the caller may use
	Hidden        int    `json:"hidden"`   // how many others
	AtBuild       []Repo `json:"at_build"` // those of Repos where it is available at build
	HiddenAtBuild int    `json:"hidden_at_build"`
}

// CreateShared makes a Shared variable.
type CreateShared struct {
	Name      string `json:"name"`
	Note      string `json:"note,omitempty"`
	Sensitive bool   `json:"sensitive,omitempty"`
	Value     Value  `json:"value"`
}

// SetShared gives a Shared variable a new value. Revision is the one that the caller had read, here and below.
type SetShared struct {
	Revision  int64 `json:"revision"`
	Sensitive bool  `json:"sensitive"`
	Value     Value `json:"value"`
}

// NoteShared changes its note.
type NoteShared struct {
	Revision int64  `json:"revision"`
	Note     string `json:"note"`
}

// RenameShared changes its name.
type RenameShared struct {
	Revision int64  `json:"revision"`
	Name     string `json:"name"`
}

// DeleteShared deletes it with its value.
type DeleteShared struct {
	Revision int64 `json:"revision"`
}
