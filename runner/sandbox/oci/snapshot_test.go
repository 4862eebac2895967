package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

func TestSnapshotBootsInOtherRangesWithAllItsFiles(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "build")
	s.Binds = []sandbox.Bind{{Folder: "work", Guest: "/workspace"}}
	build := start(t, e, "build", s)
	sh(t, build, `mkdir -p /opt/tool /home/dev/x && echo tool > /opt/tool/f && chown 1000:1000 /home/dev/x && chown 70000:70000 /opt/tool/f
		cp /bin/try /opt/setuid && chmod 4755 /opt/setuid && ln /opt/tool/f /opt/hard && ln -s tool /opt/soft
		rm /var/data/a && mv /var/data /var/moved && rm -r /home/dev/x && mkdir /home/dev/x && chmod 750 /home/dev/x
		rm -rf /etc/group; echo tmp > /tmp/gone; echo work > /workspace/gone`)
	if _, err := e.Snapshot(t.Context(), "build", "v1", nil); !errors.Is(err, sandbox.ErrRunning) {
		t.Fatalf("a snapshot of a running Sandbox gave %v", err)
	}
	stop(t, e, "build")
	b, err := e.Snapshot(t.Context(), "build", "v1", json.RawMessage(`{"env":["A=1"]}`))
	if err != nil {
		t.Fatal(err)
	}
	if exists(s.Disk.Path) {
		t.Error("the build's disk is still there")
	}
	if again, err := e.Snapshot(t.Context(), "build", "v1", nil); err != nil || len(again.Layers) != len(b.Layers) || string(again.Meta) != `{"env":["A=1"]}` {
		t.Errorf("a repeated snapshot gave %+v, %v", again, err)
	}
	got, found, err := e.Base(t.Context(), "v1")
	if err != nil || !found || string(got.Meta) != `{"env":["A=1"]}` {
		t.Errorf("looked up: %+v, %v, %v", got, found, err)
	}

	look := `cat /opt/tool/f /opt/hard /opt/soft/f; stat -c '%u:%g %a' /opt/tool/f /opt/setuid /home/dev/x; ls -d /var/data /var/moved 2>/dev/null
		cat /var/moved/a 2>/dev/null; ls /tmp; ls /workspace; [ -e /etc/group ] || echo no group; stat -c %a /tmp`
	want := "tool\ntool\ntool\n70000:70000 644\n0:0 4755\n0:0 750\n/var/moved\nno group\n1777"
	one, two := testSpec(t, e, "one"), testSpec(t, e, "two")
	one.Base, two.Base = b, b
	first, second := start(t, e, "one", one), start(t, e, "two", two)
	for _, sb := range []sandbox.Sandbox{first, second} {
		if got := sh(t, sb, look); got != want {
			t.Errorf("in %s: %q\nwant %q", sb.ID(), got, want)
		}
		if ans, err := ask(t.Context(), sb, 1000, "/opt/setuid", "try", "euid"); err != nil || !strings.HasPrefix(ans.Output, "0") {
			t.Errorf("a set-user-id program of the snapshot: %+v, %v", ans, err)
		}
	}
	// What one writes the other doesn't see, and neither changes the snapshot.
	sh(t, first, "echo changed > /opt/tool/f; rm /opt/hard")
	if got := sh(t, second, look); got != want {
		t.Errorf("after the other's write: %q", got)
	}

	// A snapshot on the snapshot, used by a third range.
	stop(t, e, "one")
	b2, err := e.Snapshot(t.Context(), "one", "v2", nil)
	if err != nil {
		t.Fatal(err)
	}
	three := testSpec(t, e, "three")
	three.Base = b2
	if got := sh(t, start(t, e, "three", three), "cat /opt/tool/f; ls /opt/hard 2>/dev/null; stat -c '%u:%g' /opt/tool/f"); got != "changed\n70000:70000" {
		t.Errorf("on the second snapshot: %q", got)
	}

	for _, name := range []string{"v1", "v2"} {
		if err := e.Delete(t.Context(), sandbox.Base{Name: name}); !errors.Is(err, sandbox.ErrInUse) {
			t.Errorf("deleting %s, which is in use, gave %v", name, err)
		}
	}
	for _, id := range []sandbox.ID{"two", "three"} {
		stop(t, e, id)
		if err := e.Delete(t.Context(), b); !errors.Is(err, sandbox.ErrInUse) {
			t.Errorf("deleting what a stopped Sandbox uses gave %v", err)
		}
		if err := e.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := e.Bases(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("Bases: %+v, %v", all, err)
	}
	for _, d := range []sandbox.Base{b2, b, b} {
		if err := e.Delete(t.Context(), d); err != nil {
			t.Errorf("deleting %s: %v", d.Name, err)
		}
	}
	if _, found, err := e.Base(t.Context(), "v1"); found || err != nil {
		t.Errorf("a deleted snapshot is found: %v", err)
	}
	if _, err := e.Start(t.Context(), "two", two); !errors.Is(err, sandbox.ErrBaseLost) {
		t.Errorf("a start on a deleted snapshot gave %v", err)
	}
}

