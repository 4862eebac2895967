package canary

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/claude-hub/claude-hub/e2e/canary/forms"
	"github.com/claude-hub/claude-hub/e2e/world"
)

func TestTheSearchFindsEachFormWithItsChannelAndPlace(t *testing.T) {
	t.Parallel()
	value, tags := bird()
	for _, f := range forms.Table {
		s := newSearch(value, tags)
		s.look("a place", []byte("before "+forms.Printed("some-channel", value, []string{f.Name})))
		all := s.all()
		if len(all) != 1 || (all[0] != hit{f.Name, "some-channel", "a place"}) {
			t.Errorf("%s: %v", f.Name, all)
		}
		if _, marked := s.formsOf("some-channel"); !marked[f.Name] || len(marked) != 1 {
			t.Errorf("%s: marks %v", f.Name, marked)
		}
	}
	other, _ := bird()
	s := newSearch(value, tags)
	s.look("a place", []byte(forms.Printed("some-channel", other, nil)+strings.ReplaceAll(forms.Printed("some-channel", value, nil), tags[0], "***")[:20]))
	if all := s.all(); len(all) != 0 || s.has("a place") {
		t.Errorf("found in another value: %v", all)
	}
}

func TestTheSearchFindsPiecesOfAValue(t *testing.T) {
	t.Parallel()
	value, tags := bird()
	for _, piece := range []string{tags[1] + "+b=c", value[1:14], "x" + strings.ToUpper(tags[3]) + "y"} {
		s := newSearch(value, tags)
		s.look("a place", []byte("... "+piece+" ..."))
		if !s.has("a place") {
			t.Errorf("%q was not found", piece)
		}
	}
}

func TestTheSearchLooksIntoFilesCompressedOnesAndTheirNames(t *testing.T) {
	t.Parallel()
	value, tags := bird()
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	packed := append([]byte("a head "), encoder.EncodeAll(bytes.Repeat([]byte(value), 100), nil)...)
	for name, body := range map[string][]byte{"plain": []byte(value), "packed": packed, "name-" + tags[0]: nil} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "a", "disk"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "a", name), body, 0o600); err != nil {
			t.Fatal(err)
		}
		s := newSearch(value, tags)
		if err := lookFiles(s, "files", dir, nil); err != nil || !s.has("files") {
			t.Errorf("%s: not found, %v", name, err)
		}
		s = newSearch(value, tags)
		if err := lookFiles(s, "files", dir, func(p string) bool { return filepath.Base(p) == "a" }); err != nil || s.has("files") {
			t.Errorf("%s: what is skipped was found, %v", name, err)
		}
	}
}

func TestTheSearchSeesCommandLinesAndEnvironments(t *testing.T) {
	t.Parallel()
	value, tags := bird()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := watchProcesses(ctx)
	for _, c := range []*exec.Cmd{exec.CommandContext(ctx, "sleep", "1000"), exec.CommandContext(ctx, "sh", "-c", "read x; : "+value)} {
		if c.Args[0] == "sleep" {
			c.Env = append(os.Environ(), "CANARY="+value)
		} else if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { cancel(); _ = c.Wait() }()
	}
	err := world.Poll(t.Context(), 10*time.Second, func() error {
		s := newSearch(value, tags)
		p.look(s)
		if !s.has("command lines") || !s.has("environments of processes") {
			return os.ErrNotExist
		}
		return nil
	})
	if err != nil {
		t.Error("the value stood in a command line and in an environment, and was not found")
	}
}
