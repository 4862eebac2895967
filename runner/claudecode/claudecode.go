// Package claudecode keeps Claude Code's Linux builds on a Runner's host, so that Sandboxes can have the one that their image's C
// library needs (ADR 0009). A build is some 400 MB: there is one of each on a Runner, which every Sandbox sees read-only and none
// copies.
package claudecode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// Guest is where a Sandbox has the Store's folder; no dot, as for every guest path.
const Guest = "/run/claude-hub-claude-code"

// ErrNone is that the Store has no such build and nowhere to get it from.
var ErrNone = errors.New("there is no such build of Claude Code")

// Options of a Store.
type Options struct {
	// Version is what is put into Sandboxes, such as 2.1.332. It belongs to the key of every build, in Folder's case, too.
	Version string
	// Folder holds linux-x64/claude, linux-x64-musl/claude and so on, and is never written to. Empty: what is needed is fetched from
	// npm into Dir.
	Folder string
	Dir    string   // of this package below the Runner's data folder
	Env    []string // for npm, over the environment of this process: a proxy
}

// Store is the builds of one version. A nil Store is that Sandboxes get none. Its methods may be called from many goroutines.
type Store struct {
	o      Options
	folder string
	turn   chan struct{} // held by who fetches
}

var versions = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// Check says what is wrong with a configuration, in a sentence.
func Check(version, folder string) error {
	switch {
	case version == "" && folder == "":
		return nil
	case version == "":
		return errors.New("runner.claude_code.version is missing: builds are known by it, so that another version of the program makes new ones")
	case !versions.MatchString(version):
		return fmt.Errorf("runner.claude_code.version: %q is not a version; write it in full, like 2.1.332", version)
	case folder != "" && !filepath.IsAbs(folder):
		return fmt.Errorf("runner.claude_code.folder: %q must be an absolute path", folder)
	}
	return nil
}

// Open makes the Store; nil if no version is named.
func Open(o Options) (*Store, error) {
	if err := Check(o.Version, o.Folder); err != nil || o.Version == "" {
		return nil, err
	}
	s := &Store{o: o, folder: filepath.Clean(o.Folder), turn: make(chan struct{}, 1)}
	if o.Folder == "" {
		s.folder = filepath.Join(o.Dir, o.Version)
		if err := os.MkdirAll(s.folder, 0o755); err != nil {
			return nil, err
		}
		return s, clean(o.Dir)
	}
	if fi, err := os.Stat(s.folder); err != nil || !fi.IsDir() {
		return nil, fmt.Errorf("runner.claude_code.folder: %s is no folder that can be read", o.Folder)
	}
	return s, nil
}

// clean takes away what a fetch that was killed left.
func clean(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, fetching+"*"))
	if err != nil {
		return err
	}
	for _, l := range left {
		err = errors.Join(err, os.RemoveAll(l))
	}
	return err
}

const fetching = "fetching-"

// Version is what belongs to a build's key; empty for a nil Store.
func (s *Store) Version() string {
	if s == nil {
		return ""
	}
	return s.o.Version
}

// Folder is what a Sandbox sees at Guest. What is fetched later appears in it there, too.
func (s *Store) Folder() string { return s.folder }

// Has says whether the build is here.
func (s *Store) Has(build string) bool {
	fi, err := os.Stat(filepath.Join(s.folder, build, "claude"))
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

// fetchLimit bounds one fetch.
const fetchLimit = 15 * time.Minute

// Get makes sure that a build, such as linux-x64-musl, is here. What several ask for at once is fetched once. The error is a
// sentence; ErrNone where Options.Folder lacks it.
func (s *Store) Get(ctx context.Context, build string) error {
	if s.Has(build) {
		return nil
	}
	if s.o.Folder != "" {
		return fmt.Errorf("%w: runner.claude_code.folder has no program %s", ErrNone, filepath.Join(s.folder, build, "claude"))
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s.Has(build) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fetchLimit, fmt.Errorf("npm did not finish within %s", fetchLimit))
	defer cancel()
	if err := s.fetch(ctx, build); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

func (s *Store) fetch(ctx context.Context, build string) error {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return errors.New("there is no npm on this host to fetch it with; install npm, or set runner.claude_code.folder")
	}
	tmp, err := os.MkdirTemp(s.o.Dir, fetching)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	name := "@anthropic-ai/claude-code-" + build + "@" + s.o.Version
	cmd := exec.CommandContext(ctx, npm, "pack", "--json", "--ignore-scripts", "--cache", filepath.Join(tmp, "cache"), name)
	var stdout, stderr tail
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = tmp, append(os.Environ(), s.o.Env...), &stdout, &stderr, time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("npm could not fetch %s: %w: %s", name, err, stderr.line())
	}
	var packed []struct{ Filename, Integrity string }
	if err := json.Unmarshal(stdout.b, &packed); err != nil || len(packed) != 1 {
		return fmt.Errorf("npm said nothing about %s that can be read", name)
	}
	made := filepath.Join(tmp, build)
	if err := unpack(filepath.Join(tmp, filepath.Base(packed[0].Filename)), packed[0].Integrity, made); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := os.RemoveAll(filepath.Join(s.folder, build)); err != nil {
		return err
	}
	return os.Rename(made, filepath.Join(s.folder, build))
}

// tail keeps the end of what npm says.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 64<<10 {
		t.b = append([]byte(nil), t.b[len(t.b)-64<<10:]...)
	}
	return len(p), nil
}

// line is the first of npm's lines that says what went wrong.
func (t *tail) line() string {
	for l := range strings.Lines(string(t.b)) {
		l = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(l), "npm error"))
		if l != "" && !strings.HasPrefix(l, "code ") && !strings.HasPrefix(l, "npm ") {
			return l
		}
	}
	return "it did not say why"
}

// Detect is a shell script that prints the C library of the root filesystem it runs in: glibc, musl, or an empty line. It goes by
// what the kernel has loaded its own shell with. A shell that is linked statically says nothing: then by which loader is there. It
// uses nothing but what every shell has built in.
const Detect = `kind=
while read -r _ _ _ _ _ file; do
	case $file in
	*/ld-musl-* | */libc.musl-* | *-musl/libc.so | /lib/libc.so | /usr/lib/libc.so) kind=musl ;;
	*/ld-linux* | */ld-2.*.so | */libc.so.6 | */libc-2.*.so) kind=glibc ;;
	esac
done </proc/$$/maps
if [ -z "$kind" ]; then
	for file in /lib/ld-musl-*.so.1; do
		if [ -e "$file" ]; then kind=musl; fi
	done
	for file in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do
		if [ -e "$file" ]; then kind=glibc; fi
	done
fi
echo "$kind"
`

// Build is the build for what Detect printed, on this host's processor; empty if there is none.
func Build(detected string) string {
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	switch libc := strings.TrimSpace(detected); {
	case arch == "":
	case libc == "glibc":
		return "linux-" + arch
	case libc == "musl":
		return "linux-" + arch + "-musl"
	}
	return ""
}

// Link is a shell script that puts a build on PATH as claude, unless the image or its bootstrap has one: then it prints "own".
func Link(build string) string {
	target := Guest + "/" + build + "/claude"
	return `if [ ! /usr/local/bin/claude -ef ` + target + ` ] && command -v claude >/dev/null 2>&1; then
	echo own
	exit 0
fi
if [ ! -d /usr/local/bin ]; then mkdir -p /usr/local/bin || exit 1; fi
ln -sf ` + target + ` /usr/local/bin/claude
`
}
