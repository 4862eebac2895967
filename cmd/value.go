package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/claude-hub/claude-hub/envspec"
)

const (
	// terminalLine is what a terminal takes as one line at most; it drops the rest without a word.
	terminalLine = 4095
	// pasted is how long a terminal is watched for further lines of what was pasted, in milliseconds.
	pasted = 150
)

// valueFileFlag adds --value-file.
func valueFileFlag(c *cobra.Command, file *string) {
	c.Flags().StringVar(file, "value-file", "", "file with the value, byte for byte; - for stdin")
}

// readValue reads the value of a Variable from file, else from stdin, and at a terminal by asking for it: a Sensitive one
// without echo. What comes from a file or through a pipe is taken byte for byte.
func readValue(c *cobra.Command, name, file string, sensitive bool) ([]byte, error) {
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usageError{err}
		}
		defer f.Close() //nolint:errcheck // only read from
		return wholeValue(c, name, f, "the file "+file)
	}
	in, _ := c.InOrStdin().(*os.File)
	if file == "-" || in == nil || !term.IsTerminal(int(in.Fd())) {
		return wholeValue(c, name, c.InOrStdin(), "stdin")
	}
	return askValue(c.Context(), in, c.ErrOrStderr(), name, sensitive)
}

// wholeValue reads a value that comes from where.
func wholeValue(c *cobra.Command, name string, in io.Reader, where string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(in, envspec.MaxValue+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the value of %s: %w", name, err)
	case len(b) > envspec.MaxValue:
		return nil, fmt.Errorf("the value of %s is longer than the %d bytes that are possible", name, envspec.MaxValue)
	case len(b) > 0 && b[len(b)-1] == '\n':
		fmt.Fprintf(c.ErrOrStderr(), "note: the value of %s ends with the line break that %s ends with: it is kept, byte for byte\n", name, where)
	}
	return b, nil
}

// askValue asks for one line at the terminal tty.
func askValue(ctx context.Context, tty *os.File, out io.Writer, name string, sensitive bool) ([]byte, error) {
	fd := int(tty.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read the terminal's settings: %w", err)
	}
	// What still waits to be read is dropped: further lines of a pasted value must not become commands of the shell.
	defer func() { _ = unix.IoctlSetTermios(fd, unix.TCSETSF, before) }()
	hint := ""
	if sensitive {
		hint = " (not shown)"
		silent := *before
		silent.Lflag = silent.Lflag&^unix.ECHO | unix.ICANON | unix.ISIG
		if err := unix.IoctlSetTermios(fd, unix.TCSETS, &silent); err != nil {
			return nil, fmt.Errorf("turn the terminal's echo off: %w", err)
		}
		defer fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "Value of %s%s: ", name, hint)
	type read struct {
		line []byte
		more bool
		err  error
	}
	done := make(chan read, 1)
	go func() {
		var r read
		r.line, r.err = readLine(tty)
		if r.err == nil {
			r.more = readable(fd)
		}
		done <- r
	}()
	var r read
	select {
	case r = <-done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	switch {
	case errors.Is(r.err, io.EOF):
		return nil, errors.New("no value was typed; nothing was saved")
	case r.err != nil:
		return nil, fmt.Errorf("read the value of %s: %w", name, r.err)
	case r.more:
		return nil, fmt.Errorf("the value of %s has several lines, and a terminal gives one: put it into a file and use --value-file. Nothing was saved", name)
	case len(r.line) >= terminalLine:
		return nil, fmt.Errorf("the value of %s is too long for a terminal, which drops what is beyond %d bytes: put it into a file and use --value-file. Nothing was saved", name, terminalLine)
	}
	return r.line, nil
}

// readLine reads up to a line break, and no further.
func readLine(in io.Reader) ([]byte, error) {
	line := []byte{} // an empty line is a value, too
	var b [1]byte
	for {
		n, err := in.Read(b[:])
		switch {
		case n == 1 && b[0] == '\n':
			return line, nil
		case n == 1:
			line = append(line, b[0])
		case err != nil && len(line) > 0 && errors.Is(err, io.EOF):
			return line, nil
		case err != nil:
			return nil, err
		}
	}
}

// readable says that another line waits at the terminal, or comes at once.
func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, pasted)
	return err == nil && n > 0
}

// checkedName refuses what can't be the name of a Variable or Shared variable, before a Hub is asked.
func checkedName(name string) error {
	if err := envspec.CheckName(name); err != nil {
		return usageError{err}
	}
	return nil
}

// onCommandLine is the refusal of a Sensitive value among the arguments. It was seen already.
func onCommandLine(name string) error {
	return usageError{fmt.Errorf("the value of %s is Sensitive, so it isn't taken from the command line: every process of this host can read it there, and "+
		"shells keep it in their history. Take another value for it, since this one is there now, and give it by --value-file, through a pipe, or at the prompt", name)}
}

// nameValue cuts NAME=VALUE.
func nameValue(arg string) (name string, value *string) {
	name, v, inline := strings.Cut(arg, "=")
	if inline {
		value = &v
	}
	return name, value
}

// valueFiles reads the values that --value-file NAME=FILE names, each a Sensitive Variable's.
func valueFiles(c *cobra.Command, named []string) (map[string][]byte, error) {
	values := map[string][]byte{}
	for _, n := range named {
		name, file := nameValue(n)
		if err := checkedName(name); err != nil {
			return nil, err
		}
		if file == nil || *file == "" {
			return nil, usageError{errors.New("--value-file is NAME=FILE, - as FILE for stdin; the value itself doesn't go on the command line")}
		}
		v, err := readValue(c, name, *file, true)
		if err != nil {
			return nil, err
		}
		values[name] = v
	}
	return values, nil
}

// agree asks for a yes, and answers whether it came. The command has a flag --yes.
func agree(c *cobra.Command, question string) bool {
	fmt.Fprint(c.ErrOrStderr(), question+" Type yes: ")
	var answer string
	if _, err := fmt.Fscanln(c.InOrStdin(), &answer); err == io.EOF { //nolint:errorlint // Fscanln gives it bare
		fmt.Fprintln(c.ErrOrStderr(), "\nNobody answered. Say --yes where nobody can be asked.")
	}
	return strings.TrimSpace(answer) == "yes"
}
