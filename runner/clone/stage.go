package clone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Where git finds its things, in a mount namespace of its own. The data folder's parents may be closed to git's id,
// so what it needs is bound to paths that it can walk.
const (
	stageRoot   = "/run/claude-hub-clone"
	stageWork   = stageRoot + "/work"
	stageRepo   = stageRoot + "/repo.git"
	stageConfig = stageRoot + "/config"
	// stageTemplate is what each .git begins with, instead of the host's samples.
	stageTemplate = stageRoot + "/template"
	// stageName is the argv[0] under which this binary is its own helper: it makes the namespace, gives up root and
	// becomes git. An argv[0] instead of a command, so that tests and every binary that links this package have it.
	stageName = "claude-hub-clone-stage"
	stageFail = 125

	fdPlan        = 3
	fdCredentials = 4
)

// plan is what the stage does.
type plan struct {
	Work   string
	Repo   string // empty: a remote one
	Config string
	Git    string
	Args   []string
	Env    []string
	UID    int
	GID    int
}

func init() {
	if len(os.Args) == 1 && os.Args[0] == stageName {
		err := runStage()
		fmt.Fprintf(os.Stderr, "claude-hub: preparing the clone failed: %v\n", err)
		os.Exit(stageFail)
	}
}

func (g *git) stage(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	path, err := exec.LookPath("git")
	if err != nil {
		return &Error{Code: CodeFailed, Message: "this Runner's host has no git; install the package git"}
	}
	p := plan{
		Work: g.temp, Repo: g.remote.local, Config: g.config(), Git: path, Args: append([]string{"git"}, args...),
		UID: g.o.UID, GID: g.o.GID, Env: append([]string{
			"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_CONFIG_GLOBAL=" + stageConfig, "GIT_TERMINAL_PROMPT=0", "GIT_PROTOCOL_FROM_USER=0",
		}, g.o.Env...),
	}
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	planFile, err := memory("claude-hub-clone-plan", body)
	if err != nil {
		return err
	}
	defer planFile.Close()
	files := []*os.File{planFile}
	if g.o.Credentials != nil && g.remote.host != "" {
		f, err := memory("claude-hub-clone-credentials", g.o.Credentials.answer())
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
	}
	if err := os.Mkdir(stageRoot, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{stageName}
	cmd.Dir, cmd.Env, cmd.ExtraFiles = "/", []string{"GOMAXPROCS=1"}, files
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// In a process namespace of its own the end of git is the end of all its children, and git ends with the Runner.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL, Setpgid: true,
	}
	done := make(chan error, 1)
	go func() {
		// The parent-death signal is tied to the thread that forked.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- cmd.Run()
	}()
	return <-done
}

func (g *git) config() string {
	var b strings.Builder
	// All is made durable at the end, once.
	b.WriteString("[core]\n\thooksPath = /dev/null\n\tfsmonitor = false\n\taskPass = \n\tfsync = none\n" +
		"[protocol]\n\tallow = never\n[protocol \"https\"]\n\tallow = always\n[protocol \"http\"]\n\tallow = always\n" +
		"[user]\n\tname = claude-hub\n\temail = claude-hub@localhost\n" +
		"[http]\n\tlowSpeedLimit = 1000\n\tlowSpeedTime = 60\n[advice]\n\tdetachedHead = false\n" +
		"[init]\n\tdefaultBranch = main\n[gc]\n\tauto = 0\n")
	if g.remote.local != "" {
		b.WriteString("[protocol \"file\"]\n\tallow = always\n[safe]\n\tdirectory = *\n")
	}
	if g.o.Credentials != nil && g.remote.host != "" {
		// The answer is read from inherited memory; for this host only, so that a redirect elsewhere gets nothing.
		fmt.Fprintf(&b, "[credential \"%s://%s\"]\n\thelper = \"!cat /proc/self/fd/%d #\"\n", g.remote.scheme, g.remote.host, fdCredentials)
	}
	return b.String()
}

// memory is a sealed file in memory that holds b.
func memory(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(b, 0); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// runStage returns only when it failed.
func runStage() error {
	runtime.LockOSThread()
	f := os.NewFile(fdPlan, "plan")
	body, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	f.Close()
	var p plan
	if err := json.Unmarshal(body, &p); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", stageRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=755"); err != nil {
		return fmt.Errorf("mounting %s: %w", stageRoot, err)
	}
	if err := bind(p.Work, stageWork, unix.MS_NOSUID|unix.MS_NODEV); err != nil {
		return err
	}
	if p.Repo != "" {
		if err := bind(p.Repo, stageRepo, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY); err != nil {
			return err
		}
	}
	if err := os.WriteFile(stageConfig, []byte(p.Config), 0o644); err != nil {
		return err
	}
	// Programs and people write to these two without asking whether they are there.
	for _, d := range []string{"hooks", "info"} {
		if err := os.MkdirAll(filepath.Join(stageTemplate, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chdir(stageWork); err != nil {
		return err
	}
	syscall.Umask(0o022)
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setresgid(p.GID, p.GID, p.GID); err != nil {
		return err
	}
	if err := syscall.Setresuid(p.UID, p.UID, p.UID); err != nil {
		return err
	}
	// Giving up root cleared it.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return fmt.Errorf("starting %s: %w", filepath.Base(p.Git), syscall.Exec(p.Git, p.Args, p.Env))
}

func bind(from, to string, flags uintptr) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("binding %s: %w", filepath.Base(from), err)
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
		return fmt.Errorf("binding %s: %w", filepath.Base(from), err)
	}
	return nil
}
