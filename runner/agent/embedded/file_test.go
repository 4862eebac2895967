package embedded

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// given stands for a build with the agent in it.
func given(t *testing.T, agent string) {
	t.Helper()
	before := binary
	binary = []byte(agent)
	t.Cleanup(func() { binary = before })
}

func TestTheAgentIsWrittenOnceAndAnotherVersionsIsDeleted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "agent")
	given(t, "version one")
	first, err := File(dir)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(first)
	if err != nil || fi.Mode().Perm() != 0o755 {
		t.Fatalf("the agent: %v, %v; everyone may have to execute it", fi, err)
	}
	if again, err := File(dir); err != nil || again != first {
		t.Fatalf("again: %q, %v; want %q", again, err, first)
	}
	if now, err := os.Stat(first); err != nil || !os.SameFile(fi, now) {
		t.Errorf("it was written a second time: %v", err)
	}
	given(t, "version two")
	second, err := File(dir)
	if err != nil || second == first {
		t.Fatalf("another version: %q, %v", second, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left over: %v, %v; want only the newest", left, err)
	}
}

func TestADamagedAgentIsWrittenAnew(t *testing.T) {
	dir := t.TempDir()
	given(t, "whole")
	path, err := File(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := File(dir); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, []byte("whole")) {
		t.Errorf("%q, %v; want it whole", b, err)
	}
}

func TestABuildWithoutTheAgentSaysSo(t *testing.T) {
	given(t, "")
	if path, err := File(t.TempDir()); err != nil || path != "" {
		t.Errorf("%q, %v; want none", path, err)
	}
}
