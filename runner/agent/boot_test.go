package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const network = `{"hostname":"box-1","hosts":"127.0.0.1 localhost box-1\n","resolv":"nameserver 192.0.2.1\n"}`

func TestNetworkFilesAreWrittenAtBoot(t *testing.T) {
	t.Parallel()
	b := boot(t, image{Env: network, Files: map[string]string{"/etc/hosts": "old\n", "/precious": "untouched\n"},
		Links: map[string]string{"/etc/resolv.conf": "/precious"}})
	out := b.sh("cat /etc/hostname /etc/hosts /etc/resolv.conf /precious; stat -c '%F %a %u' /etc/resolv.conf /etc/hostname; ls -A /etc | grep claude; cat /proc/1/environ | tr '\\0' '\\n' | grep -c . || true")
	want := "box-1\n127.0.0.1 localhost box-1\nnameserver 192.0.2.1\nuntouched\nregular file 644 0\nregular file 644 0\n"
	if !strings.HasPrefix(out, want) {
		t.Errorf("%q", out)
	}
	if out := b.sh("env"); strings.Contains(out, BootEnv) {
		t.Errorf("the variable reaches processes: %q", out)
	}
	if h, err := b.Hello(ctx(t)); err != nil || len(h.Problems) != 0 {
		t.Errorf("%+v %v", h, err)
	}
}

func TestNetworkFilesThatCannotBeWrittenAreTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		im   image
		says string
	}{
		"a folder in its place": {image{Env: network, Files: map[string]string{"/etc/hosts/": "", "/etc/hosts/x": ""}}, "/etc/hosts was not written"},
		"no JSON":               {image{Env: "{"}, "not the JSON"},
	} {
		b := boot(t, c.im)
		h, err := b.Hello(ctx(t))
		if err != nil || len(h.Problems) != 1 || !strings.Contains(h.Problems[0], c.says) {
			t.Errorf("%s: %+v %v", name, h, err)
		}
	}
}

func TestALinkInPlaceOfEtcIsNotFollowed(t *testing.T) {
	t.Parallel()
	outside, root := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, root+"/etc"); err != nil {
		t.Fatal(err)
	}
	files, _ := readBoot(network)
	problems := writeBootFiles(root, files)
	if len(problems) != 1 || !strings.Contains(problems[0], "the image's /etc can't be used") {
		t.Errorf("%q", problems)
	}
	if left, _ := os.ReadDir(outside); len(left) != 0 {
		t.Errorf("written outside: %v", left)
	}
	empty := t.TempDir()
	if problems := writeBootFiles(empty, files); len(problems) != 0 {
		t.Errorf("an image without /etc: %q", problems)
	}
}

func TestTheAgentRefusesToBeAnythingButPID1(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("/proc/self/exe", "agent").CombinedOutput()
	var code int
	if e, ok := err.(*exec.ExitError); ok {
		code = e.ExitCode()
	}
	if code != 2 || !strings.Contains(string(out), "started by a Runner, not by hand") {
		t.Errorf("%s %v", out, err)
	}
}

func TestAnIdleAgentIsSmall(t *testing.T) {
	t.Parallel()
	b := boot(t, image{})
	b.sh("true")
	now, _ := b.rss()
	t.Logf("%.1f MB", float64(now)/(1<<20))
	if now > 18<<20 {
		t.Errorf("an idle agent has %d MB resident", now>>20)
	}
}

// cgroup makes a group of the host with children agent and user, and programs in that, and returns its folder.
func cgroup(t *testing.T, hierarchy string) string {
	t.Helper()
	dir := filepath.Join(hierarchy, fmt.Sprintf("claude-hub-agent-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	for _, d := range []string{dir, dir + "/agent", dir + "/user", dir + "/user/programs"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatalf("a cgroup for the test can't be made (run as root, with cgroups mounted): %v", err)
		}
		t.Cleanup(func() {
			until(t, "the cgroup's end", func() (bool, string) {
				err := os.Remove(d)
				return err == nil || os.IsNotExist(err), fmt.Sprint(err)
			})
		})
	}
	return dir
}

func (b *box) join(dir string) {
	b.t.Helper()
	if err := os.WriteFile(dir+"/agent/cgroup.procs", []byte(fmt.Sprint(b.pid)), 0); err != nil {
		b.t.Fatal(err)
	}
}

// hierarchies are the host's mounts of each controller, and of cgroup v2 under "unified".
func hierarchies(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, l := range strings.Split(string(raw), "\n") {
		f := strings.Fields(l)
		switch {
		case len(f) > 3 && f[2] == "cgroup2":
			out["unified"] = f[1]
		case len(f) > 3 && f[2] == "cgroup":
			for _, c := range strings.Split(f[3], ",") {
				out[c] = f[1]
			}
		}
	}
	if len(out) == 0 {
		t.Fatal("no cgroup hierarchy is mounted on this machine")
	}
	return out
}

