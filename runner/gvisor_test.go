package runner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// runsc is the pinned build of gVisor, which `make test` puts into bin.
func runsc(t *testing.T) string {
	t.Helper()
	built, err := filepath.Abs("../bin/runsc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(built); err != nil {
		if built, err = exec.LookPath("runsc"); err != nil {
			t.Fatalf("these tests need gVisor's runsc: run scripts/runsc bin/runsc (%v)", err)
		}
	}
	return built
}

func TestASessionRunsWithGVisor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Runtime, w.cfg.Memory = runsc(t), 300<<20
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: "echo built >/built", Start: "dmesg | grep -c gVisor; cat /built; id -un; pwd"})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "1\nbuilt\ncoder\n/workspace\n")
	w.untilLog(id, "boot: dependency folders stay in the Workspace: gVisor can't bind them")
	w.sh(id, "echo kept >mine && mkdir node_modules && rm -rf node_modules")
	w.nap(id, nil)
	w.shows(id, "cat mine", "kept\n")

	w.stop() // the Runner; the Sandbox lives on
	w.start()
	w.untilState(id, wire.StateRunning)
	w.shows(id, "cat mine", "kept\n")

	w.nap(id, nil)
	w.open(id, wire.ChannelSpec{Argv: []string{"sh", "-c", "dd if=/dev/zero of=/dev/null bs=900M count=9"}}).end()
	const why = ": its programs needed more memory than it has, and in gVisor that ends all of them"
	w.untilLog(id, why)
	if f := sessionDetail(t, w.untilState(id, wire.StateFailed)).Failure; f == nil || f.Code != build.CodeEnded || !strings.Contains(f.Message, why+"; the Workspace is untouched") {
		t.Errorf("a Sandbox that needed more memory than it has failed with %+v", f)
	}
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	w.shows(id, "cat mine", "kept\n")
}

// outside is a web server at an address beyond the host, which says beyond.
func outside(t *testing.T) (address string) {
	t.Helper()
	name, block := fmt.Sprintf("chr-%d", os.Getpid()), fmt.Sprintf("198.19.%d", os.Getpid()%250)
	address = block + ".2"
	dir := t.TempDir()
	t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() }) //nolint:errcheck // it may not have been made
	script := `set -e; ip netns add $1; ip link add $1 type veth peer name up0 netns $1; ip addr add $2.1/30 dev $1; ip link set $1 up
ip -n $1 addr add $2.2/30 dev up0; ip -n $1 link set up0 up; echo beyond >$3/page`
	if out, err := exec.Command("sh", "-c", script, "sh", name, block, dir).CombinedOutput(); err != nil {
		t.Fatalf("make a network beyond the host: %v: %s", err, out)
	}
	server := exec.Command("ip", "netns", "exec", name, "busybox", "httpd", "-f", "-p", "80", "-h", dir)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill() //nolint:errcheck // it may have ended
		server.Wait()         //nolint:errcheck // as above
	})
	return address
}

func TestDockerRunsWithGVisor(t *testing.T) {
	t.Parallel()
	img := imagetest.DebianDocker(t)
	w := newWorld(t)
	w.cfg.Runtime = runsc(t)
	imagetest.Stock(t, ImageFolder(w.data))
	w.start()
	recipe, key := w.version(envspec.Spec{Image: img.Names[0], Docker: true, Bootstrap: "docker info --format 'the bootstrap sees Docker on {{.KernelVersion}}'"})
	id := w.session(recipe, key, w.busyboxRepo())
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "-gvisor\n")
	w.sh(id, "docker load -q -i busybox.tar")
	w.shows(id, "docker run --rm busybox:test wget -qO- http://"+outside(t)+"/page", "beyond\n")
	w.shows(id, "docker run --rm -m 64m busybox:test cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null", "67108864\n")
	w.sh(id, `mkdir app && cd app && printf 'FROM busybox:test\nRUN mkdir /www && echo built >/www/page\nCMD ["httpd", "-f", "-p", "80", "-h", "/www"]\n' >Dockerfile && docker build -q -t mine . 2>&1
cat >compose.yml <<'X'
`+composeFile+`X
docker compose up -d 2>&1`)
	w.shows(id, overPort, "built\n")
	w.shows(id, "cd app && docker compose exec -T client wget -qO- http://web/page", "built\n")
	w.sh(id, `docker run -d --name slow --stop-timeout 30 -v kept:/data busybox:test sh -c 'trap "sleep 2; echo ended in peace >>/data/words; exit" TERM; while :; do sleep 0.1; done'`)
	w.nap(id, nil)
	w.untilLog(id, "==> containers stopped: ")
	w.shows(id, "docker run --rm -v kept:/data busybox:test cat /data/words", "ended in peace\n")
	w.shows(id, "docker ps --format '{{.Names}}'", "app-web-1\n")
	w.shows(id, overPort, "built\n")
	if strings.Contains(w.log(id), "was killed with its containers") {
		t.Errorf("Docker did not end by itself:\n%s", w.log(id))
	}
}
