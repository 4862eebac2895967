package runner

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// installer is a stand-in for a package manager, which installs a stand-in for Docker.
const installer = `#!/bin/sh
echo "$0 $*"
cp /opt/dockerd /usr/bin/dockerd && ln -s dockerd /usr/bin/docker && echo 'docker:x:998:' >>/etc/group
`

// standIn is an image with that package manager only.
func (w *world) standIn(manager string) string {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "dockerd")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", file, "./testdata/dockerd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("build a stand-in for dockerd: %v\n%s", err, out)
	}
	body, err := os.ReadFile(file)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.image("app:"+manager, asCoder, imagetest.Dir("opt", 0o755), imagetest.File("opt/dockerd", 0o755, string(body)),
		imagetest.File("usr/local/bin/"+manager, 0o755, installer), imagetest.Dir("var/run", 0o755), imagetest.Dir("var/lib", 0o755))
}

func TestDockerIsInstalledByTheImagesOwnPackageManager(t *testing.T) {
	t.Parallel()
	for manager, words := range map[string]string{"apk": "apk add --no-cache docker ", "dnf": "dnf install -y moby-engine "} {
		t.Run(manager, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start()
			id := w.test(envspec.Spec{Image: w.standIn(manager), Docker: true, Bootstrap: "[ -e /var/run/docker.sock ] && echo Docker runs"}, w.repo())
			state, d := w.outcome(id)
			log := w.wholeLog(id)
			if state != wire.StatePassed || !strings.HasPrefix(phases(d), "image:done docker:done bootstrap:done ") {
				t.Fatalf("%s, phases %s\n%s", state, phases(d), log)
			}
			for _, want := range []string{words, "Docker runs\n", "==> bootstrap: 1 container stopped: db\n", "3 Docker images of the bootstrap dropped, "} {
				if !strings.Contains(log, want) {
					t.Errorf("the log lacks %q:\n%s", want, log)
				}
			}
			if !slices.ContainsFunc(d.Notes, func(n string) bool {
				return strings.Contains(n, "sha256:1, db:1, db:2. Pull or build them in the start script")
			}) {
				t.Errorf("notes: %q", d.Notes)
			}
		})
	}
}

// It needs Debian's package archive from within a Sandbox, as any bootstrap script does.
func TestDockerIsInstalledByAptOnDebian(t *testing.T) {
	t.Parallel()
	img := imagetest.Debian(t)
	w := newWorld(t)
	imagetest.Stock(t, ImageFolder(w.data))
	w.start()
	id := w.test(envspec.Spec{Image: img.Names[0], Docker: true, Bootstrap: `docker info --format 'it runs on {{.Driver}}'
docker-compose version --short && ls /var/cache/apt/archives/*.deb 2>/dev/null || echo nothing is left`}, w.repo())
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // the archive may be slow
		if w.newest(id).State == wire.StateFailed || strings.Contains(w.log(id), "==> docker: ") {
			break
		}
	}
	state, _ := w.outcome(id)
	log := w.wholeLog(id)
	if state != wire.StatePassed || !strings.Contains(log, "it runs on overlay2\n") || !strings.Contains(log, "nothing is left\n") {
		t.Errorf("%s\n%s", state, log)
	}
}

func TestAnImageWithoutAKnownPackageManagerIsRefusedBeforeTheBootstrap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.test(envspec.Spec{Image: w.image("app:v1", nil), Docker: true, Bootstrap: "echo the bootstrap"}, w.repo())
	state, d := w.outcome(id)
	f := d.Failure
	if state != wire.StateFailed || f == nil || f.Phase != wire.PhaseDocker || f.Code != build.CodeDocker ||
		!strings.Contains(f.Message, "none of apt-get, apk and dnf") || phases(d) != "image:done docker:failed" {
		t.Errorf("%s, %s: %+v\n%s", state, phases(d), f, w.wholeLog(id))
	}
	w.nothingLeft(id)
}

func TestDockersPidFileOfAnEarlierBootIsGoneAndOneThatFailsStopsNoSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.standIn("apk"), Docker: true, Start: "ls /var/run/docker.sock || echo no Docker at all"})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	const arguments = "cat /var/lib/docker/arguments; ls -ln /var/run/docker.sock | awk '{print \"\", $3}'"
	w.shows(id, arguments, "--cgroup-parent=/user/docker --group=1000 0\n")
	w.nap(id, nil)
	w.shows(id, arguments, "--cgroup-parent=/user/docker --group=1000 0\n")
	if log := w.log(id); strings.Contains(log, "Docker doesn't run") || strings.Count(log, "boot: Docker is up after ") != 2 {
		t.Errorf("the log says\n%s", log)
	}

	w.sh(id, "echo >broken; rm -f /var/run/docker.sock 2>/dev/null; true")
	w.nap(id, nil)
	why := "Docker doesn't run: dockerd ended with exit code 3: failed to start daemon: the stand-in is broken"
	w.untilLog(id, "boot: "+why+"\n")
	if notes := sessionDetail(t, w.newest(id)).Notes; !slices.Contains(notes, why) {
		t.Errorf("notes: %q", notes)
	}
	w.shows(id, "cat README", "hello\n")
	w.sh(id, "rm broken")
	w.nap(id, nil)
	if got := strings.Count(w.log(id), "boot: Docker is up after "); got != 3 {
		t.Errorf("up %d times:\n%s", got, w.log(id))
	}
}
