package runner

import (
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// short is for how long the Sessions of these tests must be idle to be put to sleep.
const short = 700 * time.Millisecond

func TestAnOpenForwardedConnectionKeepsASessionAwake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", asCoder)})
	id := w.session(recipe, key, w.repo(), func(p *wire.Session) { p.IdleMS = short.Milliseconds() })
	w.untilState(id, wire.StateRunning)
	w.sh(id, "(nc -l -p 8080 -e sh -c 'echo hello; read x; echo got $x') </dev/null >/tmp/nc 2>&1 & until grep -q :1F90 /proc/net/tcp*; do sleep 0.05; done")
	c := w.open(id, wire.ChannelSpec{Port: 8080, Stdin: true})
	c.until("hello\n")
	// Nothing comes or goes for longer than the Session may be idle.
	for began := time.Now(); time.Since(began) < 2*short; c.move(nil, false) {
		if idle := w.runner.session(id).Idle(); idle != 0 {
			t.Fatalf("the Session is idle for %s with a connection open", idle)
		}
	}
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateBusy)
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	c.move([]byte("it\n"), true)
	if r := c.end(); !strings.HasSuffix(r.out, "got it\n") || r.exit.Code != 0 {
		t.Errorf("the connection: %+v", r)
	}
	w.untilIdle(id, short) // closed, it counts no more
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
}

func TestDockerServicesAndShellsAtTheirPromptKeepNoSessionAwake(t *testing.T) {
	t.Parallel()
	w, image := dockerWorld(t)
	recipe, key := w.version(envspec.Spec{Image: image, Docker: true,
		Start: ownImage + "docker run -d --name busy -v /usr:/usr:ro own sh -c 'while :; do echo busy; sleep 0.1; done'; (while :; do echo busy; sleep 0.1; done) >/dev/null & echo all run"})
	id := w.session(recipe, key, w.repo(), func(p *wire.Session) { p.IdleMS = short.Milliseconds() })
	w.untilLog(id, "all run\n")
	shell := w.open(id, wire.ChannelSpec{TTY: true, Rows: 24, Cols: 80})
	shell.until("# ")
	w.untilIdle(id, short)
	if got := w.exec(id, "docker", "ps", "--format", "{{.Names}}"); got.out != "busy\n" {
		t.Fatalf("containers: %+v", got)
	}
	w.untilIdle(id, short)
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.untilLog(id, "containers stopped: busy\n")
}
