package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/e2e/world"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// repoID is the World's Repo.
const repoID = 7

// hub is a Hub and a Runner as processes of their own, and a person who calls the Hub's API.
type hub struct {
	*world.World
	api *client.Client
	t   *testing.T
}

func newHub(t *testing.T, o world.Options) *hub {
	t.Helper()
	w := world.New(t, o)
	c, err := client.New(w.URL, w.Token, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &hub{World: w, api: c, t: t}
}

func (h *hub) check(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// draft saves an Environment and returns its revision.
func (h *hub) draft(spec envspec.Spec) int64 {
	h.t.Helper()
	d, err := h.api.SaveDraft(h.t.Context(), repoID, 0, spec)
	h.check(err)
	return d.Revision
}

// passed waits for the end of a Test build, which has to pass.
func (h *hub) passed(id string) schema.TestBuild {
	h.t.Helper()
	test, err := h.api.WaitTest(h.t.Context(), repoID, id, nil)
	h.check(err)
	if test.State != wire.StatePassed {
		h.t.Fatalf("the Test build ended %s: %+v", test.State, test.Detail.Failure)
	}
	return test
}

// until waits for a Session's state.
func (h *hub) until(id, state string) {
	h.t.Helper()
	_, err := h.api.WaitSession(h.t.Context(), repoID, id, func(s schema.Session) bool {
		if s.State == wire.StateFailed {
			h.t.Fatalf("the Session failed: %+v", s.Detail.Failure)
		}
		return s.State == state
	}, nil)
	h.check(err)
}

// run runs a command in a Session through the Hub, which has to succeed.
func (h *hub) run(id string, argv ...string) {
	h.t.Helper()
	exit, err := h.api.Run(h.t.Context(), repoID, id, wire.ChannelSpec{Argv: argv}, client.Stdio{})
	if err != nil || exit.Code != 0 || exit.Failed != "" {
		h.t.Fatalf("%q: %+v, %v", argv, exit, err)
	}
}

// wake is what a person sees: from the call that wakes a sleeping Session, through Hub and Runner, its start script empty,
// until the Hub has answered with the exit code of the first command. The peer starts a stopped container, and runs a
// command in it.
func wake(t *testing.T, b *bench) {
	h := newHub(t, world.Options{})
	image := imagetest.Busybox(t, nil) // quick to pull, for a try
	if b.peers {
		image = debian(t)
	}
	revision := h.draft(envspec.Spec{Image: h.Push("debian:1", image)})
	test, err := h.api.StartTest(t.Context(), repoID, revision, "r1")
	h.check(err)
	h.passed(test.ID)
	_, err = h.api.Apply(t.Context(), repoID, revision, "")
	h.check(err)
	s, err := h.api.StartSession(t.Context(), repoID, schema.StartSession{})
	h.check(err)
	h.until(s.ID, wire.StateRunning)
	sleep := func() {
		t.Helper()
		_, err := h.api.Sleep(t.Context(), repoID, s.ID)
		h.check(err)
		h.until(s.ID, wire.StateAsleep)
	}
	ours := func() float64 {
		sleep()
		began := time.Now()
		_, err := h.api.Wake(t.Context(), repoID, s.ID)
		h.check(err)
		h.until(s.ID, wire.StateRunning)
		h.run(s.ID, "/bin/true")
		return ms(time.Since(began))
	}
	var id string
	peer := func() float64 {
		c := b.containerd(t)
		if id == "" {
			id = c.sleeper()
		}
		c.ctr("task", "rm", "--force", id)
		return c.took(func() {
			c.ctr("task", "start", "--detach", id)
			c.ctr("task", "exec", "--exec-id", "first", id, "/bin/true")
		})
	}
	a, p := b.inTurns(ours, peer)
	record("wake", "ms", a, "ctr task start, task exec", p)
}

// idleMemory is what Hub and Runner hold when nothing happens, together. The peer is containerd, without any container.
func idleMemory(t *testing.T, b *bench) {
	h := newHub(t, world.Options{})
	idle(t)
	a, p := b.inTurns(func() float64 {
		idle(t)
		return h.memory("VmRSS", h.Hub) + h.memory("VmRSS", h.Runner)
	}, func() float64 { return status(t, proc(b.containerd(t).pid), "VmRSS") })
	record("idle_rss", "MB", a, "containerd", p)
}

func proc(pid int) string { return filepath.Join("/proc", strconv.Itoa(pid)) }

func (h *hub) memory(key string, p *world.Process) float64 {
	h.t.Helper()
	return status(h.t, proc(p.PID()), key)
}

const logBytes = 200_000_000

// flood prints logBytes as a compiler would.
var flood = fmt.Sprintf("yes '[  123/9000] CC src/module_7/file_00a1.c -O2 -o build/obj/0badcafe.o 17 ms' | head -c %d", logBytes)

// logSQLite is from the start of a bootstrap that prints 200 MB until the Hub has stored all of it, and by how much the
// most resident memory meanwhile was above that of the idle processes.
func logSQLite(t *testing.T, b *bench) {
	rate, hub, runner := logged(t, b, "")
	record("log", "MB/s", rate, "", nil)
	both := make([]float64, len(hub))
	for i := range hub {
		both[i] = hub[i] + runner[i]
	}
	record("log_memory", "MB", both, "", nil)
	record("log_memory_hub", "MB", hub, "", nil)
	record("log_memory_runner", "MB", runner, "", nil)
}

// logPostgreSQL is the same on PostgreSQL, which is a test server that doesn't wait for its disk.
func logPostgreSQL(t *testing.T, b *bench) {
	rate, hub, runner := logged(t, b, storetest.PostgreSQL(t))
	record("log_postgres", "MB/s", rate, "", nil)
	for i := range hub {
		hub[i] += runner[i]
	}
	record("log_postgres_memory", "MB", hub, "", nil)
}

func logged(t *testing.T, b *bench, database string) (rate, hubMemory, runnerMemory []float64) {
	h := newHub(t, world.Options{Database: database, Hub: map[string]string{"log_limit": "1GiB"}})
	revision := h.draft(envspec.Spec{Image: h.Push("debian:1", debian(t)), Bootstrap: flood})
	idle(t)
	hubIdle, runnerIdle := h.memory("VmRSS", h.Hub), h.memory("VmRSS", h.Runner)
	for i := range b.warmUps + b.runs {
		for _, p := range []*world.Process{h.Hub, h.Runner} {
			h.check(os.WriteFile(filepath.Join(proc(p.PID()), "clear_refs"), []byte("5"), 0)) // VmHWM begins anew
		}
		test, err := h.api.StartTest(t.Context(), repoID, revision, "r1")
		h.check(err)
		stored := h.stored(test.ID)
		hubMost, runnerMost := h.memory("VmHWM", h.Hub), h.memory("VmHWM", h.Runner)
		test = h.passed(test.ID)
		part, err := h.api.ReadLog(t.Context(), client.TestLog(repoID, test.ID), 0, 0)
		h.check(err)
		if part.Dropped != 0 || part.Size < logBytes {
			t.Fatalf("the Hub has %d bytes of the log, and dropped some: %v", part.Size, part.Dropped)
		}
		if i < b.warmUps {
			continue
		}
		rate = append(rate, logBytes/1e6/stored.Sub(bootstrapBegan(t, test)).Seconds())
		hubMemory, runnerMemory = append(hubMemory, hubMost-hubIdle), append(runnerMemory, runnerMost-runnerIdle)
	}
	return rate, hubMemory, runnerMemory
}

// stored waits until the Hub has the last of the bytes that are printed, and returns when.
func (h *hub) stored(test string) time.Time {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 10*time.Minute)
	defer cancel()
	for {
		part, err := h.api.ReadLog(ctx, client.TestLog(repoID, test), logBytes, 15*time.Second)
		h.check(err)
		if part.Size > logBytes {
			return time.Now()
		}
		if part.Ended {
			h.t.Fatalf("the log ended with %d bytes", part.Size)
		}
	}
}

// bootstrapBegan is on the Runner's clock, which is this machine's.
func bootstrapBegan(t *testing.T, test schema.TestBuild) time.Time {
	t.Helper()
	for _, p := range test.Detail.Phases {
		if p.Name == wire.PhaseBootstrap {
			return time.UnixMilli(p.Started)
		}
	}
	t.Fatalf("the Test build has no bootstrap: %+v", test.Detail.Phases)
	return time.Time{}
}
