package runner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// tool is a line that puts a program into a folder.
func tool(folder, name string) string {
	return fmt.Sprintf("mkdir -p %[1]s && printf '#!/bin/sh\\necho %[2]s\\n' >%[1]s/%[2]s && chmod +x %[1]s/%[2]s\n", folder, name)
}

// cargo is what rustup-init does: a file of its own, read by ~/.profile and ~/.bashrc.
var cargo = tool(`"$HOME/.cargo/bin"`, "rustc") + `cat >"$HOME/.cargo/env" <<'END'
#!/bin/sh
# rustup shell setup
# affix colons on either side of $PATH to simplify matching
case ":${PATH}:" in
    *:"$HOME/.cargo/bin":*)
        ;;
    *)
        # Prepending path in case a system-installed rustc needs to be overridden
        export PATH="$HOME/.cargo/bin:$PATH"
        ;;
esac
END
for f in .profile .bashrc; do printf '\n. "$HOME/.cargo/env"\n' >>"$HOME/$f"; done
`

// installers edit the startup files as the real ones do: rustup-init's, nvm's and mise's install scripts and pyenv-installer with
// the lines that its documentation has people add.
var installers = "cd ~\n" +
	cargo +
	// nvm: a function, defined by a file that ~/.bashrc reads, which puts the default version on PATH.
	tool(`"$HOME/.nvm/versions/node/v22.1.0/bin"`, "node") + `cat >"$HOME/.nvm/nvm.sh" <<'END'
nvm() {
  if [ "$1" = use ]; then
    export NVM_BIN="$NVM_DIR/versions/node/$2/bin"
    export PATH="$NVM_BIN:$PATH"
  fi
}
nvm use v22.1.0
END
cat >>"$HOME/.bashrc" <<'END'

export NVM_DIR="$HOME/.nvm"
[ -s "$NVM_DIR/nvm.sh" ] && \. "$NVM_DIR/nvm.sh"  # This loads nvm
END
` +
	// mise: a hook that runs before each prompt, and once when it is activated.
	tool(`"$HOME/.local/share/mise/installs/pnpm/9.0.0/bin"`, "pnpm") + `mkdir -p "$HOME/.local/bin"
cat >"$HOME/.local/bin/mise" <<'END'
#!/bin/sh
cat <<'EVAL'
export MISE_SHELL=bash
_mise_hook() { eval "$(echo 'export PATH="$HOME/.local/share/mise/installs/pnpm/9.0.0/bin:$PATH"')"; }
if [[ ";${PROMPT_COMMAND:-};" != *";_mise_hook;"* ]]; then PROMPT_COMMAND="_mise_hook${PROMPT_COMMAND:+;$PROMPT_COMMAND}"; fi
_mise_hook
EVAL
END
chmod +x "$HOME/.local/bin/mise"
echo 'eval "$("$HOME/.local/bin/mise" activate bash)"' >>"$HOME/.bashrc"
` +
	// pyenv: shims.
	tool(`"$HOME/.pyenv/shims"`, "python3.99") + `cat >>"$HOME/.bashrc" <<'END'
export PYENV_ROOT="$HOME/.pyenv"
[[ -d $PYENV_ROOT/bin ]] && export PATH="$PYENV_ROOT/bin:$PATH"
export PATH="$PYENV_ROOT/shims:${PATH}"
END
`

const allTools = "rustc && node && pnpm && python3.99"

const toolsAnswer = "rustc\nnode\npnpm\npython3.99\n"

// debianGuard is how Debian's and Ubuntu's ~/.bashrc begin.
const debianGuard = `# If not running interactively, don't do anything
case $- in
    *i*) ;;
      *) return;;
esac
HISTCONTROL=ignoreboth
shopt -s histappend checkwinsize
`

const debianProfile = `if [ -n "$BASH_VERSION" ]; then
    if [ -f "$HOME/.bashrc" ]; then
	. "$HOME/.bashrc"
    fi
fi
if [ -d "$HOME/bin" ] ; then
    PATH="$HOME/bin:$PATH"
fi
`

