package runner

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// TestBadInputIsToldInASentence is issue 2's list of bad input, as far as a Runner answers it, with what a user sees. All of
// it runs on one Runner, which must be there for the next.
// sleeps is a shell's function that tells whether a process of that name runs.
const sleeps = `sleeps() { for p in /proc/[0-9]*/comm; do { read name <"$p"; } 2>/dev/null; [ "$name" != sleep ] || return 0; done; return 1; }
`

func TestBadInputIsToldInASentence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Quiet = time.Second
	w.start()
	app := w.image("app:v1", asCoder)
	node := w.image("node:v1", nil, imagetest.File("usr/bin/node", 0o755, "#!/bin/sh\necho \"node runs $1\"\n"))
	noShell := imagetest.Push(t, w.registry, "noshell:v1", imagetest.Image(t, nil, imagetest.Layer(t, imagetest.Dir("etc/", 0o755))))
	arm := imagetest.Push(t, w.registry, "arm:v1", imagetest.Image(t, func(c *v1.ConfigFile) { c.Architecture = "arm64" },
		imagetest.Layer(t, imagetest.Dir("etc/", 0o755))))
	ghost := w.image("ghost:v1", func(c *v1.ConfigFile) { c.Config.User = "ghost" })
	secret := imagetest.Push(t, imagetest.Registry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet || r.Method == http.MethodHead {
				if strings.Contains(r.URL.Path, "/manifests/") {
					rw.WriteHeader(http.StatusForbidden)
					return
				}
			}
			next.ServeHTTP(rw, r)
		})
	}), "secret:v1", imagetest.Busybox(t, nil))
	refused := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		rw.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(refused.Close)
	good, empty := w.repo(), w.emptyRepo()

	for _, c := range []struct {
		name  string
		spec  envspec.Spec
		url   string
		state string // passed unless said
		phase string
		code  string
		says  string // in the message
		log   string // in the log
		last  string // in the last lines
	}{
		{name: "unknown image", spec: envspec.Spec{Image: w.registry + "/none:v1"}, phase: wire.PhaseImage, code: "image-not-found", says: "has no image none"},
		{name: "no such tag", spec: envspec.Spec{Image: w.registry + "/app:v9"}, phase: wire.PhaseImage, code: "image-no-tag", says: "no tag v9"},
		{name: "no access", spec: envspec.Spec{Image: secret}, phase: wire.PhaseImage, code: "image-no-access", says: "docker login"},
		{name: "registry down", spec: envspec.Spec{Image: "127.0.0.1:1/app:v1"}, phase: wire.PhaseImage, code: "image-unreachable", says: "can't be reached"},
		{name: "no such platform", spec: envspec.Spec{Image: arm}, phase: wire.PhaseImage, code: "image-no-platform", says: "arm64"},
		{name: "bad reference", spec: envspec.Spec{Image: "Not An Image"}, phase: wire.PhaseImage, code: "image-bad-reference", says: "not a valid image reference"},
		{name: "image without a shell", spec: envspec.Spec{Image: noShell, Bootstrap: "true"}, phase: wire.PhaseBootstrap, code: "no-shell", says: "image has no bash or sh"},
		{name: "image without a shell, no scripts", spec: envspec.Spec{Image: noShell}, phase: wire.PhaseBootstrap, code: "no-shell", says: "image has no bash or sh"},
		{name: "user not in the image", spec: envspec.Spec{Image: ghost, Bootstrap: "true"}, phase: wire.PhaseBootstrap, code: "no-user", says: `user "ghost" is not in its /etc/passwd`},
		{name: "user made by the bootstrap", spec: envspec.Spec{Image: ghost, Bootstrap: "echo ghost:x:77:78::/:/bin/sh >>/etc/passwd", Start: "id -u"}, log: "77\n"},
		{name: "disk full", spec: envspec.Spec{Image: app, Bootstrap: "dd if=/dev/zero of=/big bs=1M count=4000 2>&1"}, phase: wire.PhaseBootstrap, code: "exit", says: "exit code 1", last: "No space left on device"},
		{name: "empty Repo", spec: envspec.Spec{Image: app}, url: empty, phase: wire.PhaseClone, code: "no-commits", says: "no commits yet"},
		{name: "clone refused", spec: envspec.Spec{Image: app}, url: refused.URL + "/x.git", phase: wire.PhaseClone, code: "clone-refused", says: "clone refused"},
		{name: "no such Repo", spec: envspec.Spec{Image: app}, url: "file:///nonexistent.git", phase: wire.PhaseClone, code: "repo-not-found", says: "there is no repository"},
		{name: "exit code", spec: envspec.Spec{Image: app, Bootstrap: "echo one; echo two; exit 3"}, phase: wire.PhaseBootstrap, code: "exit", says: "the bootstrap script ended with exit code 3", last: "one\ntwo\n"},
		{name: "start script fails", spec: envspec.Spec{Image: app, Start: "echo oops; exit 4"}, phase: wire.PhaseStart, code: "exit", says: "the start script ended with exit code 4", last: "oops\n"},
		{name: "killed by a signal", spec: envspec.Spec{Image: app, Bootstrap: "kill -9 $$"}, phase: wire.PhaseBootstrap, code: "signal", says: "was ended by SIGKILL"},
		{name: "command not found", spec: envspec.Spec{Image: app, Bootstrap: "nosuchtool"}, phase: wire.PhaseBootstrap, code: "exit", says: "exit code 127", last: "nosuchtool"},
		{name: "loops", spec: envspec.Spec{Image: app, Bootstrap: "while :; do sleep 1; done"}, phase: wire.PhaseBootstrap, code: "timeout", says: "the deadline passed during the bootstrap script", log: "the bootstrap script is still running, last output"},
		{name: "ignores SIGTERM", spec: envspec.Spec{Image: app, Bootstrap: "trap '' TERM INT HUP; while :; do sleep 1; done"}, phase: wire.PhaseBootstrap, code: "timeout", says: "the deadline passed"},
		{name: "start script loops", spec: envspec.Spec{Image: app, Start: "while :; do sleep 1; done"}, phase: wire.PhaseStart, code: "timeout", says: "the deadline passed during the start script"},
		{name: "floods with lines", spec: envspec.Spec{Image: app, Bootstrap: "seq 1 300000; echo the end"}, log: "300000\nthe end\n"},
		{name: "one 5 MB line", spec: envspec.Spec{Image: app, Bootstrap: "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo the end"}, log: "xxx\nthe end\n"},
		{name: "binary and NUL", spec: envspec.Spec{Image: app, Bootstrap: "printf 'a\\0b\\377\\376c\\n'; head -c 100000 /dev/urandom"}, log: "a\x00b\xff\xfec\n"},
		{name: "forks", spec: envspec.Spec{Image: app, Bootstrap: "i=0; while [ $i -lt 10000 ]; do sleep 100 & i=$((i+1)); done"}, state: "any", phase: wire.PhaseBootstrap},
		{name: "eats memory", spec: envspec.Spec{Image: app, Memory: 256 << 20, Bootstrap: "x=$(head -c 600000000 /dev/zero | tr '\\0' x); echo survived"}, phase: wire.PhaseBootstrap, code: "oom", says: "ran out of memory (the Sandbox has 256 MiB)"},
		{name: "backgrounds a daemon", spec: envspec.Spec{Image: app, Bootstrap: "setsid sleep 1000 & " + sleeps + "until sleeps; do :; done; echo done", Start: sleeps + "sleeps && exit 9; exit 0"}, log: "1 background process stopped: sleep"},
		{name: "reads stdin", spec: envspec.Spec{Image: app, Bootstrap: "cat; echo eof"}, log: "eof\n"},
		{name: "CRLF in a shebang", spec: envspec.Spec{Image: app, Bootstrap: "#!/bin/sh\r\necho hi\r\n"}, phase: wire.PhaseBootstrap, code: "interpreter", says: "CRLF"},
		{name: "no shebang", spec: envspec.Spec{Image: app, Bootstrap: "echo plain\n"}, log: "plain\n"},
		{name: "env node shebang", spec: envspec.Spec{Image: node, Bootstrap: "#!/usr/bin/env node\nconsole.log(1)\n"}, log: "node runs /"},
		{name: "missing interpreter", spec: envspec.Spec{Image: app, Bootstrap: "#!/usr/bin/python3\nprint(1)\n"}, phase: wire.PhaseBootstrap, code: "interpreter", says: "/usr/bin/python3"},
		{name: "no trailing newline", spec: envspec.Spec{Image: app, Bootstrap: "echo last"}, log: "last\n"},
		{name: "ends its own Sandbox", spec: envspec.Spec{Image: app, Bootstrap: "echo before; reboot -f; kill -9 -1; kill -9 1; sleep 2; exit 5"}, state: "any", phase: wire.PhaseBootstrap},
		{name: "both empty", spec: envspec.Spec{Image: app}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := w.as(t)
			if c.url == "" {
				c.url = good
			}
			deadline := time.Now().Add(10 * time.Minute)
			if c.code == "timeout" {
				deadline = time.Now().Add(20 * time.Second) // enough for what comes before the script, on a busy machine too
			}
			id := w.testUntil(c.spec, c.url, deadline)
			state, d := w.outcome(id)
			log := w.wholeLog(id)
			if len(log) > 20000 {
				log = log[:10000] + " […] " + log[len(log)-10000:]
			}
			want := c.state
			switch {
			case want == "any":
				want = state
			case want == "" && c.code != "":
				want = wire.StateFailed
			case want == "":
				want = wire.StatePassed
			}
			if state != want {
				t.Fatalf("%s, %+v\n%s", state, d.Failure, log)
			}
			w.nothingLeft(id)
			if !strings.Contains(log, c.log) {
				t.Errorf("the log lacks %q:\n%s", c.log, log)
			}
			if c.code == "" {
				return
			}
			f := d.Failure
			if f == nil || f.Phase != c.phase || f.Code != c.code || !strings.Contains(f.Message, c.says) || !strings.Contains(f.LastLines, c.last) {
				t.Fatalf("got %+v\n%s", f, log)
			}
			if !strings.Contains(log, "==> failed: ") {
				t.Errorf("the log doesn't say why:\n%s", log)
			}
			if f.Phase == wire.PhaseBootstrap && d.BuildKey != "" {
				if _, found, err := w.runner.builder.Find(t.Context(), d.BuildKey); err != nil || found && c.name != "image without a shell" {
					t.Errorf("a failed bootstrap became a snapshot (%v)", err)
				}
			}
		})
	}
}
