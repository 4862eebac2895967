package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// storeSpec is a Sandbox with a Workspace in a Store.
func storeSpec(t testing.TB, e *Engine, name string) sandbox.Spec {
	s := testSpec(t, e, name)
	s.Store = &sandbox.Store{Folder: "session", Own: "dependencies"}
	s.Binds = []sandbox.Bind{{Folder: "session/workspace", Guest: "/workspace", UID: 1000, GID: 1000},
		{Folder: "session/cache", Guest: "/var/cache/claude-hub", UID: 1000, GID: 1000}}
	return s
}

func bindFolders(t testing.TB, sb sandbox.Sandbox) []string {
	t.Helper()
	got, err := client(sb).Bind(t.Context(), agent.Folders{Patterns: []agent.Pattern{{Pattern: "**/node_modules", Beside: "package.json"}},
		User: "dev", Guest: "/workspace", Workspace: "workspace", Own: "dependencies"})
	if err != nil {
		t.Fatalf("Bind: %v", err)
	}
	var out []string
	for _, f := range got.Folders {
		out = append(out, strings.TrimSpace(f.State+" "+f.Path+" "+f.Err))
	}
	return append(out, got.Problems...)
}

// dev wants a line of shell to succeed as the image's user in the Workspace.
func dev(t testing.TB, sb sandbox.Sandbox, line string) string {
	t.Helper()
	ans, err := ask(t.Context(), sb, 1000, "sh", "-c", "cd /workspace && "+line)
	if err != nil || ans.Code != 0 {
		t.Fatalf("%s: %+v, %v", line, ans, err)
	}
	return strings.TrimSpace(ans.Output)
}

func TestDependencyFoldersOutliveTheSandbox(t *testing.T) {
	onlyRunc(t, "dependency folders stay in the Workspace there")
	t.Parallel()
	for _, nested := range []bool{false, true} {
		t.Run(fmt.Sprintf("nested=%v", nested), func(t *testing.T) { foldersOutlive(t, nested) })
	}
}

func foldersOutlive(t *testing.T, nested bool) {
	t.Parallel()
	e := testEngine(t)
	s := storeSpec(t, e, "a")
	s.Nested = nested
	m, err := e.Mount(t.Context(), s.Disk)
	if err != nil {
		t.Fatal(err)
	}
	sb := start(t, e, "a", s)
	dev(t, sb, "mkdir -p web/node_modules/x && echo 1 > web/node_modules/x/y && echo {} > package.json")
	if got := bindFolders(t, sb); !slices.Equal(got, []string{"new node_modules", "moved web/node_modules"}) {
		t.Errorf("the first boot: %q", got)
	}
	dev(t, sb, "echo 2 > node_modules/z && rm -rf web/node_modules/x && mv node_modules other && mkdir node_modules && echo 3 > node_modules/z")
	stop(t, e, "a")
	if err := e.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	sb = start(t, e, "a", s)
	if got := bindFolders(t, sb); !slices.Equal(got, []string{"bound node_modules", "bound web/node_modules"}) {
		t.Errorf("a boot after the Sandbox was removed: %q", got)
	}
	if got := dev(t, sb, "cat node_modules/z other/z; ls web/node_modules; rm -rf node_modules other; ls"); got != "3\n2\npackage.json\nweb" {
		t.Errorf("in it: %q", got)
	}
	stop(t, e, "a")
	if fi, err := os.Stat(filepath.Join(m.Folder, "session")); err != nil || fi.Mode().Perm() != 0o755 || fi.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the Store on the host: %v, %v", fi, err)
	}
}

func TestAStoreGivesASandboxNothingThatOthersLack(t *testing.T) {
	onlyRunc(t, "dependency folders stay in the Workspace there")
	t.Parallel()
	e := testEngine(t)
	plain := start(t, e, "plain", testSpec(t, e, "plain"))
	sb := start(t, e, "store", storeSpec(t, e, "store"))
	dev(t, sb, "mkdir node_modules && touch node_modules/secret")
	bindFolders(t, sb)
	for _, bound := range []func() string{
		func() string { return sh(t, sb, "grep ^Cap /proc/self/status") },
		func() string { return sh(t, sb, "try-setuid try caps") },
	} {
		got := bound()
		sb, plain = plain, sb
		if want := bound(); got != want {
			t.Errorf("capabilities are %q with a Store and %q without", got, want)
		}
		sb, plain = plain, sb
	}
	for _, line := range []string{
		"umount /workspace/node_modules", "umount -l /run/claude-hub/store", "mount -t tmpfs none /mnt", "mount -o remount,rw /run/claude-hub/store",
		"unshare -U true", "unshare -m true", "try try userns", "try try mount", "nsenter -t 1 -m true", "hostname x",
		"ls /run/claude-hub/store/dependencies", "cat /proc/1/environ", "ls /proc/1/root/", "touch /run/claude-hub/store/x",
	} {
		refused(t, sb, line)
	}
	if got := sh(t, sb, "grep -c NoNewPrivs:.*0 /proc/self/status"); got != "1" {
		t.Errorf("a process may gain no privileges, so sudo fails: %q", got)
	}
}

// Whoever updates the profile has to tell the agent's filter what CAP_SYS_ADMIN opens there.
func TestTheAgentWithholdsEachCallThatItsCapabilitiesOpen(t *testing.T) {
	t.Parallel()
	opened := func(caps []string) map[string]string {
		s := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}}, Linux: &specs.Linux{}}
		p, err := seccompProfile(s, false)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, r := range p.Syscalls {
			for _, n := range r.Names {
				if r.Action == specs.ActAllow && out[n] != "always" {
					if out[n] = "sometimes"; len(r.Args) == 0 {
						out[n] = "always"
					}
				}
			}
		}
		return out
	}
	without := opened(grantedCapabilities(false))
	var got []string
	for n, how := range opened(append(grantedCapabilities(false), capabilityTexts(withheld(sandbox.Spec{Store: &sandbox.Store{}}))...)) {
		if without[n] != how {
			got = append(got, n)
		}
	}
	slices.Sort(got)
	// refused in runner/agent/filter.go, and clone and clone3. umount(2) is of 32-bit machines.
	want := []string{"clone", "clone3", "fsconfig", "fsmount", "fsopen", "fspick", "lsm_get_self_attr", "lsm_list_modules", "lsm_set_self_attr",
		"mount", "mount_setattr", "move_mount", "open_tree", "pidfd_getfd", "process_madvise", "setdomainname", "sethostname", "setns", "umount",
		"umount2", "unshare"}
	if !slices.Equal(got, want) {
		t.Errorf("the agent's capabilities open %q; its filter knows of %q", got, want)
	}
}
