package github

import (
	"fmt"
	"log/slog"
)

// Secret is a token, key or code. It prints, logs and marshals as "[hidden]"; only Reveal gives the text.
type Secret struct{ v string }

const hidden = "[hidden]"

// NewSecret keeps v from now on.
func NewSecret(v string) Secret { return Secret{v} }

// Reveal gives the text, for the one place that sends it.
func (s Secret) Reveal() string { return s.v }

// Empty says whether there is none.
func (s Secret) Empty() bool { return s.v == "" }

func (Secret) String() string               { return hidden }
func (Secret) GoString() string             { return hidden }
func (Secret) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(hidden)) }
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }
func (Secret) LogValue() slog.Value         { return slog.StringValue(hidden) }
