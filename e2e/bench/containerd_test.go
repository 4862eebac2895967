package bench

import (
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
)

// debian is imagetest's Debian as an image to push or import. Its layer isn't compressed: pulling is measured nowhere here.
func debian(t *testing.T) v1.Image {
	t.Helper()
	img := imagetest.Debian(t)
	if debianArchive == "" {
		debianArchive = archive(t, img.Layers)
	}
	l, err := tarball.LayerFromFile(debianArchive, tarball.WithCompressionLevel(gzip.NoCompression))
	if err != nil {
		t.Fatal(err)
	}
	return imagetest.Image(t, func(c *v1.ConfigFile) { c.Config.Env = img.Config.Env }, l)
}

// debianArchive is the file that archive made; TestMain removes it.
var debianArchive string

func archive(t *testing.T, layers []string) string {
	t.Helper()
	if len(layers) != 1 {
		t.Fatalf("Debian's image has %d layers, not one", len(layers))
	}
	f, err := os.CreateTemp("", "chb-debian-*.tar")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	out, err := exec.Command("tar", "-C", layers[0], "--numeric-owner", "--xattrs", "--xattrs-include=security.capability", "-cf", f.Name(), ".").CombinedOutput()
	if err != nil {
		_ = os.Remove(f.Name())
		t.Fatalf("archive the Debian image: %v\n%s", err, out)
	}
	return f.Name()
}

const peerImage = "docker.io/library/debian-bench:1"

// containerd is the peer: Debian's containerd with runc, in folders of its own.
type containerd struct {
	t       *testing.T
	dir     string
	address string
	pid     int
	n       int
}

func newContainerd(all, t *testing.T) *containerd {
	t.Helper()
	c := &containerd{t: t, dir: folder(all, t)}
	state, err := os.MkdirTemp("/run", "chbctr-")
	if err != nil {
		t.Fatal(err)
	}
	c.address = filepath.Join(state, "c.sock")
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\noom_score = 0\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\n  address = %q\n",
		filepath.Join(c.dir, "root"), filepath.Join(state, "state"), c.address)
	file := filepath.Join(c.dir, "config.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	logFile := filepath.Join(c.dir, "log")
	log, err := os.Create(logFile)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("containerd", "--config", file)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // Pdeathsig follows the thread that forked
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() //nolint:errcheck // it is stopped by a signal
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	c.pid = cmd.Process.Pid
	all.Cleanup(func() {
		c.t = all
		for _, id := range strings.Fields(c.ctr("container", "ls", "-q")) {
			c.remove(id)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if err := os.RemoveAll(state); err != nil {
			all.Error(err)
		}
	})
	err = world.Poll(t.Context(), 30*time.Second, func() error {
		out, err := exec.Command("ctr", "--address", c.address, "version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		said, _ := os.ReadFile(logFile)
		t.Fatalf("containerd: %v\n%s", err, said)
	}
	file = filepath.Join(c.dir, "image.tar")
	tag, err := name.NewTag(peerImage)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(file, tag, debian(t)); err != nil {
		t.Fatal(err)
	}
	c.ctr("image", "import", file)
	return c
}

// ctr runs its command line, which has to succeed.
func (c *containerd) ctr(args ...string) string {
	c.t.Helper()
	out, err := exec.Command("ctr", append([]string{"--address", c.address}, args...)...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("ctr %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// id is a name for a new container.
func (c *containerd) id() string {
	c.n++
	return fmt.Sprintf("bench-%d-%d", os.Getpid(), c.n) // the state of runc is all containerds'
}

// sleeper starts a container that does nothing.
func (c *containerd) sleeper() string {
	c.t.Helper()
	id := c.id()
	c.ctr("run", "--detach", peerImage, id, "sleep", "infinity")
	return id
}

// remove ends a container and deletes it with its root filesystem.
func (c *containerd) remove(id string) {
	c.t.Helper()
	if strings.Contains(c.ctr("task", "ls"), id+" ") {
		c.ctr("task", "rm", "--force", id)
	}
	c.ctr("container", "rm", id)
}

// took times one command line.
func (c *containerd) took(f func()) float64 {
	began := time.Now()
	f()
	return ms(time.Since(began))
}
