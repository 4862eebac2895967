package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

func TestSettingsOfTheImagesOwnFileAreFound(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "daemon.json")
	if set, err := configured(file); err != nil || len(set) > 0 {
		t.Errorf("without a file: %v, %v", set, err)
	}
	for text, want := range map[string]string{"": "", " \n": "", `{"group": "x", "containerd": "/c.sock"}`: "group containerd", `{}`: ""} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		set, err := configured(file)
		if err != nil || set["group"] != (want != "") || set["containerd"] != (want != "") || set["cgroup-parent"] {
			t.Errorf("%q: %v, %v", text, set, err)
		}
	}
	if err := os.WriteFile(file, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := configured(file); err == nil {
		t.Error("a broken file is taken, with which dockerd doesn't start")
	}
}

func TestDockersSocketBelongsToTheUsersGroupWhereTheImageGivesThemNone(t *testing.T) {
	t.Parallel()
	if _, ok := (account{}).dockerGroup(); ok {
		t.Error("root needs a group")
	}
	if gid, ok := (account{uid: 4242, gid: 4243}).dockerGroup(); !ok || gid != 4243 {
		t.Errorf("group %d, %v", gid, ok)
	}
	if gid, err := lookupGroup("docker"); err == nil {
		if _, ok := (account{uid: 4242, gid: 4243, groups: []int{gid}}).dockerGroup(); ok {
			t.Error("who is of the group docker needs another")
		}
	}
}

func TestTheLastWordsOfACommandAreItsLastLines(t *testing.T) {
	t.Parallel()
	o := newOutput(DefaultKeep, DropOldest, new(atomic.Int64))
	c := &command{out: o}
	if got := c.lastWords(); got != "it said nothing" {
		t.Errorf("%q", got)
	}
	for _, l := range []string{"one\n", "two\n", "three\n", "fo\xffur\n"} {
		o.add([]byte(l))
	}
	if got := c.lastWords(); got != "two\nthree\nfo?ur" {
		t.Errorf("%q", got)
	}
	o.add(bytes.Repeat([]byte("x"), 10_000))
	if got := c.lastWords(); len(got) != 600 {
		t.Errorf("%d bytes", len(got))
	}
}
