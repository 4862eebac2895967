package image_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/claude-hub/claude-hub/runner/image"
	. "github.com/claude-hub/claude-hub/runner/image/imagetest"
)

func TestDebootstrapMakesADebianThatWorks(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a Debian, which takes about a minute")
	}
	t.Parallel()
	img := Debian(t)
	if !strings.HasPrefix(img.Names[0], "claude-hub-test/debian:") || len(img.Layers) != 1 || img.Size < 100<<20 {
		t.Fatalf("got %+v", img)
	}
	if again, err := DebianStore(t).Pull(t.Context(), img.Names[0], nil); err != nil || again.Digest != img.Digest {
		t.Fatalf("pulling it by name: %+v, %v", again, err)
	}
	root := img.Layers[0]
	for _, empty := range []string{"dev", "proc", "sys", "run", "tmp", "var/lib/apt/lists"} {
		if got := names(t, root, empty); len(got) != 0 {
			t.Errorf("/%s has %v", empty, got)
		}
	}
	for _, host := range []string{"etc/hostname", "etc/resolv.conf"} {
		if _, err := os.Lstat(filepath.Join(root, host)); err == nil {
			t.Errorf("/%s of this host is in the image", host)
		}
	}
	if st := stat(t, root, "tmp"); st.Mode&0o7777 != 0o1777 {
		t.Errorf("/tmp has mode %o", st.Mode&0o7777)
	}
	if st := stat(t, root, "usr/bin/sudo"); st.Mode&syscall.S_ISUID == 0 {
		t.Error("sudo isn't setuid")
	}
	if s := read(t, root, "etc/apt/sources.list"); strings.Count(s, "\n") < 2 || !strings.Contains(s, "bookworm-updates") {
		t.Errorf("apt's sources are %q", s)
	}
	cmd := exec.Command("/bin/bash", "-c", "git --version && python3 -c 'print(6*7)' && getcap /usr/bin/ping && test ! -s /etc/machine-id")
	cmd.Env = img.Config.Env
	cmd.Dir = "/"
	merged := mount(t, img.Layers)
	if err := syscall.Mount("/dev", filepath.Join(merged, "dev"), "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(filepath.Join(merged, "dev"), syscall.MNT_DETACH) })
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: merged}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "42\n") || !strings.Contains(string(out), "cap_net_raw") {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestDebootstrapRefusesWhatIsNotANameAndNeverPassesItOn(t *testing.T) {
	t.Parallel()
	s := open(t, image.Options{})
	for _, o := range []image.DebootstrapOptions{
		{Suite: "--help"}, {Suite: "../../x"}, {Include: []string{"git", "--extra"}}, {Include: []string{"a,b"}}, {Mirror: "-x"}, {Name: "Bad Name"},
	} {
		_, err := s.Debootstrap(t.Context(), o, nil)
		refused(t, err, image.BadReference)
	}
	_, err := open(t, image.Options{Platform: "linux/s390x"}).Debootstrap(t.Context(), image.DebootstrapOptions{}, nil)
	refused(t, err, image.NoPlatform, "this host's linux/")
}

func TestDebootstrapOfAnUnknownReleaseSaysSo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := openAt(t, dir, image.Options{}).Debootstrap(t.Context(), image.DebootstrapOptions{Suite: "nosuch"}, nil)
	refused(t, err, image.NotFound, "no release \"nosuch\"")
	if got := append(names(t, dir, "layers"), names(t, dir, "images")...); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestACancelledDebootstrapLeavesNoProcessAndNoFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	log := &cancelOn{word: "Validating", cancel: cancel}
	if _, err := openAt(t, dir, image.Options{}).Debootstrap(ctx, image.DebootstrapOptions{Include: []string{}}, log); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v; debootstrap said:\n%s", err, log.text.String())
	}
	if got := names(t, dir, "layers"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounted below the store: %v", err)
	}
	if got := running(dir); got != "" {
		t.Errorf("still running: %s", got)
	}
}

// running returns the command line of a process that names dir.
func running(dir string) string {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range all {
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte(dir)) {
			return strings.ReplaceAll(string(b), "\x00", " ")
		}
	}
	return ""
}

func TestAKilledRunnerTakesItsDebootstrapWithIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	child := startChild(t, "IMAGE_TEST_DEBOOTSTRAP="+dir)
	until(t, "debootstrap to begin", func() bool {
		begun, _ := filepath.Glob(filepath.Join(dir, "layers", "tmp-boot-*", "fs", "debootstrap", "*"))
		return len(begun) > 0 && running(dir) != ""
	})
	child.kill(t)
	until(t, "debootstrap to end", func() bool { return running(dir) == "" })
	s := openAt(t, dir, image.Options{})
	if got := names(t, dir, "layers"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if all, err := s.List(); err != nil || len(all) != 0 {
		t.Errorf("the store has %v, %v", all, err)
	}
}

type cancelOn struct {
	mu     sync.Mutex
	word   string
	cancel func()
	text   bytes.Buffer
}

func (c *cancelOn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text.Write(b)
	if strings.Contains(c.text.String(), c.word) {
		c.cancel()
	}
	return len(b), nil
}
