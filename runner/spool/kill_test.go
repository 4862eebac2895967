package spool

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const killedEnv = "CLAUDE_HUB_SPOOL_KILLED"

// TestMain runs this binary as the process that TestKill9LosesNothingThatWasAppended kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv(killedEnv); dir != "" {
		if err := writeUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func writeUntilKilled(dir string) error {
	s, err := Open(dir, Options{Segment: 4 << 10})
	if err != nil {
		return err
	}
	st, err := s.Stream("a1", 1)
	if err != nil {
		return err
	}
	for i := st.Writer("p").RawEnd(); ; i++ {
		if err := st.Writer("p").Append(text(fmt.Sprintf("line %d\n", i)), i+1); err != nil {
			return err
		}
		if i%10 == 0 {
			if _, err := s.PutReport(Report{ID: "a1", Fence: 1, Generation: i, State: "running"}); err != nil {
				return err
			}
		}
		fmt.Println(i)
	}
}

func TestKill9LosesNothingThatWasAppended(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := &hub{}
	for round := range 10 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killedEnv+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last := int64(-1)
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			if _, err := fmt.Sscan(lines.Text(), &last); err != nil {
				t.Fatal(err)
			}
			if n == 200+37*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // it was killed
		s := open(t, dir, Options{Segment: 4 << 10})
		st := stream(t, s)
		raw := st.Writer("p").RawEnd()
		if raw < last+1 {
			t.Fatalf("round %d: line %d was appended, the spool ends at %d", round, last, raw)
		}
		if r, _, ok := s.Newest("a1"); !ok || r.Generation < last/10*10 {
			t.Fatalf("round %d: report of %d is the newest, line %d was reached", round, r.Generation, last)
		}
		h.drain(t, st, 1<<20)
		var want strings.Builder
		for i := range raw {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		if h.text() != want.String() {
			t.Fatalf("round %d: the Hub has %d bytes, %d were written", round, h.next, want.Len())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
