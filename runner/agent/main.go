package agent

import (
	"crypto/rand"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// listenerFD is the descriptor on which the engine hands over the socket that the agent is called on.
const listenerFD = 3

// init is main for PID 1, for git's credential helper and for a connection to a port. This package imports little, so Go runs it before the initialisation of the rest of the binary,
// which would keep each Sandbox waiting for some milliseconds and hold several megabytes in it, as for a stage.
func init() {
	if len(os.Args) < 2 || os.Args[1] != "agent" {
		return
	}
	if len(os.Args) > 2 && os.Args[2] == helperArg {
		os.Exit(credentialHelper(os.Args[3:], os.Stdin, os.Stdout, os.Stderr))
	}
	if len(os.Args) > 2 && os.Args[2] == connectArg {
		os.Exit(connect(os.Args[3:], os.Stdin, os.Stdout, os.Stderr))
	}
	if os.Getpid() == 1 {
		os.Exit(Main(os.Args[2:]))
	}
}

// Main is the hidden `agent` command: PID 1 of a Sandbox. It returns the exit code when it can't be that, or after Stop.
// It must be PID 1 of a pid namespace of its own, and refuses to run otherwise: that is what tells a caller outside
// (whose pid it sees as 0) from a process of the Sandbox.
func Main(args []string) int {
	// Whatever the engine or the runtime left open is for no child (facts/sandbox.md §2.1).
	syscall.CloseOnExec(listenerFD)
	unix.CloseRange(listenerFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) //nolint:errcheck // beside the line above, care
	if len(args) > 0 {
		fmt.Fprintln(os.Stderr, "claude-hub agent takes no arguments; it is started by a Runner")
		return 2
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "claude-hub agent is PID 1 of a Sandbox and is started by a Runner, not by hand")
		return 2
	}
	config := os.Getenv(BootEnv)
	os.Unsetenv(BootEnv)
	settle()
	l, err := takeListener(listenerFD)
	if err != nil {
		fmt.Fprintf(os.Stderr, "claude-hub agent: descriptor %d is no socket to be called on: %v\n", listenerFD, err)
		return 2
	}
	a := &agent{boot: rand.Text(), reaper: newReaper(), cmds: map[string]*command{}, stopped: make(chan struct{})}
	go a.reaper.run()
	boot, problems := readBoot(config)
	a.problems = append(problems, writeBootFiles("/", boot)...)
	if err := a.prepare(boot); err != nil {
		// Without its filter, a Sandbox would be more than it may be.
		fmt.Fprintf(os.Stderr, "claude-hub agent: %v\n", err)
		return 2
	}
	go a.serve(l)
	<-a.stopped
	return 0
}

// settle makes the process what PID 1 should be: small, without core files, and deaf to signals from inside.
func settle() {
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(25)
	debug.SetMemoryLimit(40 << 20)
	unix.Umask(0o022)
	// A core file would be a copy of a process's environment on a disk (facts/sandbox.md §2.9). Children inherit it.
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) //nolint:errcheck // lowering is always allowed
	// Go exits on these, so `kill 1` would end the Sandbox. They are caught and dropped rather than ignored, because
	// what is ignored stays ignored in every child. A fault of the agent itself is still a panic.
	drop := make(chan os.Signal, 1)
	signal.Notify(drop, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGPROF, syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGIO, syscall.SIGPWR,
		syscall.SIGABRT, syscall.SIGTRAP, syscall.SIGILL, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV,
		syscall.SIGSYS, syscall.SIGSTKFLT, syscall.SIGPIPE)
}
