package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/runner/hubclient"
)

// cliConfig is which Hub the CLI talks to, and as whom. claude-hub dev writes it.
type cliConfig struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

func cliConfigPath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the folder of this user's configuration: %w", err)
	}
	return filepath.Join(dir, "claude-hub", "cli.json"), nil
}

// writeCLIConfig replaces the file whole, readable by its owner only.
func writeCLIConfig(c cliConfig) error {
	path, err := cliConfigPath()
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// connect finds the Hub: flags, then CLAUDE_HUB_URL and CLAUDE_HUB_TOKEN, then what claude-hub dev left.
func connect() (*client.Client, error) {
	c := cliConfig{URL: os.Getenv("CLAUDE_HUB_URL"), Token: os.Getenv("CLAUDE_HUB_TOKEN")}
	if c.URL == "" || c.Token == "" {
		path, err := cliConfigPath()
		if err != nil {
			return nil, err
		}
		b, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, usageError{fmt.Errorf("no Hub is known here: set CLAUDE_HUB_URL and CLAUDE_HUB_TOKEN, or start one with: claude-hub dev")}
		case err != nil:
			return nil, err
		}
		var saved cliConfig
		if err := json.Unmarshal(b, &saved); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if c.URL == "" || c.URL == saved.URL { // a token goes to no other Hub than its own
			c = saved
		}
	}
	return client.New(c.URL, c.Token, nil)
}

// exitCode is the exit code of an error that a command ended with.
func exitCode(err error) int {
	var (
		wrongUse    usageError
		unreachable *client.Unreachable
		refused     *client.Error
		silent      *hubclient.Unreachable
	)
	switch {
	case errors.As(err, &wrongUse):
		return exitUsage
	case errors.As(err, &unreachable), errors.As(err, &silent):
		return exitUnreachable
	case errors.As(err, &refused) && (refused.Code == fault.Unauthorized || refused.Code == fault.Forbidden):
		return exitNotAllowed
	}
	return exitFailed
}

// describe prints what the Hub found wrong with a document, a line each as env validate does. What it returns is left
// to say.
func describe(c *cobra.Command, name string, err error) error {
	var e *client.Error
	if !errors.As(err, &e) || len(e.Problems) == 0 {
		return err
	}
	for _, p := range e.Problems {
		fmt.Fprintln(c.ErrOrStderr(), place(name, p.Line, p.Column)+p.Message)
	}
	return exitError{exitFailed}
}

func place(name string, line, column int) string {
	if line == 0 {
		return name + ": "
	}
	return fmt.Sprintf("%s:%d:%d: ", name, line, column)
}

// repoFlag adds --repo, which falls back to CLAUDE_HUB_REPO.
func repoFlag(c *cobra.Command, repo *string) {
	c.Flags().StringVarP(repo, "repo", "r", os.Getenv("CLAUDE_HUB_REPO"), "Repo, as owner/name or its id (CLAUDE_HUB_REPO)")
}

func needRepo(repo string) error {
	if strings.TrimSpace(repo) == "" {
		return usageError{errors.New("say which Repo: --repo owner/name")}
	}
	return nil
}
