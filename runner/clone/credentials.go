package clone

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
)

// Credentials are a user name and a password or token for one clone. They are never stored.
type Credentials struct {
	Username string
	Password string
}

// String hides the password from logs.
func (c Credentials) String() string { return c.Username + ":***" }

// GoString hides the password from logs.
func (c Credentials) GoString() string { return c.String() }

// answer is what a credential helper prints.
func (c Credentials) answer() []byte {
	return []byte("username=" + c.Username + "\npassword=" + c.Password + "\n")
}

// FromHost asks the host's own credential helpers for url, as the user this process runs as and outside of any
// Workspace: what a Hub in dev mode, with no GitHub App, clones with (ADR 0009). nil: the host has none.
func FromHost(ctx context.Context, url string) (*Credentials, error) {
	if !strings.HasPrefix(url, "https://") && !strings.HasPrefix(url, "http://") || strings.ContainsAny(url, "\n\x00") {
		return nil, nil
	}
	cmd := exec.CommandContext(ctx, "git", "credential", "fill")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "LC_ALL=C", "GIT_CEILING_DIRECTORIES=/")
	cmd.Stdin = strings.NewReader("url=" + url + "\n\n")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		// No helper has an answer, and asking a person is off.
		return nil, ctx.Err()
	}
	var c Credentials
	for line := range strings.Lines(out.String()) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch key {
		case "username":
			c.Username = value
		case "password":
			c.Password = value
		}
	}
	if c.Password == "" {
		return nil, nil
	}
	return &c, nil
}
