package storetest

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// server starts this process's PostgreSQL on the first call and gives its URL. A guardian process, which waits on a pipe
// that only this process holds, stops it and deletes its files when this process ends, however it ends.
var server = sync.OnceValues(start)

// guardian is given: bin folder, template, run folder. It runs as the user that PostgreSQL runs as.
const guardian = `
bin=$1 template=$2 run=$3
cp -a "$template" "$run/data" || exit 1
"$bin/postgres" -D "$run/data" -k "$run" -c listen_addresses= -c max_connections=400 -c fsync=off \
	-c full_page_writes=off -c synchronous_commit=off -c shared_buffers=64MB -c max_locks_per_transaction=256 \
	-c max_wal_size=4GB -c autovacuum=off -c jit=off -c log_min_messages=fatal >"$run/log" 2>&1 </dev/null &
server=$!
cat >/dev/null
kill -QUIT $server
wait $server
rm -rf "$run"
`

// held keeps what must stay open for the life of this process.
var held []any

func start() (string, error) {
	bin, err := binaries()
	if err != nil {
		return "", err
	}
	who, err := runAs()
	if err != nil {
		return "", err
	}
	base, err := folder()
	if err != nil {
		return "", err
	}
	lock, err := lockFile(filepath.Join(base, "start"), unix.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	sweep(base)
	template, err := prepare(base, bin, who)
	if err != nil {
		return "", err
	}
	servers := filepath.Join(base, "run") // of the guardian's user, who deletes from it
	if err := os.Mkdir(servers, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	if err := who.own(servers); err != nil {
		return "", err
	}
	run, err := os.MkdirTemp(servers, "")
	if err != nil {
		return "", err
	}
	alive, err := lockFile(filepath.Join(base, filepath.Base(run)+".lock"), unix.LOCK_EX)
	if err != nil {
		return "", err
	}
	if err := who.own(run); err != nil {
		return "", err
	}
	cmd := exec.Command("/bin/sh", "-c", guardian, "guardian", bin, template, run)
	cmd.Dir = "/"
	cmd.SysProcAttr = who.attr()
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start PostgreSQL: %w", err)
	}
	held = append(held, pipe, alive)
	gone := make(chan struct{})
	go func() { _ = cmd.Wait(); close(gone) }()
	if err := ready(run, gone); err != nil {
		_ = pipe.Close()
		return "", err
	}
	return "postgres:///postgres?" + url.Values{"host": {run}, "user": {"postgres"}}.Encode(), nil
}

func ready(run string, gone <-chan struct{}) error {
	deadline := time.After(time.Minute)
	for {
		// The eighth line of the file is the server's own word on how far it is.
		b, _ := os.ReadFile(filepath.Join(run, "data", "postmaster.pid"))
		if lines := strings.Split(string(b), "\n"); len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready" {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
			continue
		case <-gone:
		case <-deadline:
		}
		log, _ := os.ReadFile(filepath.Join(run, "log"))
		return fmt.Errorf("the tests' PostgreSQL did not start: %s", strings.TrimSpace(string(log)))
	}
}

// binaries finds the folder of PostgreSQL's server programs, the newest of Debian's if there are several.
func binaries() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	sort.Slice(found, func(i, j int) bool { return major(found[i]) > major(found[j]) })
	if len(found) > 0 {
		return filepath.Dir(found[0]), nil
	}
	if p, err := exec.LookPath("initdb"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil {
			return filepath.Dir(p), nil
		}
	}
	return "", errors.New("the tests need PostgreSQL's server: apt-get install postgresql (or set CLAUDE_HUB_TEST_POSTGRES to a database's URL)")
}

func major(initdb string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(initdb))))
	return n
}

// account is whom PostgreSQL runs as: it refuses to be root.
type account struct{ uid, gid int }

func runAs() (account, error) {
	if os.Getuid() != 0 {
		return account{os.Getuid(), os.Getgid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, err1 := strconv.Atoi(u.Uid)
			gid, err2 := strconv.Atoi(u.Gid)
			return account{uid, gid}, errors.Join(err1, err2)
		}
	}
	return account{}, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as")
}

func (a account) attr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true} // a Ctrl-C is for the test; the guardian sees to the rest
	if os.Getuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

func (a account) own(path string) error {
	return errors.Join(os.Chown(path, a.uid, a.gid), os.Chmod(path, 0o700))
}

// folder is where servers of this user's test processes live. A socket's path has little room, so it is short.
func folder() (string, error) {
	tmp := os.TempDir()
	if len(tmp) > 40 {
		tmp = "/tmp"
	}
	base := filepath.Join(tmp, "claude-hub-test-postgres-"+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(base, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	st, err := os.Lstat(base)
	if err != nil {
		return "", err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !st.IsDir() || !ok || int(sys.Uid) != os.Getuid() {
		return "", fmt.Errorf("%s is in the way: it is not a folder of this user", base)
	}
	return base, nil
}

// prepare makes an empty data folder once for all test processes (initdb takes seconds); each server starts on a copy.
func prepare(base, bin string, who account) (string, error) {
	version, err := exec.Command(filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	fields := strings.Fields(string(version)) // postgres (PostgreSQL) 15.8 (Debian …)
	if len(fields) < 3 {
		return "", fmt.Errorf("PostgreSQL calls its version %q", version)
	}
	template := filepath.Join(base, "template-"+fields[2]+"-"+strconv.Itoa(who.uid))
	if _, err := os.Stat(filepath.Join(template, "PG_VERSION")); err == nil {
		return template, nil
	}
	unfinished := template + ".new"
	if err := errors.Join(os.RemoveAll(unfinished), os.Mkdir(unfinished, 0o700), who.own(unfinished)); err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(bin, "initdb"), "-D", unfinished, "-U", "postgres", "-A", "trust", "-E", "UTF8",
		"--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir = "/"
	cmd.SysProcAttr = who.attr()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w: %s", err, out)
	}
	return template, os.Rename(unfinished, template)
}

// sweep deletes what a guardian could not, because it was killed together with its test process.
func sweep(base string) {
	locks, _ := filepath.Glob(filepath.Join(base, "*.lock"))
	for _, path := range locks {
		lock, err := lockFile(path, unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue // its test process lives
		}
		run := filepath.Join(base, "run", strings.TrimSuffix(filepath.Base(path), ".lock"))
		data := filepath.Join(run, "data")
		b, _ := os.ReadFile(filepath.Join(data, "postmaster.pid"))
		first, _, _ := strings.Cut(string(b), "\n")
		if pid, err := strconv.Atoi(first); err == nil {
			// The number may be another process's by now; only a server of this folder stands in it.
			if cwd, err := os.Readlink("/proc/" + first + "/cwd"); err == nil && cwd == data {
				_ = unix.Kill(pid, unix.SIGQUIT)
			}
		}
		_ = os.RemoveAll(run)
		_ = os.Remove(path)
		_ = lock.Close()
	}
}

func lockFile(path string, how int) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