func TestWhatInstallersPutOnThePathIsThereInStartScriptExecAndTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.BuildDisk, w.cfg.SessionDisk = 4<<30, 4<<30
	w.start()
	bootstrap := "set -e\nuseradd -m -s /bin/bash dev\ncat >/home/dev/.bashrc <<'RC'\n" + debianGuard + "RC\ncat >/home/dev/.profile <<'RC'\n" + debianProfile +
		"RC\ncat >/tmp/install <<'INSTALL'\n" + installers + "INSTALL\nchown -R dev: /home/dev\nsu dev -c 'HOME=/home/dev bash -e /tmp/install'\n"
	values := []*wire.Value{sensitive("NVM_DIR", "a Variable wins over it", "s1", false)}
	w.owner.give("", values...)
	user := imagetest.Push(t, w.registry, "debian:dev", withUser(t, imagetest.DebianImage(t), "dev"))
	spec := having(envspec.Spec{Image: user, Bootstrap: bootstrap, Start: allTools + ` && echo "$(id -un) $HOME"`}, values...)
	id := w.test(spec, w.repo())
	state, d := w.outcome(id)
	if log := w.wholeLog(id); state != wire.StatePassed || !strings.Contains(log, toolsAnswer+"dev /home/dev\n") {
		t.Fatalf("%s: %+v\n%s", state, d.Failure, log)
	}
	base, _, err := w.runner.builder.Find(t.Context(), d.BuildKey)
	if err != nil || base.Meta.Login == nil {
		t.Fatalf("the build keeps no login environment: %v", err)
	}
	for _, e := range base.Meta.Login.Entries {
		if n, _, _ := strings.Cut(string(e), "="); n == "NVM_DIR" || n == "PWD" || n == "SHLVL" || n == "_" || n == "TERM" {
			t.Errorf("the build keeps %s", e)
		}
	}
	recipe := wire.Recipe{Environment: "env", Spec: raw(t, spec), ImageDigest: d.ImageDigest}
	session := w.session(recipe, d.BuildKey, w.repo())
	w.untilState(session, wire.StateRunning)
	w.untilLog(session, toolsAnswer+"dev /home/dev\n==> start script: done")
	for _, shell := range []string{"sh", "bash"} {
		if r := w.exec(session, shell, "-c", allTools); r.out != toolsAnswer {
			t.Errorf("an exec of %s: %+v", shell, r)
		}
	}
	if r := w.exec(session, "node"); r.out != "node\n" {
		t.Errorf("an exec of node itself: %+v", r)
	}
	if got := w.sh(session, `echo "$NVM_DIR"; echo "$NVM_BIN"`); got != "***\n/home/dev/.nvm/versions/node/v22.1.0/bin\n" {
		t.Errorf("NVM_DIR and NVM_BIN: %q", got)
	}
	term := w.open(session, wire.ChannelSpec{TTY: true, Rows: 24, Cols: 80})
	term.move([]byte(strings.ReplaceAll(allTools, " && ", "; ")+"\n"), false)
	term.until(strings.ReplaceAll(toolsAnswer, "\n", "\r\n"))
	// Root's login shell was not asked.
	if r := w.open(session, wire.ChannelSpec{Argv: []string{"sh", "-c", "echo $HOME; node"}, User: "root"}).end(); r.out != "/root\n" || r.exit.Code != 127 {
		t.Errorf("another user: %+v", r)
	}
}

