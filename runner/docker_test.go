package runner

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// dockerWorld is one whose Runner has a Debian with Docker, of this name.
func dockerWorld(t *testing.T) (*world, string) {
	t.Helper()
	img := imagetest.DebianDocker(t)
	w := newWorld(t)
	imagetest.Stock(t, ImageFolder(w.data))
	w.start()
	return w, img.Names[0]
}

// busyboxRepo is repo with an archive for docker load, busybox.tar.
func (w *world) busyboxRepo() string {
	w.t.Helper()
	ref, err := name.ParseReference("busybox:test")
	if err != nil {
		w.t.Fatal(err)
	}
	url, dir := w.repo(), w.t.TempDir()
	f, err := os.Create(filepath.Join(dir, "busybox.tar"))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := errors.Join(tarball.Write(ref, imagetest.Busybox(w.t, nil), f), f.Close()); err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `git clone -q "$1" work && mv busybox.tar work && cd work && git add . &&
git -c user.name=t -c user.email=t@t commit -q -m second && git push -q origin HEAD:main`, "sh", url)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("make a repository: %v\n%s", err, out)
	}
	return url
}

// moveTo has a Session sleep and wake on another version.
func (w *world) moveTo(id string, spec envspec.Spec, version int) {
	w.t.Helper()
	recipe, key := w.version(spec)
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.edit(id, fleet.Run, func(p *wire.Session) { p.Recipe, p.BuildKey, p.Version = recipe, key, version })
	w.untilState(id, wire.StateRunning)
}

const composeFile = `services:
  web:
    image: mine
    restart: unless-stopped
    ports: ["8080:80"]
    networks: [inner]
  client:
    image: busybox:test
    command: sleep 1000
    networks: [inner]
networks: {inner: {}}
`

// overPort gets a page by a published port, with what the image has. A container that is up need not serve yet.
const overPort = `bash -c 'for n in $(seq 600); do
	got=$(exec 2>/dev/null 3<>/dev/tcp/127.0.0.1/8080 && printf "GET /page HTTP/1.0\r\n\r\n" >&3 && tail -n1 <&3) && [ -n "$got" ] && break
	sleep 0.1
done; echo "$got"'`

func TestDockerRunsInSandboxesAndItsDataOutlivesThem(t *testing.T) {
	t.Parallel()
	w, image := dockerWorld(t)
	spec := envspec.Spec{Image: image, Docker: true, Bootstrap: "usermod -aG docker postgres; " + ownImage + "docker run -d --name left -v /usr:/usr:ro own sleep 1000",
		Start: "docker info --format 'the start script sees Docker with {{.Images}} images on {{.Driver}}'"}

	test := w.test(spec, w.repo())
	state, d := w.outcome(test)
	log := w.wholeLog(test)
	if state != wire.StatePassed || phases(d) != "image:done docker:done bootstrap:done snapshot:done clone:done start:done" {
		t.Fatalf("%s, phases %s\n%s", state, phases(d), log)
	}
	dropped := "1 Docker image of the bootstrap dropped, since each Session has a Docker disk of its own: own:latest. Pull or build them in the start script"
	for _, want := range []string{"==> docker: installed and started in ", "==> bootstrap: 1 container stopped: left\n", "==> bootstrap: " + dropped,
		"the start script sees Docker with 0 images on overlay2\n"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	if strings.Contains(log, "background process") {
		t.Errorf("Docker's own processes are told as left by scripts:\n%s", log)
	}
	if !slices.Contains(d.Notes, dropped) {
		t.Errorf("notes: %q", d.Notes)
	}

	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.busyboxRepo())
	w.untilState(id, wire.StateRunning)
	w.shows(id, "docker images -q", "")
	w.sh(id, "docker load -q -i busybox.tar")
	if r := w.open(id, wire.ChannelSpec{Argv: []string{"docker", "images", "-q", "mine"}, User: "postgres"}).end(); r.exit.Code != 0 {
		t.Errorf("one of the group docker can't use it: %+v", r)
	}
	if r := w.open(id, wire.ChannelSpec{Argv: []string{"docker", "images"}, User: "nobody"}).end(); r.exit.Code == 0 {
		t.Error("nobody can use Docker")
	}
	w.shows(id, "docker run --rm -m 64m busybox:test sh -c 'id -un; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; true'", "root\n67108864\n")
	w.shows(id, "docker run --rm --privileged busybox:test sh -c 'mount -t tmpfs x /mnt 2>/dev/null || mkdir /mnt && mount -t tmpfs x /mnt && echo mounted'", "mounted\n")
	w.sh(id, `mkdir app && cd app && printf 'FROM busybox:test\nRUN mkdir /www && echo built >/www/page\nCMD ["httpd", "-f", "-p", "80", "-h", "/www"]\n' >Dockerfile && docker build -q -t mine . 2>&1
cat >compose.yml <<'X'
`+composeFile+`X
docker compose up -d 2>&1`)
	w.shows(id, overPort, "built\n")
	w.shows(id, "cd app && docker compose exec -T client wget -qO- http://web/page", "built\n")
	w.sh(id, `docker run -d --name slow --stop-timeout 30 -v kept:/data busybox:test sh -c 'trap "sleep 2; echo ended in peace >>/data/words; exit" TERM; while :; do sleep 0.1; done'`)
	started := w.sh(id, "docker inspect -f '{{.State.StartedAt}}' slow app-web-1")

	// The Runner ends and comes back: nothing of it is noticed in containers.
	w.stop()
	w.start()
	w.untilState(id, wire.StateRunning)
	w.shows(id, "docker inspect -f '{{.State.StartedAt}}' slow app-web-1", started)

	w.nap(id, nil)
	w.untilLog(id, "==> containers stopped: ")
	w.shows(id, "docker run --rm -v kept:/data busybox:test cat /data/words", "ended in peace\n")
	w.shows(id, "docker ps --format '{{.Names}}'", "app-web-1\n")
	w.shows(id, overPort, "built\n")

	// dockerd is killed, and with it goes nobody's data.
	w.try(id, "docker run --rm --privileged --pid host busybox:test killall -9 dockerd")
	w.nap(id, nil)
	w.shows(id, overPort, "built\n")

	// A new version, on a fresh root filesystem.
	spec.Bootstrap = "echo 2 >/version"
	w.moveTo(id, spec, 2)
	w.shows(id, "cat /version; docker images --format '{{.Repository}}' | sort", "2\nbusybox\nmine\n")
	w.shows(id, overPort, "built\n")

	w.nap(id, func(disk string) {
		if err := os.RemoveAll(disk + "/docker"); err != nil {
			t.Fatal(err)
		}
	})
	w.untilLog(id, "disk: the Docker disk, with all images and volumes, was lost, and is made anew\n")
	w.shows(id, "docker images -q", "")

	spec.Docker = false
	w.moveTo(id, spec, 3)
	w.shows(id, "grep -c /var/lib/docker /proc/self/mountinfo; pgrep dockerd || echo none", "0\nnone\n")
	if strings.Contains(w.log(id), "was killed with its containers") {
		t.Errorf("Docker did not end by itself:\n%s", w.log(id))
	}
}

