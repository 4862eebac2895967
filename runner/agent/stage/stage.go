// Package stage is the moment between fork and exec of every process an agent starts: the same binary, run once more
// as `agent exec-stage`, moves itself into the Sandbox's `user` cgroup, becomes the user, goes to the folder and execs.
//
// It is a process of its own, rather than options of clone, because that works the same on cgroup v1 and v2, under
// seccomp profiles without clone3, and because the folder and the PATH are then seen with the user's own permissions
// (facts/sandbox.md §2.3). What it is to run comes through an inherited socket, so neither environment nor arguments
// touch a disk or a command line that others can read.
//
// The work is done in this package's init: it imports little, so Go runs it before the initialisation of the rest of
// the binary, which costs several milliseconds and several megabytes.
package stage

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"unsafe"
)

// Arg is the second argument after the binary's name that makes a process a stage: `<binary> agent exec-stage`.
const Arg = "exec-stage"

// FD is the descriptor the request is read from and the reports are written to.
const FD = 3

// MaxRequest bounds an encoded Request in bytes; Linux itself refuses arguments and environment beyond 6 MiB.
const MaxRequest = 12 << 20

// DefaultPath is searched when the environment has no PATH.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Request is what to run. Byte slices, not strings, because JSON would mend what isn't UTF-8.
type Request struct {
	// Names are tried in turn for the program, each by PATH unless it has a slash; the first that can be run is.
	Names [][]byte
	// Argv is complete; where Argv[0] is empty the path that was found takes its place.
	Argv, Env [][]byte
	// Path is the PATH to search.
	Path []byte
	// Dir is where to start; if it can't be entered, "/" takes its place and the report says so, or, with NeedDir,
	// nothing is run.
	Dir      string
	NeedDir  bool
	UID, GID int
	Groups   []int
	// Cgroups are cgroup.procs files; those that exist must take the process.
	Cgroups []string
	// Withheld are capabilities, by number, that the agent has for itself and the program must not get in any way.
	Withheld []int `json:",omitempty"`
}

// The steps a Report can name.
const (
	StepReady  = "ready"  // everything is set, exec comes next
	StepCgroup = "cgroup" // Subject: the file that refused
	StepUser   = "user"   // becoming the user failed
	StepDir    = "dir"    // Subject: the folder that was needed and could not be entered
	StepExec   = "exec"   // Subject: the last path tried
	StepLoader = "loader" // Subject exists, but the interpreter or loader it asks for doesn't
	StepAbsent = "absent" // none of Names was found
	StepBroken = "broken" // the request could not be read
)

// Report is a line of JSON. After Ready the end of the stream means that exec succeeded; without Ready it means that
// the stage was killed.
type Report struct {
	Step        string
	Subject     []byte `json:",omitempty"`
	Errno       int    `json:",omitempty"`
	DirFallback bool   `json:",omitempty"`
}

func init() {
	if len(os.Args) == 3 && os.Args[1] == "agent" && os.Args[2] == Arg {
		run()
		os.Exit(127)
	}
}

// run returns only if nothing could be executed. The main goroutine is locked to the main thread during init, so the
// ids set here are those of the thread that execs.
func run() {
	syscall.CloseOnExec(FD)
	conn := os.NewFile(FD, "stage")
	rq, err := read(conn)
	if err != nil {
		report(conn, Report{Step: StepBroken, Errno: errno(err)})
		return
	}
	for _, f := range rq.Cgroups {
		if err := join(f); err != nil {
			report(conn, Report{Step: StepCgroup, Subject: []byte(f), Errno: errno(err)})
			return
		}
	}
	if err := withhold(rq.Withheld); err != nil {
		report(conn, Report{Step: StepUser, Errno: errno(err)})
		return
	}
	if err := become(rq.UID, rq.GID, rq.Groups); err != nil {
		report(conn, Report{Step: StepUser, Errno: errno(err)})
		return
	}
	ready := Report{Step: StepReady}
	if rq.Dir == "" {
		rq.Dir = "/"
	}
	if err := syscall.Chdir(rq.Dir); err != nil {
		if rq.NeedDir {
			report(conn, Report{Step: StepDir, Subject: []byte(rq.Dir), Errno: errno(err)})
			return
		}
		ready.DirFallback = true
		if err := syscall.Chdir("/"); err != nil {
			report(conn, Report{Step: StepExec, Subject: []byte("/"), Errno: errno(err)})
			return
		}
	}
	report(conn, ready)
	report(conn, execute(rq))
}

