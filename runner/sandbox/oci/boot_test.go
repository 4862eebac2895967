package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

func TestSandboxBootsAndRunsPrograms(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Binds = []sandbox.Bind{{Folder: "work", Guest: "/workspace", UID: 1000, GID: 1000}}
	sb := start(t, e, "a", s)

	if got := sh(t, sb, "hostname; cat /etc/hostname"); got != "box-a\nbox-a" {
		t.Errorf("hostname is %q", got)
	}
	if got := sh(t, sb, "stat -c '%a %u:%g' /tmp /workspace /dev/shm /run /run/lock"); got != "1777 0:0\n755 1000:1000\n1777 0:0\n755 0:0\n1777 0:0" {
		t.Errorf("folders are %q", got)
	}
	if got := sh(t, sb, "cat /proc/1/cmdline | tr '\\0' ' '"); !strings.HasPrefix(got, agentGuestPath) {
		t.Errorf("PID 1 is %q", got)
	}
	if got := sh(t, sb, "cat /proc/self/oom_score_adj; ulimit -Hc"); got != "0\n0" {
		t.Errorf("oom_score_adj and the hard limit of core files are %q", got)
	}
	if got := sh(t, sb, "head -c 5 /dev/zero | wc -c; ls /dev/pts /dev/fd >/dev/null && cat /var/data/a"); got != "5\nfrom the image" {
		t.Errorf("devices or layer: %q", got)
	}
	if ans, err := ask(t.Context(), sb, 1000, "sh", "-c", "echo hi > /workspace/f && echo hi > /tmp/f && id -u"); err != nil || ans.Code != 0 || ans.Output != "1000\n" {
		t.Errorf("a user's program: %+v %v", ans, err)
	}
	if _, err := os.Stat(filepath.Join(e.diskMount(s.Disk.Path), "work", "f")); err != nil {
		t.Errorf("what was written to a bound folder is not on the disk: %v", err)
	}
	if ans, err := ask(t.Context(), sb, 0, "sh", "-c", "kill -9 $$"); err != nil || ans.Code != 137 {
		t.Errorf("a killed program: %+v %v", ans, err)
	}
}

func TestStartOfARunningSandboxReturnsIt(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	first := start(t, e, "a", s)
	second := start(t, e, "a", s)
	if first.Generation() != second.Generation() {
		t.Error("the same Spec booted a second time")
	}
	other := s
	other.Limits.CPU = 2
	if _, err := e.Start(t.Context(), "a", other); !errors.Is(err, sandbox.ErrRunning) {
		t.Errorf("another Spec on a running Sandbox gave %v", err)
	}
	onSameDisk := s
	if _, err := e.Start(t.Context(), "b", onSameDisk); !errors.Is(err, sandbox.ErrRunning) {
		t.Errorf("a second Sandbox on one disk gave %v", err)
	}
	sh(t, first, "true")
	list, err := e.List(t.Context())
	if err != nil || len(list) != 1 || !list[0].Running || list[0].Generation != first.Generation() {
		t.Errorf("List is %+v, %v", list, err)
	}
}

func TestStoppedSandboxGoesOnWithItsFiles(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Binds = []sandbox.Bind{{Folder: "work", Guest: "/workspace"}}
	sb := start(t, e, "a", s)
	sh(t, sb, "echo root > /etc/mine; echo work > /workspace/mine; echo tmp > /tmp/mine; chmod 700 /tmp; rm /var/data/a; mv /var/data /var/moved")
	stop(t, e, "a")
	<-sb.Done()
	if _, err := e.Open(t.Context(), "a"); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("Open of a stopped Sandbox gave %v", err)
	}
	if err := e.Unmount(t.Context(), s.Disk); err != nil {
		t.Fatal(err)
	}
	again := start(t, e, "a", s)
	if again.Generation() == sb.Generation() {
		t.Error("two boots have one generation")
	}
	if got := sh(t, again, "cat /etc/mine /workspace/mine; ls /tmp; stat -c %a /tmp; ls -d /var/*"); got != "root\nwork\n1777\n/var/moved" {
		t.Errorf("after the second boot: %q", got)
	}
	stop(t, e, "a")

	other := s
	other.Base.Layers = append([]string{t.TempDir()}, s.Base.Layers...)
	if _, err := e.Start(t.Context(), "a", other); !errors.Is(err, sandbox.ErrOtherBase) {
		t.Fatalf("another base under an old root filesystem gave %v", err)
	}
	if err := e.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Open(t.Context(), "a"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Open of a removed Sandbox gave %v", err)
	}
	fresh := start(t, e, "a", other)
	if got := sh(t, fresh, "ls /etc/mine 2>/dev/null; cat /workspace/mine /var/data/a"); got != "work\nfrom the image" {
		t.Errorf("on the new base: %q", got)
	}
}

func TestBadSpecsAreRefusedBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	for name, change := range map[string]func(*sandbox.Spec){
		"dot in a guest path":    func(s *sandbox.Spec) { s.Binds = []sandbox.Bind{{Folder: "c", Guest: "/root/.cache"}} },
		"guest path not clean":   func(s *sandbox.Spec) { s.Binds = []sandbox.Bind{{Folder: "c", Guest: "/a/../../b"}} },
		"guest path over /proc":  func(s *sandbox.Spec) { s.Binds = []sandbox.Bind{{Folder: "c", Guest: "/proc/x"}} },
		"folder out of the disk": func(s *sandbox.Spec) { s.Binds = []sandbox.Bind{{Folder: "../c", Guest: "/c"}} },
		"the root's own folder":  func(s *sandbox.Spec) { s.Binds = []sandbox.Bind{{Folder: "root", Guest: "/c"}} },
		"writable host folder":   func(s *sandbox.Spec) { s.Binds = []sandbox.Bind{{Folder: "/etc", Guest: "/c"}} },
		"the same guest path": func(s *sandbox.Spec) {
			s.Binds = []sandbox.Bind{{Folder: "c", Guest: "/c"}, {Folder: "d", Guest: "/c"}}
		},
		"a Store with a dot":  func(s *sandbox.Spec) { s.Store = &sandbox.Store{Folder: "a.b", Own: "c"} },
		"the root as a Store": func(s *sandbox.Spec) { s.Store = &sandbox.Store{Folder: "root", Own: "c"} },
		"the agent's own folder": func(s *sandbox.Spec) {
			s.Store = &sandbox.Store{Folder: "a", Own: "c"}
			s.Binds = []sandbox.Bind{{Folder: "a/c", Guest: "/c"}}
		},
		"a folder in what is no Store": func(s *sandbox.Spec) { s.Binds = []sandbox.Bind{{Folder: "a/c", Guest: "/c"}} },
		"a folder out of the Store": func(s *sandbox.Spec) {
			s.Store = &sandbox.Store{Folder: "a", Own: "c"}
			s.Binds = []sandbox.Bind{{Folder: "a/../root", Guest: "/c"}}
		},
		"owner beyond the range":   func(s *sandbox.Spec) { s.Binds = []sandbox.Bind{{Folder: "c", Guest: "/c", UID: sandbox.IDRange}} },
		"too little memory":        func(s *sandbox.Spec) { s.Limits.Memory = 1 << 20 },
		"too few processes":        func(s *sandbox.Spec) { s.Limits.Pids = 10 },
		"no CPU":                   func(s *sandbox.Spec) { s.Limits.CPU = 0 },
		"no layers":                func(s *sandbox.Spec) { s.Base.Layers = nil },
		"hostname with a line end": func(s *sandbox.Spec) { s.Hostname = "a\nb" },
		"tiny disk":                func(s *sandbox.Spec) { s.Disk.Size = 1 },
		"relative disk":            func(s *sandbox.Spec) { s.Disk.Path = "disk" },
	} {
		s := testSpec(t, e, "a")
		change(&s)
		if _, err := e.Start(t.Context(), "a", s); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := e.Start(t.Context(), "../a", testSpec(t, e, "a")); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("an id with a path in it gave %v", err)
	}
	s := testSpec(t, e, "a")
	s.Base.Layers = []string{"/nowhere/at/all"}
	if _, err := e.Start(t.Context(), "a", s); !errors.Is(err, sandbox.ErrBaseLost) {
		t.Errorf("a missing layer gave %v", err)
	}
}