func TestASessionProbesInTheWorkspaceAndAWakeUsesTheLastAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	spec := envspec.Spec{Image: w.image("app:v1", asCoder), Bootstrap: `mkdir -p /home/coder
echo 'export FROM_PROFILE=$(cat /workspace/word 2>/dev/null || echo build); [ ! -e /workspace/hang ] || sleep 1000' >/home/coder/.profile
export HOME=/home/coder
` + cargo + `
chown -R coder /home/coder`, Start: `echo "start has $FROM_PROFILE"; rustc; echo workspace >word`}
	recipe, key := w.version(spec)
	id := w.session(recipe, key, w.repo())
	w.untilState(id, wire.StateRunning)
	w.untilLog(id, "start has build\nrustc\n")
	if r := w.exec(id, "rustc"); r.out != "rustc\n" {
		t.Errorf("an exec: %+v", r)
	}
	term := w.open(id, wire.ChannelSpec{TTY: true, Rows: 24, Cols: 80})
	term.move([]byte("rustc\n"), false)
	term.until("\nrustc\r\n")
	w.untilEnv(id, "workspace")
	w.sh(id, "echo changed >word; touch hang")
	w.change(id, fleet.Stop)
	w.untilState(id, wire.StateAsleep)
	w.change(id, fleet.Run)
	w.untilState(id, wire.StateRunning)
	began := time.Now()
	if got := w.sh(id, "echo $FROM_PROFILE"); got != "workspace\n" {
		t.Errorf("after the wake: %q", got)
	}
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("the first command waited %s, perhaps for a probe that hangs", took)
	}
	w.untilLog(id, "the login shell (sh -lc) did not end within 10 s, so processes don't get its environment: look at /home/coder/.profile")
	w.until(id, "warned of", func(r fleet.Report) bool { return strings.Contains(string(r.Detail), "look at /home/coder/.profile") })
	if got := w.sh(id, "echo $FROM_PROFILE"); got != "workspace\n" {
		t.Errorf("after a probe that hung: %q", got)
	}
	if got := w.sh(id, "ps | grep -c 'sleep 100[0]' || :"); got != "0\n" {
		t.Errorf("processes of the probe are left: %s", got)
	}
}

// untilEnv waits until an exec has that word of FROM_PROFILE.
func (w *world) untilEnv(id, word string) {
	w.t.Helper()
	for end := time.Now().Add(limit); w.sh(id, "echo $FROM_PROFILE") != word+"\n"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("FROM_PROFILE is still %q", w.sh(id, "echo $FROM_PROFILE"))
		}
	}
}

func TestABuildWhoseLoginShellHangsPassesWithAWarning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	id := w.test(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: "printf 'export GOT=it\nsleep 1000\n' >/root/.profile", Start: `echo "<$GOT>"`}, w.repo())
	state, d := w.outcome(id)
	log := w.wholeLog(id)
	const warning = "the login shell (sh -lc) did not end within 10 s, so processes don't get its environment: look at /root/.profile"
	if state != wire.StatePassed || !slices.Contains(d.Notes, warning) || !strings.Contains(log, "==> bootstrap: "+warning) || !strings.Contains(log, "<>\n") {
		t.Errorf("%s: %+v\n%s", state, d, log)
	}
}

func TestTheBuildsProbeSeesNoVariableAndKeepsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	values := []*wire.Value{sensitive("API_KEY", "value-of-the-api-key", "s1", true), plain("PLAIN", "plain value", "p1")}
	w.owner.give("", values...)
	spec := having(envspec.Spec{Image: w.image("app:v1", nil), Bootstrap: `cat >/root/.profile <<END
echo "\$API_KEY\$PLAIN" >/root/seen
export API_KEY=$API_KEY OTHER=$API_KEY PLAIN=other KEPT=kept
END`, Start: `echo "<$(cat /root/seen)> $KEPT $PLAIN"`}, values...)
	id := w.test(spec, w.repo())
	state, d := w.outcome(id)
	if log := w.wholeLog(id); state != wire.StatePassed || !strings.Contains(log, "<> kept plain value\n") {
		t.Fatalf("%s: %+v\n%s", state, d.Failure, log)
	}
	base, _, err := w.runner.builder.Find(t.Context(), d.BuildKey)
	if err != nil || base.Meta.Login == nil {
		t.Fatal(err)
	}
	if all := fmt.Sprintf("%s", base.Meta.Login.Entries); strings.Contains(all, "value-of") || strings.Contains(all, "PLAIN") || !strings.Contains(all, "KEPT=kept") {
		t.Errorf("the build keeps %s", all)
	}
}

// withUser is an image whose USER is that.
func withUser(t *testing.T, img v1.Image, user string) v1.Image {
	t.Helper()
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.Config.User = user
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		t.Fatal(err)
	}
	return img
}