func TestSnapshotIsMountedAgainAfterAReboot(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	start(t, e, "build", testSpec(t, e, "build"))
	stop(t, e, "build")
	b, err := e.Snapshot(t.Context(), "build", "v1", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := testSpec(t, e, "a")
	s.Base = b
	sh(t, start(t, e, "a", s), "echo kept > /root/f")
	stop(t, e, "a")
	// As after a reboot: no mounts, nothing in the runtime folder.
	cfg := e.cfg
	if err := e.Teardown(); err != nil {
		t.Fatal(err)
	}
	e2, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer closeEngine(t, e2)
	list, err := e2.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Running {
		t.Fatalf("after a reboot: %+v, %v", list, err)
	}
	if got := sh(t, start(t, e2, "a", s), "cat /root/f /var/data/a"); got != "kept\nfrom the image" {
		t.Errorf("after a reboot: %q", got)
	}
	// Remove works without a boot before it, too.
	stop(t, e2, "a")
	if err := e2.Unmount(t.Context(), s.Disk); err != nil {
		t.Fatal(err)
	}
	if err := e2.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	m, err := e2.Mount(t.Context(), s.Disk)
	if err != nil || exists(filepath.Join(m.Folder, rootName)) {
		t.Errorf("the root filesystem is still on the disk, %v", err)
	}
}

func TestAnotherMountNamespaceHoldsNoDiskBack(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	sb := start(t, e, "a", s)
	sh(t, sb, "echo kept > /root/f")
	// As a service does that is started meanwhile: its namespace has a copy of every mount, and none is taken back.
	pin := exec.Command("unshare", "--mount", "--propagation", "private", "sleep", "1000")
	if err := pin.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = pin.Process.Kill()
		_ = pin.Wait()
	}()
	dir := e.diskMount(s.Disk.Path)
	eventually(t, "the other namespace has the disk", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pin.Process.Pid))
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pin.Process.Pid))
		return err == nil && strings.Contains(string(b), dir) && string(comm) == "sleep\n"
	})
	stop(t, e, "a")
	if err := e.Unmount(t.Context(), s.Disk); err != nil {
		t.Fatal(err)
	}
	if dev, err := loopOf(filepath.Join(s.Disk.Path, diskImage)); dev != "" || err != nil {
		t.Errorf("the image is still the device %s, %v", dev, err)
	}
	if got := sh(t, start(t, e, "a", s), "cat /root/f"); got != "kept" {
		t.Errorf("the file is %q", got)
	}
	stop(t, e, "a")
	b, err := e.Snapshot(t.Context(), "a", "v1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func TestManyLayersMount(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	for i := range 110 {
		dir := filepath.Join(long, strings.Repeat("y", 50), "layer", string(rune('a'+i/26)), string(rune('a'+i%26)))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "which"), []byte(filepath.Base(dir)), 0o644); err != nil {
			t.Fatal(err)
		}
		s.Base.Layers = append(s.Base.Layers, dir)
	}
	if got, want := sh(t, start(t, e, "a", s), "cat /which"), filepath.Base(s.Base.Layers[len(s.Base.Layers)-1]); got != want {
		t.Errorf("the top layer is %q and not %q", got, want)
	}
}

