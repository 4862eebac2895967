package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"strings"
	"time"
)

// helperArg makes `<agent> agent git-credential <operation>` what git runs as its credential helper (gitcredentials(7)).
const helperArg = "git-credential"

// credentialHelper is one run of it. Whatever happens git goes on: to the person's own helpers, and to the terminal. So the
// exit code is 0, and why there is nothing is a line on standard error.
func credentialHelper(args []string, in io.Reader, out, errs io.Writer) int {
	if len(args) != 1 || args[0] != "get" && args[0] != "erase" {
		return 0 // store, and what git may come to ask one day
	}
	q, password := described(in)
	if args[0] == "erase" {
		if password == "" {
			return 0
		}
		q.Rejected = Sum(password)
	}
	r, err := askAgent(q)
	switch {
	case args[0] == "erase":
	case err != nil:
		fmt.Fprintf(errs, "claude-hub: no credentials from the Hub: %v.\n", err)
	case r.ReadOnly != "" && pushes(os.Getppid()):
		fmt.Fprintf(errs, "claude-hub: %s\n", oneLine(r.ReadOnly))
	case r.Password != "":
		fmt.Fprintf(out, "username=%s\npassword=%s\n", oneLine(r.Username), oneLine(r.Password))
		if !r.Expires.IsZero() {
			fmt.Fprintf(out, "password_expiry_utc=%d\n", r.Expires.Unix())
		}
	}
	if r.Says != "" {
		fmt.Fprintf(errs, "claude-hub: %s\n", oneLine(r.Says))
	}
	return 0
}

// described reads what git says of the credentials it means.
func described(in io.Reader) (q Question, password string) {
	sc := bufio.NewScanner(io.LimitReader(in, maxQuestion))
	for sc.Scan() && sc.Text() != "" {
		key, value, _ := strings.Cut(sc.Text(), "=")
		switch key {
		case "protocol":
			q.Protocol = value
		case "host":
			q.Host = value
		case "password":
			password = value
		}
	}
	return q, password
}

// askAgent asks the agent, which asks the Runner.
func askAgent(q Question) (r Reply, err error) {
	conn, err := net.Dial("unix", gitSocket)
	if err != nil {
		return r, fmt.Errorf("the Sandbox's agent can't be reached (%w)", err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(askLimit + ioLimit)) //nolint:errcheck // sockets have deadlines
	if err := writeJSON(conn, kindHeader, q); err != nil {
		return r, fmt.Errorf("the Sandbox's agent hung up (%w)", err)
	}
	kind, b, err := readFrame(conn, maxAnswer, nil)
	if err != nil || kind != kindAnswer || json.Unmarshal(b, &r) != nil {
		return Reply{}, errors.New("the Sandbox's agent hung up without an answer")
	}
	return r, nil
}

// oneLine keeps one answer from looking like several.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return -1
		}
		return c
	}, s)
}

// pushes says whether the git that asks seems to push, which git doesn't say to helpers. What a process says of itself decides
// nothing but what is most useful to it: whoever lies gets a password that can't push.
func pushes(pid int) bool {
	for range 8 {
		p, ok := readProcess(pid)
		if !ok {
			return true
		}
		b, _ := readProc(pid, "cmdline", 4096)
		argv := strings.Split(string(b), "\x00")
		switch base := path.Base(argv[0]); {
		case strings.HasPrefix(base, "git"):
			for _, a := range argv {
				if a == "push" || a == "send-pack" {
					return true
				}
			}
		case base != "sh" && base != "bash" && base != "dash":
			return false
		}
		pid = p.ppid
	}
	return false
}