func TestEveryProcessIsPutInTheUserCgroupBeforeItRuns(t *testing.T) {
	t.Parallel()
	for controller, mount := range hierarchies(t) {
		inside := "/sys/fs/cgroup/" + controller
		switch controller {
		case "unified":
			inside = "/sys/fs/cgroup"
		case "memory", "pids", "cpu":
		default:
			continue
		}
		dir := cgroup(t, mount)
		b := boot(t, image{Binds: map[string]string{dir: inside}})
		b.join(dir)
		want := filepath.Base(dir) + "/user\n"
		if controller == "unified" {
			want = filepath.Base(dir) + "/user/programs\n"
		}
		for _, user := range []string{"", "coder"} {
			out, _ := b.run(Cmd{Argv: []string{"sh", "-c", "cat /proc/self/cgroup"}, User: user})
			if !strings.Contains(out, want) {
				t.Errorf("%s, user %q: %q lacks %q", controller, user, out, want)
			}
		}
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", b.pid))
		if err != nil || !strings.Contains(string(raw), filepath.Base(dir)+"/agent\n") {
			t.Errorf("%s: the agent itself is in %q", controller, raw)
		}
	}
}

func TestAProcessThatCannotBePutUnderTheLimitsDoesNotRun(t *testing.T) {
	t.Parallel()
	b := boot(t, image{Links: map[string]string{}, Binds: map[string]string{"/dev/full": "/sys/fs/cgroup/pids/user/cgroup.procs"}})
	_, err := b.Start(ctx(t), Cmd{ID: "x", Argv: []string{"touch", "/tmp/ran"}})
	if err == nil || !strings.Contains(err.Error(), "could not be put under the Sandbox's limits: writing /sys/fs/cgroup/pids/user/cgroup.procs: no space left") {
		t.Errorf("%v", err)
	}
}

func TestOutOfMemoryIsToldAndTheAgentLives(t *testing.T) {
	t.Parallel()
	mounts := hierarchies(t)
	inside, limit, mount := "/sys/fs/cgroup/memory", "memory.limit_in_bytes", mounts["memory"]
	if mount == "" {
		inside, limit, mount = "/sys/fs/cgroup", "memory.max", mounts["unified"]
		os.WriteFile(mount+"/cgroup.subtree_control", []byte("+memory"), 0)
	}
	dir := cgroup(t, mount)
	if limit == "memory.max" {
		os.WriteFile(dir+"/cgroup.subtree_control", []byte("+memory"), 0)
	}
	if err := os.WriteFile(dir+"/user/"+limit, []byte("40000000"), 0); err != nil {
		t.Fatalf("no memory limit can be set for the test: %v", err)
	}
	b := boot(t, image{Binds: map[string]string{dir: inside}})
	b.join(dir)
	for name, argv := range map[string][]string{
		"the process itself": {"tail", "/dev/zero"},
		"a child":            {"sh", "-c", "tail /dev/zero; exit 4"},
	} {
		_, e := b.run(Cmd{Argv: argv})
		if !e.OOM || e.Code == 0 {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if _, e := b.run(Cmd{Argv: []string{"sh", "-c", "exit 4"}}); e.OOM || e.Code != 4 {
		t.Errorf("%+v", e)
	}
}

func TestAFullPidsLimitLeavesTheAgentAbleToStopIt(t *testing.T) {
	t.Parallel()
	mounts := hierarchies(t)
	inside, mount := "/sys/fs/cgroup/pids", mounts["pids"]
	if mount == "" {
		inside, mount = "/sys/fs/cgroup", mounts["unified"]
		os.WriteFile(mount+"/cgroup.subtree_control", []byte("+pids"), 0)
	}
	dir := cgroup(t, mount)
	if inside == "/sys/fs/cgroup" {
		os.WriteFile(dir+"/cgroup.subtree_control", []byte("+pids"), 0)
	}
	for file, n := range map[string]string{"/pids.max": "292", "/user/pids.max": "100"} {
		if err := os.WriteFile(dir+file, []byte(n), 0); err != nil {
			t.Fatalf("no pids limit can be set for the test: %v", err)
		}
	}
	b := boot(t, image{Binds: map[string]string{dir: inside}})
	b.join(dir)
	bomb := b.start(Cmd{Argv: []string{"bash", "-c", "echo up; while :; do sleep 1000 & done 2>/dev/null"}, User: "coder"})
	b.wrote(bomb, "up")
	until(t, "a full limit", func() (bool, string) {
		raw, _ := os.ReadFile(dir + "/user/pids.current")
		return strings.TrimSpace(string(raw)) >= "100", string(raw)
	})
	if _, err := b.Processes(ctx(t)); err != nil {
		t.Error(err)
	}
	if out, e := b.run(Cmd{Argv: []string{"echo", "still"}}); out != "still\n" || e.Code != 0 {
		t.Errorf("%q %+v", out, e)
	}
	if err := b.Signal(ctx(t), bomb, 9, true); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of all", func() (bool, string) { n := b.names(); return n == "", n })
}
