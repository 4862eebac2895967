// Command print is put into the images of the canary test: it prints the value of $CANARY in all forms.
//
//	print CHANNEL [FORM,FORM…]        on stdout
//	print -2 CHANNEL [FORM,FORM…]     on stderr
//	print -slow CHANNEL [FORM,FORM…]  on stdout, a few bytes at a time with pauses longer than a terminal holds anything back
//	print -leave                      leaves a process that is named as the first line of the value, and one as its hex
//	print -file                       makes a file in the working folder that is named as the value in hex, and holds it
package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/e2e/canary/forms"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "print:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	value := os.Getenv("CANARY")
	if value == "" {
		return fmt.Errorf("$CANARY is not set")
	}
	if len(args) == 0 {
		return fmt.Errorf("say which channel this is")
	}
	var out io.Writer = os.Stdout
	switch args[0] {
	case "-leave":
		return leave(value)
	case "-rest": // what leave starts
		time.Sleep(time.Hour)
		return nil
	case "-file":
		name := hex.EncodeToString([]byte(value))
		return os.WriteFile(name, []byte(value), 0o644)
	case "-2":
		out, args = os.Stderr, args[1:]
	case "-slow":
		out, args = slow{os.Stdout}, args[1:]
	}
	var only []string
	if len(args) > 1 {
		only = strings.Split(args[1], ",")
	}
	_, err := io.WriteString(out, forms.Printed(args[0], value, only))
	return err
}

func leave(value string) error {
	first, _, _ := strings.Cut(value, "\n")
	for _, name := range []string{first, hex.EncodeToString([]byte(value))} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = []string{name, "-rest"}
		if err := cmd.Start(); err != nil {
			return err
		}
	}
	return nil
}

type slow struct{ w io.Writer }

func (s slow) Write(p []byte) (int, error) {
	for i := 0; i < len(p); i += 7 {
		if _, err := s.w.Write(p[i:min(i+7, len(p))]); err != nil {
			return i, err
		}
		time.Sleep(130 * time.Millisecond)
	}
	return len(p), nil
}