func read(r io.Reader) (Request, error) {
	var rq Request
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return rq, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxRequest {
		return rq, syscall.EMSGSIZE
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return rq, err
	}
	return rq, json.Unmarshal(b, &rq)
}

// Encode makes the bytes a stage reads.
func Encode(rq Request) ([]byte, error) {
	b, err := json.Marshal(rq)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxRequest {
		return nil, syscall.E2BIG
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...), nil
}

func report(w io.Writer, r Report) {
	b, _ := json.Marshal(r)
	w.Write(append(b, '\n')) //nolint:errcheck // the agent reads the end of the stream as the failure it is
}

// join moves this process into a cgroup. A hierarchy that isn't there limits nothing and is no error.
func join(file string) error {
	fd, err := syscall.Open(file, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err == syscall.ENOENT || err == syscall.ENOTDIR {
		return nil
	}
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	_, err = syscall.Write(fd, []byte("0"))
	return err
}

func become(uid, gid int, groups []int) error {
	ids := make([]uint32, len(groups))
	for i, g := range groups {
		ids[i] = uint32(g)
	}
	first := unsafe.Pointer(unsafe.SliceData(ids))
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(ids)), uintptr(first), 0); e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
		return e
	}
	return nil
}

// execute tries each name in each folder, as execvp does. It returns only when none could be run, with the reason that
// tells most: a program that is there but can't be run before one that isn't there.
func execute(rq Request) Report {
	worst := Report{Step: StepAbsent, Errno: int(syscall.ENOENT)}
	if len(rq.Names) > 0 {
		worst.Subject = rq.Names[0]
	}
	env := texts(rq.Env)
	defaultSignals()
	for _, name := range texts(rq.Names) {
		for _, path := range candidates(name, string(rq.Path)) {
			argv := texts(rq.Argv)
			if len(argv) == 0 || argv[0] == "" {
				argv = append([]string{path}, argv[min(1, len(argv)):]...)
			}
			err := syscall.Exec(path, argv, env)
			switch {
			case err == syscall.ENOTDIR || err == syscall.ENOENT && !exists(path):
				continue
			case err == syscall.ENOENT:
				worst = Report{Step: StepLoader, Subject: []byte(path), Errno: int(syscall.ENOENT)}
			case err == syscall.EACCES && isDir(path):
				continue
			case err == syscall.EACCES:
				worst = Report{Step: StepExec, Subject: []byte(path), Errno: int(syscall.EACCES)}
			default:
				return Report{Step: StepExec, Subject: []byte(path), Errno: errno(err)}
			}
		}
	}
	return worst
}

func candidates(name, path string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	if name == "" {
		return nil
	}
	var out []string
	for _, d := range strings.Split(path, ":") {
		if d == "" {
			d = "."
		}
		out = append(out, d+"/"+name)
	}
	return out
}

func exists(path string) bool {
	var st syscall.Stat_t
	return syscall.Stat(path, &st) == nil
}

func isDir(path string) bool {
	var st syscall.Stat_t
	return syscall.Stat(path, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR
}

func texts(b [][]byte) []string {
	s := make([]string, len(b))
	for i := range b {
		s[i] = string(b[i])
	}
	return s
}

func errno(err error) int {
	var e syscall.Errno
	if errors.As(err, &e) {
		return int(e)
	}
	return int(syscall.EINVAL)
}