func TestHostFoldersAreReadOnlyAndNotTheSandboxes(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	shared := t.TempDir()
	if err := os.WriteFile(filepath.Join(shared, "ca.pem"), []byte("ca"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(shared, 0o755), os.Chmod(filepath.Dir(shared), 0o755)); err != nil {
		t.Fatal(err)
	}
	s := testSpec(t, e, "a")
	s.Nested = true // all capabilities, so that remounting is tried with everything a Sandbox can have
	s.Binds = []sandbox.Bind{{Folder: shared, Guest: "/opt/shared", ReadOnly: true},
		{Folder: filepath.Join(shared, "ca.pem"), Guest: "/etc/ca.pem", ReadOnly: true}}
	sb := start(t, e, "a", s)
	if got := sh(t, sb, "cat /opt/shared/ca.pem /etc/ca.pem"); got != "caca" {
		t.Errorf("shared files read %q", got)
	}
	for _, target := range []string{"/opt/shared/ca.pem", "/etc/ca.pem", agentGuestPath} {
		refused(t, sb, "echo x > "+target)
		refused(t, sb, "mount -o remount,rw,bind "+target+" 2>/dev/null; mount -o remount,rw,bind /opt/shared 2>/dev/null; echo x > "+target)
		if isGVisor(*testRuntime) {
			// Once it takes the mount for writable, gVisor says yes to these, and keeps it to itself.
			sh(t, sb, "chown 1000:1000 "+target+"; chmod 777 "+target+"; touch -d @1 "+target+"; true")
		} else {
			refused(t, sb, "chown 0:0 "+target)
		}
	}
	for _, file := range []string{filepath.Join(shared, "ca.pem"), e.cfg.Agent[0]} {
		fi, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != 0 || st.Gid != 0 || fi.Mode().Perm() == 0o777 || fi.ModTime().Unix() == 1 {
			t.Errorf("the host's %s is of %d:%d, %s, of %s now", file, st.Uid, st.Gid, fi.Mode(), fi.ModTime())
		}
	}
	if b, err := os.ReadFile(filepath.Join(shared, "ca.pem")); err != nil || string(b) != "ca" {
		t.Errorf("the host's file is now %q, %v", b, err)
	}
}

func TestStopWithGraceLetsProgramsEnd(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Binds = []sandbox.Bind{{Folder: "work", Guest: "/workspace"}}
	sb := start(t, e, "a", s)
	sh(t, sb, "(trap 'echo ended > /workspace/ended; exit' TERM; echo on > /workspace/on; while :; do sleep 0.05; done) >/dev/null 2>&1 &")
	eventually(t, "the program waits", func() bool { return sh(t, sb, "cat /workspace/on 2>/dev/null; true") == "on" })
	began := time.Now()
	if err := e.Stop(t.Context(), "a", 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("stopping took %s although nothing was left", took)
	}
	b, err := os.ReadFile(filepath.Join(e.diskMount(s.Disk.Path), "work", "ended"))
	if err != nil || string(b) != "ended\n" {
		t.Errorf("the program was not asked to end: %q, %v", b, err)
	}
	// One that doesn't listen ends with the grace.
	sb = start(t, e, "a", s)
	sh(t, sb, "(trap '' TERM; while :; do sleep 0.05; done) >/dev/null 2>&1 &")
	if err := e.Stop(t.Context(), "a", 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	select {
	case <-sb.Done():
	default:
		t.Error("after Stop the Sandbox isn't done")
	}
	if err := e.Stop(t.Context(), "a", time.Second); err != nil {
		t.Errorf("stopping twice: %v", err)
	}
	if err := e.Stop(t.Context(), "unknown", time.Second); err != nil {
		t.Errorf("stopping what is unknown: %v", err)
	}
}

func TestSandboxWhosePID1DiedIsBootedAgain(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	sb := start(t, e, "a", s)
	if err := unix.Kill(e.box("a").boot.Process.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-sb.Done():
	case <-time.After(time.Minute):
		t.Fatal("Done is not closed")
	}
	if _, err := sb.Dial(t.Context()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("dialling a dead agent gave %v", err)
	}
	if list, err := e.List(t.Context()); err != nil || len(list) != 1 || list[0].Running {
		t.Errorf("List: %+v, %v", list, err)
	}
	again := start(t, e, "a", s)
	if again.Generation() == sb.Generation() {
		t.Error("a dead Sandbox was returned")
	}
	sh(t, again, "true")
}

func TestManyStartsAndStopsAtOnce(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if i%2 == 0 {
				if _, err := e.Start(t.Context(), "a", s); err != nil {
					t.Errorf("Start: %v", err)
				}
				return
			}
			if err := e.Stop(t.Context(), "a", 0); err != nil {
				t.Errorf("Stop: %v", err)
			}
		})
	}
	for i := range 4 {
		wg.Go(func() {
			id := sandbox.ID(fmt.Sprintf("other-%d", i))
			other := testSpec(t, e, string(id))
			sb, err := e.Start(t.Context(), id, other)
			if err != nil {
				t.Errorf("Start: %v", err)
				return
			}
			if ans, err := ask(t.Context(), sb, 0, "true"); err != nil || ans.Code != 0 {
				t.Errorf("%s: %+v, %v", id, ans, err)
			}
		})
	}
	wg.Wait()
	sh(t, start(t, e, "a", s), "true")
}

// The runtime is started before the disk is ready: one that gets nothing to boot must not stay.
func TestABootThatFailsBeforeTheRuntimeHasItsSpecLeavesNoProcess(t *testing.T) {
	t.Parallel()
	e := testEngine(t)
	s := testSpec(t, e, "a")
	s.Binds = append(s.Binds, sandbox.Bind{Folder: "/nowhere/to-be-found", Guest: "/mnt"})
	if _, err := e.Start(t.Context(), "a", s); err == nil || !strings.Contains(err.Error(), "/nowhere/to-be-found") {
		t.Fatalf("want an error that names the folder, got %v", err)
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), e.bundleDir("a")) {
			t.Errorf("a process is left: %q", b)
		}
	}
	s.Binds = s.Binds[:len(s.Binds)-1]
	start(t, e, "a", s)
}
