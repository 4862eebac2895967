package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// boot is a Session's first boot from a build: its disk made and its Workspace cloned, from there until /bin/true was
// answered. The peer gives its container neither limits, nor seccomp, nor a user namespace, nor a network. In boot_alike it
// gives at least the first two. Both peers also take away what they made, which ours does later.
func boot(t *testing.T, b *bench) {
	h := b.host(t)
	r := h.recipe("")
	h.build(r)
	ours := func() float64 {
		s := h.start(r)
		s.run("/bin/true")
		took := time.Since(h.engine.began())
		s.remove()
		return ms(took)
	}
	var alike []float64
	peer := func() float64 {
		c := b.containerd(t)
		run := func(args ...string) float64 {
			args = append(append([]string{"run", "--rm"}, args...), peerImage, c.id(), "/bin/true")
			return c.took(func() { c.ctr(args...) })
		}
		alike = append(alike, run("--seccomp", "--cpus", "2", "--memory-limit", strconv.Itoa(2<<30)))
		return run()
	}
	a, p := b.inTurns(ours, peer)
	record("boot", "ms", a, "ctr run --rm", p)
	if b.peers {
		alike = alike[b.warmUps:]
	}
	record("boot_alike", "ms", a, "ctr run --rm --seccomp --cpus --memory-limit", alike)
}

// many writes 37,000 files of 4,000 bytes, as a bootstrap that installs dependencies does.
const many = `python3 -c '
import os
body = os.urandom(4000)
for i in range(37000):
    folder = "/opt/many/%d" % (i // 100)
    if i % 100 == 0:
        os.makedirs(folder)
    with open(folder + "/%d" % i, "wb") as f:
        f.write(body)
'`

// snapshot is from the end of a bootstrap that wrote 37,000 files of 4,000 bytes until the build is durable and can be
// booted from; snapshot_boot until a command was answered in a Session's Sandbox that was. The peer ends its task,
// commits its snapshot, and syncs the file system, since containerd syncs nothing.
func snapshot(t *testing.T, b *bench) {
	h := b.host(t)
	n := 0
	var booted []float64
	ours := func() float64 {
		n++
		r := h.recipe(fmt.Sprintf("# %d\n%s", n, many))
		base := h.build(r)
		took := h.engine.sealed()
		s := h.start(r)
		s.run("test", "-s", "/opt/many/369/36999")
		booted = append(booted, ms(took+time.Since(h.engine.began())))
		s.remove()
		h.check(h.engine.Delete(context.Background(), base.Base))
		return ms(took)
	}
	peer := func() float64 {
		c := b.containerd(t)
		id := c.sleeper()
		c.ctr("task", "exec", "--exec-id", "write", id, "sh", "-c", many)
		took := c.took(func() {
			c.ctr("task", "rm", "--force", id)
			c.ctr("snapshot", "commit", "s-"+id, id)
			if out, err := exec.Command("sync", "-f", c.dir).CombinedOutput(); err != nil {
				t.Fatalf("sync: %v: %s", err, out)
			}
		})
		c.remove(id)
		c.ctr("snapshot", "rm", "s-"+id)
		return took
	}
	a, p := b.inTurns(ours, peer)
	record("snapshot", "ms", a, "ctr task rm, snapshot commit, sync", p)
	record("snapshot_boot", "ms", booted[b.warmUps:], "", nil)
}

// sessionDisk is what a second Session on a build takes of the host's disk before anybody works in it: awake, and after
// it was put to sleep.
func sessionDisk(t *testing.T, b *bench) {
	h := b.host(t)
	r := h.recipe("")
	h.build(r)
	first := h.start(r)
	defer first.remove()
	var asleep []float64
	a, _ := b.inTurns(func() float64 {
		s := h.start(r)
		s.run("/bin/true")
		up := taken(t, s.disk())
		h.check(s.Sleep(context.Background(), 0))
		asleep = append(asleep, taken(t, s.disk()))
		s.remove()
		return up
	}, nil)
	record("session_disk", "KB", a, "", nil)
	record("session_disk_asleep", "KB", asleep[b.warmUps:], "", nil)
}

// taken is the space below a folder in kB, as du counts it, after what is on its way to the disk has arrived.
func taken(t *testing.T, dir string) float64 {
	t.Helper()
	if out, err := exec.Command("sync", "-f", dir).CombinedOutput(); err != nil {
		t.Fatalf("sync: %v: %s", err, out)
	}
	out, err := exec.Command("du", "-s", "--block-size=1", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	var bytes float64
	if _, err := fmt.Sscan(string(out), &bytes); err != nil {
		t.Fatal(err)
	}
	return bytes / 1000
}

// sandboxMemory is what of agent and runtime is resident for a Sandbox in which nothing runs: all processes in its cgroup,
// and all others that name it. With runc that is PID 1 alone. Most of it is the binary's pages, which all Sandboxes and
// the Runner share; sandbox_anonymous is what each has of its own.
func sandboxMemory(t *testing.T, b *bench) {
	h := b.host(t)
	r := h.recipe("")
	h.build(r)
	var own []float64
	ours := func() float64 {
		s := h.start(r)
		s.run("/bin/true")
		idle(t)
		total, anonymous := residentOf(t, string(s.box()))
		own = append(own, anonymous)
		s.remove()
		return total
	}
	peer := func() float64 {
		c := b.containerd(t)
		id := c.sleeper()
		idle(t)
		total, _ := residentOf(t, "-id "+id+" ")
		c.remove(id)
		return total
	}
	a, p := b.inTurns(ours, peer)
	record("sandbox_rss", "MB", a, "containerd-shim", p)
	record("sandbox_anonymous", "MB", own[b.warmUps:], "", nil)
}

// idle lets a process come to rest.
func idle(t *testing.T) {
	t.Helper()
	select {
	case <-time.After(time.Second):
	case <-t.Context().Done():
	}
}

// residentOf sums the resident memory of all processes whose command line or cgroup holds a text, in MB: all of it, and
// what is anonymous of it.
func residentOf(t *testing.T, text string) (total, anonymous float64) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range dirs {
		line, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		group, _ := os.ReadFile(filepath.Join(d, "cgroup"))
		if !strings.Contains(strings.ReplaceAll(string(line), "\x00", " ")+string(group), text) {
			continue
		}
		found++
		total += status(t, d, "VmRSS")
		anonymous += status(t, d, "RssAnon")
	}
	if found == 0 {
		t.Fatalf("no process names %q", text)
	}
	return total, anonymous
}

// status reads one size of a process, in MB.
func status(t *testing.T, proc, key string) float64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(l, key+":"); ok {
			var kib float64
			if _, err := fmt.Sscan(v, &kib); err != nil {
				t.Fatal(err)
			}
			return kib * 1024 / 1e6
		}
	}
	t.Fatalf("%s has no %s", proc, key)
	return 0
}