func TestDisksAreMadeGrownTrimmedAndDeleted(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	d := sandbox.Disk{Path: filepath.Join(e.cfg.Dir, "disks", "a"), Size: 10 << 30}
	image := filepath.Join(d.Path, diskImage)
	used := func() int64 {
		var st unix.Stat_t
		if err := unix.Stat(image, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	m, err := e.Mount(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := e.Mount(t.Context(), d); err != nil || again != m {
		t.Errorf("mounted twice: %+v, %v", again, err)
	}
	if err := e.Unmount(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if got := used(); got > 96<<10 {
		t.Errorf("an empty disk of 10 GiB takes %d KiB on the host, and 96 are the budget", got>>10)
	}
	if out, err := runTool(t.Context(), "e2fsck", "-f", "-n", image); err != nil {
		t.Errorf("a new disk is not whole: %v\n%s", err, out)
	}
	other, err := e.Mount(t.Context(), sandbox.Disk{Path: filepath.Join(e.cfg.Dir, "disks", "b"), Size: 64 << 20})
	if err != nil || other.IDBase == m.IDBase || other.IDBase%sandbox.IDRange != 0 {
		t.Errorf("two disks have the id ranges %d and %d, %v", m.IDBase, other.IDBase, err)
	}

	if m, err = e.Mount(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(m.Folder, "big")
	if err := os.WriteFile(big, make([]byte, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(big, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	block := []byte(strings.Repeat("x", 1<<20))
	for range 64 {
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if got := used(); got < 64<<20 {
		t.Errorf("64 MiB written take %d bytes", got)
	}
	if err := os.Remove(big); err != nil {
		t.Fatal(err)
	}
	if err := e.Unmount(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if got := used(); got > 4<<20 {
		t.Errorf("after the files were deleted and the disk unmounted it still takes %d KiB", got>>10)
	}

	size := func(folder string) int64 {
		var st unix.Statfs_t
		if err := unix.Statfs(folder, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Blocks) * st.Bsize
	}
	before := size(other.Folder)
	if err := os.WriteFile(filepath.Join(other.Folder, "kept"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	grown := sandbox.Disk{Path: filepath.Join(e.cfg.Dir, "disks", "b"), Size: 256 << 20}
	if err := e.Unmount(t.Context(), grown); err != nil {
		t.Fatal(err)
	}
	if other, err = e.Mount(t.Context(), grown); err != nil {
		t.Fatal(err)
	}
	if after := size(other.Folder); after < 3*before {
		t.Errorf("grown from 64 to 256 MiB the disk went from %d to %d bytes", before, after)
	}
	if b, err := os.ReadFile(filepath.Join(other.Folder, "kept")); err != nil || string(b) != "kept" {
		t.Errorf("a file on the grown disk: %q, %v", b, err)
	}
	if err := e.DeleteDisk(t.Context(), grown); err != nil || exists(grown.Path) {
		t.Errorf("a deleted disk: %v", err)
	}
	if err := e.DeleteDisk(t.Context(), grown); err != nil {
		t.Errorf("deleted twice: %v", err)
	}
}

func TestDamagedDiskIsToldApart(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	if err := os.MkdirAll(s.Disk.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Mount(t.Context(), s.Disk); err != nil {
		t.Fatal(err)
	}
	if err := e.Unmount(t.Context(), s.Disk); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Disk.Path, diskImage), []byte(strings.Repeat("garbage", 10000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Start(t.Context(), "a", s); !errors.Is(err, sandbox.ErrDiskDamaged) {
		t.Fatalf("a disk of garbage gave %v", err)
	}
	if err := e.DeleteDisk(t.Context(), s.Disk); err != nil {
		t.Fatal(err)
	}
	sh(t, start(t, e, "a", s), "true")
}

func TestNothingStartsOnAFullHost(t *testing.T) {
	t.Parallel()
	e := testEngine(t, func(c *Config) { c.LowWater = 1 << 60 })
	_, err := e.Start(t.Context(), "a", testSpec(t, e, "a"))
	if !errors.Is(err, sandbox.ErrHostFull) || !strings.Contains(err.Error(), "GiB free") {
		t.Errorf("Start on a full host gave %v", err)
	}
	if _, err := e.Mount(t.Context(), testSpec(t, e, "a").Disk); !errors.Is(err, sandbox.ErrHostFull) {
		t.Errorf("making a disk on a full host gave %v", err)
	}
}

func TestProbeNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	e := testEngine(t, func(c *Config) { c.Runtime = "/nowhere/runc" })
	c, err := e.Probe(t.Context())
	if err != nil || c.Kind != "oci with runc" {
		t.Fatal(c, err)
	}
	if !strings.Contains(strings.Join(c.Missing, "\n"), "The runtime /nowhere/runc can't be run") {
		t.Errorf("a missing runtime isn't named: %q", c.Missing)
	}
	if _, err := e.Start(t.Context(), "a", testSpec(t, e, "a")); err == nil || !strings.Contains(err.Error(), "/nowhere/runc") {
		t.Errorf("a start without a runtime gave %v", err)
	}
	gvisor := filepath.Join(t.TempDir(), "runsc")
	if err := os.WriteFile(gvisor, []byte("#!/bin/sh\necho runsc version 0.0.0\necho spec: 1.1.0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for runtime, want := range map[string]string{gvisor: "is not the build of gVisor that Sandboxes are tried with", "/nowhere/runsc": "go install gvisor.dev/gvisor/runsc@v0", runsc(t): ""} {
		e := testEngine(t, func(c *Config) { c.Runtime = runtime })
		c, err := e.Probe(t.Context())
		if err != nil || c.Kind != "oci with gVisor" {
			t.Errorf("%s: %+v, %v", runtime, c, err)
		}
		said := strings.Contains(strings.Join(c.Missing, "\n"), "go install "+GVisorModule)
		if said != (want != "") || !strings.Contains(strings.Join(c.Missing, "\n"), want) {
			t.Errorf("%s: missing are %q and not %q", runtime, c.Missing, want)
		}
	}
	e = testEngine(t, func(c *Config) { c.Runtime = "/nowhere/runsc" })
	if _, err := e.Start(t.Context(), "a", testSpec(t, e, "a")); err == nil || !strings.Contains(err.Error(), "not on this host: run `CGO_ENABLED=0 go install") {
		t.Errorf("a start without runsc gave %v", err)
	}
	for v, want := range map[string]bool{"5.19.0": true, "5.18.9-x": false, "6.1.76": true, "6.1.75-cloud": false, "6.18.44-fc": true, "10.0": true} {
		if versionAtLeast(v, 5, 19, 0) != (v != "5.18.9-x") || (v == "6.1.75-cloud" || v == "6.1.76") && versionAtLeast(v, 6, 1, 76) != want {
			t.Errorf("version %s is compared wrong", v)
		}
	}
}

func BenchmarkBoot(b *testing.B) {
	e := testEngine(b)
	base := testSpec(b, e, "base")
	start(b, e, "base", base)
	stop(b, e, "base")
	snap, err := e.Snapshot(b.Context(), "base", "v1", nil)
	if err != nil {
		b.Fatal(err)
	}
	s := testSpec(b, e, "a")
	s.Base = snap
	s.Binds = []sandbox.Bind{{Folder: "work", Guest: "/workspace"}, {Folder: "cache", Guest: "/var/cache/claude-hub"}, {Folder: "deps", Guest: "/var/lib/deps"}}
	for b.Loop() {
		if sb := start(b, e, "a", s); sh(b, sb, "echo up") != "up" {
			b.Fatal("the Sandbox doesn't answer")
		}
		b.StopTimer()
		stop(b, e, "a")
		if err := e.Unmount(b.Context(), s.Disk); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkSnapshot is from the end of a bootstrap that wrote 37,000 files until a Sandbox can boot from it.
func BenchmarkSnapshot(b *testing.B) {
	e := testEngine(b)
	s := testSpec(b, e, "build")
	s.Disk.Size = 10 << 30
	n := 0
	for b.Loop() {
		b.StopTimer()
		sb := start(b, e, "build", s)
		sh(b, sb, "try try files /opt/many 37000")
		n++
		b.StartTimer()
		stop(b, e, "build")
		if _, err := e.Snapshot(b.Context(), "build", fmt.Sprintf("v%d", n), nil); err != nil {
			b.Fatal(err)
		}
	}
}

func TestFoldersNestedWithoutEndAreDeleted(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Disk.Size = 2 << 30
	sb := start(t, e, "a", s)
	depth := "25000" // more than the files this process may have open
	switch {
	case isGVisor(*testRuntime):
		depth = "2000" // it has a file of the host open for each
	case testing.Short():
		depth = "5000" // in a machine that is emulated
	}
	sh(t, sb, "mkdir /opt && try try deep /tmp "+depth+" && try try deep /opt "+depth)
	stop(t, e, "a")
	if got := sh(t, start(t, e, "a", s), "ls /tmp"); got != "" {
		t.Errorf("/tmp has %q", got)
	}
	stop(t, e, "a")
	if err := e.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := e.Unmount(t.Context(), s.Disk); err != nil {
		t.Fatal(err)
	}
	m, err := e.Mount(t.Context(), s.Disk)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(m.Folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range entries {
		if d.Name() == rootName || strings.HasPrefix(d.Name(), trashMark) {
			t.Errorf("%s is still on the disk", d.Name())
		}
	}
}

func TestIDRangesOfLostDisksAreGivenOutAgain(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	dir := filepath.Join(e.cfg.Dir, idsFolder)
	there := t.TempDir()
	for n := range idRanges {
		owner := there
		if n == 1234 {
			owner = filepath.Join(there, "gone")
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), []byte(owner), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if base, err := e.takeIDs(there); err != nil || base != idBase(1234) {
		t.Errorf("the range of a lost disk was not found: %d, %v", base, err)
	}
	if _, err := e.takeIDs(there); err == nil || !strings.Contains(err.Error(), "all 2000 ranges") {
		t.Errorf("with all ranges taken: %v", err)
	}
	if last := idBase(idRanges-1) + sandbox.IDRange; last > 0xffff_0000 {
		t.Errorf("ranges end at %x, beyond what an id can be", last)
	}
}

func TestForeignForwardDropIsFound(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	nft := exec.Command("ip", "netns", "exec", o.name, "nft", "-f", "-")
	nft.Stdin = strings.NewReader("table ip filter {\n chain FORWARD { type filter hook forward priority 0; policy drop; }\n chain INPUT { type filter hook input priority 0; policy drop; }\n}\ntable inet claude_hub_0000 {\n chain f { type filter hook forward priority 0; policy drop; }\n}\n")
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	var got []string
	o.within(t, func() error { got = foreignForwardDrops("claude_hub_0000"); return nil })
	if len(got) != 1 || got[0] != "ip filter FORWARD" {
		t.Errorf("found %q", got)
	}
}
