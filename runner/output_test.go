package runner

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// TestWhatProcessesPrintIsOnTheHostsDiskInTheSpoolOnly prints words that are written down nowhere, from each kind of process
// that a Sandbox has, and looks for them in all that a Runner keeps.
func TestWhatProcessesPrintIsOnTheHostsDiskInTheSpoolOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	print := func(name string) string { return "echo " + name + "-$((1234 * 5678))-said" }
	spec := envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: print("bootstrap"), Start: print("start")}
	test := w.test(spec, w.repo())
	if state, d := w.outcome(test); state != wire.StatePassed {
		t.Fatalf("%s: %+v", state, d.Failure)
	}
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	if got := w.sh(id, print("exec")); got != "exec-7006652-said\n" {
		t.Fatalf("it printed %q", got)
	}
	shell := w.open(id, wire.ChannelSpec{TTY: true, Rows: 10, Cols: 80, Argv: []string{"sh", "-c", print("terminal")}}).end()
	if !strings.Contains(shell.out, "terminal-7006652-said") {
		t.Fatalf("it printed %q", shell.out)
	}
	inSpool := false
	for _, root := range []string{w.data, w.cfg.RunDir} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
				return nil
			}
			if err != nil {
				return err
			}
			said, err := holds(path, "-7006652-said")
			if err != nil || !said {
				return err
			}
			if strings.HasPrefix(path, filepath.Join(Folder(w.data), "spool")+"/") {
				inSpool = true
			} else {
				t.Errorf("%s has what a process printed", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if !inSpool {
		t.Error("the spool lacks it, so this test finds nothing")
	}
}

// holds looks for words in a file, holes passed over.
func holds(path, words string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	var kept []byte
	buf := make([]byte, 1<<20)
	for at := int64(0); ; {
		next, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return false, nil
		}
		if err != nil {
			next = at // this file system knows no holes
		}
		if next > at {
			kept, at = nil, next
		}
		n, err := f.ReadAt(buf, at)
		kept = append(kept, buf[:n]...)
		if bytes.Contains(kept, []byte(words)) {
			return true, nil
		}
		kept = append([]byte(nil), kept[max(0, len(kept)-len(words)):]...)
		at += int64(n)
		if errors.Is(err, io.EOF) || n == 0 {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}
