package runner

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/build"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func TestProxyAndCertificatesOfTheRunnerReachEveryProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tls := httptest.NewTLSServer(nil)
	t.Cleanup(tls.Close)
	certificates := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw}))
	w.cfg.CA = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(w.cfg.CA, []byte(certificates), 0o644); err != nil {
		t.Fatal(err)
	}
	w.cfg.Proxy = ProxyConfig{HTTP: "http://proxy.example:3128", No: "localhost"}
	w.start()
	show := `echo "$http_proxy $HTTP_PROXY $no_proxy ${https_proxy-unset}"; cat "$SSL_CERT_FILE" "$NODE_EXTRA_CA_CERTS"`
	id := w.test(envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: show, Start: show}, w.repo())
	state, d := w.outcome(id)
	want := "http://proxy.example:3128 http://proxy.example:3128 localhost unset\n" + certificates + certificates
	if log := w.wholeLog(id); state != wire.StatePassed || strings.Count(log, want) != 2 {
		t.Fatalf("%s: %+v\n%s", state, d.Failure, log)
	}
}

func TestAFullHostRefusesNewWorkWithNumbers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	here, absent := w.image("app:v1", nil), w.image("other:v1", nil, imagetest.File("other", 0o644, "other"))
	images, err := image.Open(ImageFolder(w.data), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := images.Pull(t.Context(), here, nil); err != nil {
		t.Fatal(err)
	}
	w.cfg.LowWater = 1 << 50
	w.start()
	for ref, code := range map[string]string{here: "host-full", absent: "image-disk-full"} {
		id := w.test(envspec.Spec{Image: ref, Bootstrap: "true"}, w.repo())
		state, d := w.outcome(id)
		if state != wire.StateFailed || d.Failure.Code != code || !strings.ContainsAny(d.Failure.Message, "0123456789") {
			t.Errorf("%s: %+v", state, d.Failure)
		}
	}
}

func TestADamagedRecordIsPutAsideAndTheSessionFindsItsWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	recipe, key := w.version(envspec.Spec{Image: w.image("app:v1", nil)})
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.sh(id, "echo work >mine")
	path := w.runner.recordPath(id)
	w.halt()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.until(id, "running again", func(fleet.Report) bool {
		b, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(b), `"awake":true`)
	})
	if got := w.sh(id, "cat mine"); got != "work\n" {
		t.Errorf("the Workspace: %q", got)
	}
}

func TestARunnerRefusesAFolderThatIsInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	cfg := w.cfg
	cfg.RunDir = testRunDir()
	if _, err := New(w.data, w.identity, cfg, "test", zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "another Runner runs on the data folder") {
		t.Fatalf("got %v", err)
	}
}

func TestIdsThatCouldNameOtherFilesAreRefused(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{"0190-ab": true, "": false, "../x": false, "-x": false, "A": false, strings.Repeat("a", 61): false, "a/b": false} {
		if safeID(id) != want {
			t.Errorf("%q", id)
		}
	}
}

func TestACrashInAnAssignmentFailsItAndNotTheRunner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, err := New(w.data, w.identity, w.cfg, "test", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	r.client = nil // whoever asks the Hub for a payload crashes
	r.take([]*wire.Item{
		{Id: "one", Kind: wire.KindTestBuild, Want: wire.WantRun, Generation: 1, Fence: 1},
		{Id: "two", Kind: wire.KindSession, Want: wire.WantRun, Generation: 1, Fence: 1},
	}, nil)
	for _, id := range []string{"one", "two"} {
		for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
			if got, _, ok := r.spool.Newest(id); ok && got.State == wire.StateFailed {
				if !strings.Contains(string(got.Detail), "claude-hub itself failed here") {
					t.Errorf("%s: %s", id, got.Detail)
				}
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s did not fail", id)
			}
		}
	}
	r.stop(build.ErrShutdown)
	r.wg.Wait()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestADataFolderWhoseLockIsHeldForAMomentIsNotTakenForUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	killed, err := lockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { killed.Close() })
	next, err := lockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
}

func TestARuntimeThatBootsNoSandboxIsRefused(t *testing.T) {
	t.Parallel()
	for runtime, ok := range map[string]bool{"": true, "runc": true, "runsc": true, "/usr/local/sbin/runc.amd64": true, "/opt/gvisor/runsc": true,
		"crun": false, "kata": false, "gvisor": false, "bin/runsc": false} {
		_, err := Config{Runtime: runtime}.withDefaults()
		if (err == nil) != ok || err != nil && !strings.HasPrefix(err.Error(), "runner.runtime: ") {
			t.Errorf("runtime %q: %v", runtime, err)
		}
	}
}

func TestANegativeDepthOfClonesIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := (Config{CloneDepth: -1}).withDefaults(); err == nil || !strings.Contains(err.Error(), "runner.clone_depth is a number of commits, or 0 for the whole history, not -1") {
		t.Errorf("got %v", err)
	}
}
