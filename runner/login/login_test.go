package login

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
)

// host runs commands on this host as an agent does in a Sandbox: without a terminal, in a session of their own.
type host struct {
	home      string
	lacksBash bool
}

func (h host) Run(ctx context.Context, c agent.Cmd, stdout, stderr io.Writer) (agent.Exit, error) {
	argv := c.Argv
	if h.lacksBash {
		if argv[0] == "bash" {
			return agent.Exit{}, agent.ErrNotFound
		}
		argv = append([]string{"busybox"}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = append(c.Env, "HOME="+h.home, "TERM=dumb"), h.home, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return agent.Exit{}, err
	}
	stop := context.AfterFunc(ctx, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer stop()
	err := cmd.Wait()
	if ctx.Err() != nil {
		return agent.Exit{}, ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return agent.Exit{}, err
	}
	return agent.Exit{Code: cmd.ProcessState.ExitCode()}, nil
}

func home(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for n, body := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, n)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, n), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func value(e *Env, key string) string {
	if e == nil {
		return "no environment"
	}
	for _, entry := range e.Entries {
		if k, v, _ := strings.Cut(string(entry), "="); k == key {
			return v
		}
	}
	return "unset"
}

var start = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "FROM_IMAGE=1"}

const profile = `if [ -n "$BASH_VERSION" ] && [ -f "$HOME/.bashrc" ]; then . "$HOME/.bashrc"; fi
`

func TestStartupFilesOfAllKindsGiveTheirEnvironment(t *testing.T) {
	t.Parallel()
	guard := "case $- in\n    *i*) ;;\n      *) return;;\nesac\n"
	for name, rc := range map[string]string{
		"plain":                    "export GOT=it\n",
		"behind Debian's guard":    guard + "export GOT=it\n",
		"behind Ubuntu's guard":    "[ -z \"$PS1\" ] && return\nexport GOT=it\n",
		"prints":                   "printf 'GOT=not\\n\\0FOO=bar\\n\\033[31mwelcome'; echo banner >&2; export GOT=it\n",
		"ends with exec":           "export GOT=it\nexec sh -c 'echo another shell; exit 3'\n",
		"exits":                    "export GOT=it\nexit 7\n",
		"sets -e and goes on":      "set -e\nexport GOT=it\n",
		"sets -e and fails":        "set -e\nexport GOT=it\nfalse\nexport GOT=not\n",
		"sets -u":                  "set -u\nexport GOT=it\n",
		"sets -x":                  "set -x\nexport GOT=it\n",
		"reads input":              "read x || export GOT=it\n",
		"renames commands":         "export GOT=it\nalias cat='echo no' printf='echo no' command='echo no'\ncat() { echo no; }; printf() { echo no; }\n",
		"loses the standard PATH":  "export GOT=it PATH=/nowhere\n",
		"leaves a process behind":  "export GOT=it\nsleep 300 </dev/null >/dev/null 2>&1 &\n",
		"leaves one with the pipe": "export GOT=it\nsleep 300 &\n",
		"redirects its errors":     "exec 2>/dev/null\nexport GOT=it\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := host{home: home(t, map[string]string{".profile": profile, ".bashrc": rc})}
			env, warning, err := Probe{Client: h, ID: "p", Env: start}.Run(t.Context())
			if err != nil || warning != "" || value(env, "GOT") != "it" {
				t.Fatalf("GOT is %s, %q %v", value(env, "GOT"), warning, err)
			}
			if got := value(env, "FROM_IMAGE"); got != "1" {
				t.Errorf("FROM_IMAGE is %s", got)
			}
			for _, n := range own {
				if v := value(env, n); v != "unset" {
					t.Errorf("%s=%s was carried over", n, v)
				}
			}
		})
	}
}

