package sandbox

import (
	"errors"
	"fmt"
)

// What a caller tells apart with errors.Is. The errors themselves are sentences that say more.
var (
	ErrNotFound    = errors.New("no such Sandbox")
	ErrNotRunning  = errors.New("the Sandbox is not running")
	ErrRunning     = errors.New("the Sandbox is running")
	ErrOtherBase   = errors.New("the root filesystem was made on another base")
	ErrInUse       = errors.New("the snapshot is in use")
	ErrInvalid     = errors.New("invalid")
	ErrHostFull    = errors.New("the host has too little free space")
	ErrDiskDamaged = errors.New("the disk is damaged")
	ErrBaseLost    = errors.New("a layer of the base is gone from this host")
)

// Error is a sentence for a user, with one of the Err values as what it Is.
type Error struct {
	Kind error
	Text string
}

func (e *Error) Error() string { return e.Text }

// Unwrap gives the Kind to errors.Is.
func (e *Error) Unwrap() error { return e.Kind }

// Errorf makes an Error of that kind.
func Errorf(kind error, format string, a ...any) error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, a...)}
}
