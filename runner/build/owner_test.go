package build

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

func TestHandingOverFollowsNoLinkOutOfTheDisk(t *testing.T) {
	t.Parallel()
	m, outside := sandbox.Mounted{Folder: t.TempDir(), IDBase: 200000}, t.TempDir()
	store := filepath.Join(m.Folder, storeFolder)
	owned := func(path string, dir bool) string {
		t.Helper()
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil && dir {
			err = os.MkdirAll(path, 0o755)
		} else if err == nil {
			err = os.WriteFile(path, nil, 0o644)
		}
		if err == nil {
			err = os.Lchown(path, m.IDBase, m.IDBase)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(to, path string) string {
		t.Helper()
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(path, m.IDBase, m.IDBase); err != nil {
			t.Fatal(err)
		}
		return path
	}
	workspace := owned(filepath.Join(store, workspaceName), true)
	file, kept := owned(filepath.Join(workspace, "a b/file"), false), owned(filepath.Join(store, dependenciesName, "1/data/x"), false)
	around := owned(filepath.Join(store, dependenciesName, "1/plan"), false)
	theirs := owned(filepath.Join(outside, "data/theirs"), false)
	inWorkspace := link(outside, filepath.Join(workspace, "out"))
	link(outside, filepath.Join(store, dependenciesName, "2"))
	link(outside, filepath.Join(store, cacheName))
	if err := HandOver(m, Owner{0, 0}, Owner{1000, 1001}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]uint32{workspace: {201000, 201001}, file: {201000, 201001}, kept: {201000, 201001}, inWorkspace: {201000, 201001},
		around: {200000, 200000}, theirs: {200000, 200000}} {
		fi, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != want[0] || st.Gid != want[1] {
			t.Errorf("%s is owned by %d:%d, want %d:%d", path, st.Uid, st.Gid, want[0], want[1])
		}
	}
}
