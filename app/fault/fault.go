// Package fault is what goes wrong in the words of the person it is shown to, with a stable code for programs.
//
// The domain makes faults; web, API and CLI show them. Any other error is internal: its text never reaches a user
// (facts/github.md §2, boulder and wtf).
package fault

import (
	"errors"
	"fmt"
)

// Code is stable: programs and the CLI's exit codes depend on it.
type Code string

const (
	NotFound     Code = "not-found"    // absent, forbidden and uninstalled alike
	Invalid      Code = "invalid"      // the input is wrong; Fields says where
	Conflict     Code = "conflict"     // somebody else was quicker: read again
	Refused      Code = "refused"      // the input is right, the state is not: the message says what to do first
	Unauthorized Code = "unauthorized" // nobody is signed in
	Forbidden    Code = "forbidden"    // the token may not do this, whatever it is about: the message says which scope it lacks
	Unavailable  Code = "unavailable"  // something needed is away; the same call may work later
	Internal     Code = "internal"
)

// Error is a fault. Message is a whole sentence for a person.
type Error struct {
	Code    Code
	Message string
	Fields  map[string]string // field → sentence, of an Invalid input
}

func (e *Error) Error() string { return e.Message }

// New makes a fault.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Field makes an Invalid fault about one field.
func Field(field, format string, args ...any) *Error {
	e := New(Invalid, format, args...)
	e.Fields = map[string]string{field: e.Message}
	return e
}

// Of returns err as a fault. What is none becomes an Internal one whose message says nothing of the cause.
func Of(err error) *Error {
	var f *Error
	if errors.As(err, &f) {
		return f
	}
	return &Error{Code: Internal, Message: "Something went wrong inside claude-hub. Its log has the details under this request's id."}
}

// Is tells whether err is a fault with code.
func Is(err error, code Code) bool {
	var f *Error
	return errors.As(err, &f) && f.Code == code
}