func TestWithoutBashTheProfileCounts(t *testing.T) {
	t.Parallel()
	for name, rc := range map[string]string{
		"plain": "export GOT=it\n", "exits": "export GOT=it\nexit 7\n", "sets -e and fails": "set -e\nexport GOT=it\nfalse\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := host{home: home(t, map[string]string{".profile": rc}), lacksBash: true}
			env, warning, err := Probe{Client: h, ID: "p", Env: start}.Run(t.Context())
			if err != nil || warning != "" || value(env, "GOT") != "it" {
				t.Fatalf("GOT is %s, %q %v", value(env, "GOT"), warning, err)
			}
		})
	}
}

func TestAStartupFileThatHangsIsEndedAndNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		names string
		posix bool
	}{
		"a command":       {files: map[string]string{".bashrc": "export A=1\nsleep 300\n"}, names: ".bashrc, line 2"},
		"read by another": {files: map[string]string{".bashrc": ". ~/.tool/env\n", ".tool/env": "\n\nx=$(sleep 300 2>/dev/null)\n"}, names: ".tool/env, line 3"},
		"a loop":          {files: map[string]string{".bashrc": "while :; do :; done\n"}, names: ".bashrc, line 1"},
		"with sh":         {files: map[string]string{".profile": "sleep 300\n"}, names: ".profile", posix: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.files[".profile"] == "" {
				c.files[".profile"] = profile
			}
			h := host{home: home(t, c.files), lacksBash: c.posix}
			began := time.Now()
			env, warning, err := Probe{Client: h, ID: "p", Env: start, limit: 3 * time.Second}.Run(t.Context())
			if env != nil || err != nil || !strings.Contains(warning, "did not end within 3 s") || !strings.Contains(warning, "look at "+h.home+"/"+c.names) {
				t.Errorf("%v %q %v", env, warning, err)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestWhatIsDroppedAndWhatIsUnset(t *testing.T) {
	t.Parallel()
	h := host{home: home(t, map[string]string{".profile": profile, ".bashrc": `unset FROM_IMAGE LANG
export API_KEY=from-a-file COPY="x-from-a-file-x" BYTES=$'\xff\n=' DOT=kept
f() { :; }; export -f f
`})}
	p := Probe{Client: h, ID: "p", Env: start, Drop: func(n string) bool { return n == "API_KEY" || n == "LANG" },
		Holds: func(e string) bool { return strings.Contains(e, "from-a-file") }}
	env, _, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if value(env, "API_KEY") != "unset" || value(env, "COPY") != "unset" || value(env, "BYTES") != "\xff\n=" || value(env, "DOT") != "kept" {
		t.Errorf("%q", env.Entries)
	}
	if slices.ContainsFunc(env.Entries, func(e []byte) bool { return bytes.HasPrefix(e, []byte("BASH_FUNC")) }) {
		t.Errorf("a function was carried over: %q", env.Entries)
	}
	if !slices.Equal(env.Unset, []string{"FROM_IMAGE"}) {
		t.Errorf("unset: %q", env.Unset)
	}
	over := env.Over([]string{"FROM_IMAGE=1", "LANG=C", "PATH=/bin"})
	if slices.Contains(over, "FROM_IMAGE=1") || !slices.Contains(over, "LANG=C") || !slices.Contains(over, "BYTES=\xff\n=") {
		t.Errorf("over: %q", over)
	}
}

func TestAnEnvironmentThatIsTooLargeIsRefusedWithAWarning(t *testing.T) {
	t.Parallel()
	h := host{home: home(t, map[string]string{".profile": "export BIG=$(head -c 70000 /dev/zero | tr '\\0' x)\n"})}
	env, warning, err := Probe{Client: h, ID: "p", Env: start}.Run(t.Context())
	if env != nil || err != nil || !strings.Contains(warning, "larger than 64 KiB") {
		t.Errorf("%v %q %v", env != nil, warning, err)
	}
}

func TestFloodsDoNotHideTheAnswer(t *testing.T) {
	t.Parallel()
	h := host{home: home(t, map[string]string{".profile": "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; export GOT=it\n"})}
	env, warning, err := Probe{Client: h, ID: "p", Env: start}.Run(t.Context())
	if err != nil || value(env, "GOT") != "it" {
		t.Errorf("GOT is %s, %q %v", value(env, "GOT"), warning, err)
	}
}