// ownImage makes an image whose programs are those of the Sandbox, by a volume.
const ownImage = `mkdir -p /tmp/own/tmp && cd /tmp/own && for l in bin lib lib64 sbin; do ln -s usr/$l $l; done && tar -c . | docker import - own >/dev/null && `

// dockerUpAfter finds how long Docker took at each boot.
var dockerUpAfter = regexp.MustCompile(`Docker is up after (\d+) ms`)

// writer writes to the database all the time.
const writer = `while :; do echo "insert into t values (1);"; done | /usr/lib/postgresql/17/bin/psql -qU postgres -h /tmp`

func TestADatabaseInAContainerNeedsNoRecoveryAfterTwentySleeps(t *testing.T) {
	t.Parallel()
	sleeps := 20
	if testing.Short() {
		sleeps = 2
	}
	w, image := dockerWorld(t)
	recipe, key := w.version(envspec.Spec{Image: image, Docker: true})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	// The database's image is its programs, from those of the Sandbox.
	w.sh(id, `set -e
`+ownImage+`cd / &&
docker volume create kept && chown postgres "$(docker volume inspect -f "{{.Mountpoint}}" kept)" &&
docker run -d --name db --restart unless-stopped --stop-signal INT --stop-timeout 60 --tmpfs /tmp:mode=1777 -u $(id -u postgres):$(id -g postgres) -v /usr:/usr:ro -v /etc:/etc:ro -v kept:/data own sh -c '
	export PATH=/usr/lib/postgresql/17/bin:/usr/bin:/bin
	[ -e /data/db ] || { initdb -D /data/db -A trust --no-instructions >/dev/null && echo "create table t (n int)" | postgres --single -D /data/db postgres >/dev/null; }
	exec postgres -D /data/db -k /tmp -c listen_addresses= -c log_destination=stderr'`)
	rows := func() int {
		t.Helper()
		var out string
		for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			var code int
			if out, code = w.try(id, "docker exec db /usr/lib/postgresql/17/bin/psql -h /tmp -U postgres -tAc 'select count(*) from t'"); code == 0 {
				n, err := strconv.Atoi(strings.TrimSpace(out))
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatalf("the database does not answer: %s\n%s", out, w.sh(id, "docker logs db 2>&1"))
		return 0
	}
	for n := range sleeps {
		before := rows()
		w.sh(id, "docker exec -d db sh -c '"+writer+"'")
		end := time.Now().Add(limit)
		for rows() == before {
			if time.Now().After(end) {
				t.Fatal("nothing is written")
			}
		}
		before = rows()
		w.nap(id, nil)
		if now := rows(); now < before {
			t.Fatalf("%d rows after %d, at sleep %d", now, before, n+1)
		}
	}
	words := w.sh(id, "docker logs db 2>&1")
	if n := strings.Count(words, "database system was shut down at"); n < sleeps {
		t.Errorf("it came back from %d clean shutdowns of %d:\n%s", n, sleeps, words)
	}
	for _, bad := range []string{"was not properly shut down", "recovery in progress", "was interrupted"} {
		if strings.Contains(words, bad) {
			t.Errorf("the database had to recover: %q", bad)
		}
	}
	if !dockerUpAfter.MatchString(w.log(id)) {
		t.Error("the log doesn't say how long Docker took")
	}
	if strings.Contains(w.log(id), "was killed with its containers") {
		t.Errorf("Docker did not end by itself:\n%s", w.log(id))
	}
}
