package cmd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/envspec"
)

func envFmtCommand() *cobra.Command {
	var write, check bool
	c := &cobra.Command{
		Use: "fmt [FILE]", Short: "Print an environment.yml in its canonical form, with its comments", Args: cobra.MaximumNArgs(1),
		Long: `Print an Environment's document in its canonical form: keys in their order, scripts as blocks, LF line endings, every
comment kept. What is read from it stays the same. ` + environmentFile + ` unless a file is named, - for stdin. With -w the
file is rewritten in place; with --check nothing is printed, and the exit code is 1 when the file is not in that form.`,
		Example: "  claude-hub env fmt -w\n  claude-hub env fmt --check\n  claude-hub env fmt other.yml | diff other.yml -",
		RunE: func(c *cobra.Command, args []string) error {
			name, b, err := readDocument(c, args)
			if err != nil {
				return err
			}
			if write && (check || name == "stdin") {
				return usageError{errors.New("-w rewrites a file: it goes neither with --check nor with stdin")}
			}
			out, err := envspec.Reformat(name, b)
			var problems envspec.Problems
			if errors.As(err, &problems) {
				fmt.Fprintln(c.ErrOrStderr(), problems)
				return exitError{exitFailed}
			}
			if err != nil {
				return err
			}
			same := bytes.Equal(out, b)
			switch {
			case check && !same:
				fmt.Fprintf(c.ErrOrStderr(), "%s is not formatted. To format it: claude-hub env fmt -w %[1]s\n", name)
				return exitError{exitFailed}
			case check, write && same:
				return nil
			case write:
				return replaceFile(name, out)
			}
			_, err = c.OutOrStdout().Write(out)
			return err
		},
	}
	c.Flags().BoolVarP(&write, "write", "w", false, "rewrite the file in place")
	c.Flags().BoolVar(&check, "check", false, "only tell whether the file is formatted")
	return c
}

// replaceFile writes a file whole or not at all, and keeps its mode. A link stays one.
func replaceFile(name string, b []byte) error {
	path, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".environment-*.yml")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // it is gone when all went well
	_, err = tmp.Write(b)
	if err := errors.Join(err, tmp.Chmod(info.Mode().Perm()), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
