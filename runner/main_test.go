package runner

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"gopkg.in/yaml.v3"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/sandbox/oci"
)

const processEnv = "CLAUDE_HUB_TEST_RUNNER"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		os.Exit(agent.Main(os.Args[2:]))
	}
	if plan := os.Getenv(processEnv); plan != "" {
		os.Exit(runnerProcess(plan))
	}
	if err := ready(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	sweepOld()
	os.Exit(m.Run())
}

// ready says in a sentence what these tests need.
func ready() error {
	if os.Geteuid() != 0 {
		return errors.New("these tests boot real Sandboxes: run them as root")
	}
	for _, p := range [][2]string{{"runc", "runc"}, {"nft", "nftables"}, {"mkfs.ext4", "e2fsprogs"}, {"ip", "iproute2"}, {"busybox", "busybox-static"}, {"git", "git"}} {
		if _, err := exec.LookPath(p[0]); err != nil {
			return fmt.Errorf("these tests need the program %s: apt-get install %s", p[0], p[1])
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	f, err := elf.Open(self)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Section(".interp") != nil {
		return errors.New("the test binary is PID 1 of the Sandboxes and must be static: run the tests with CGO_ENABLED=0")
	}
	return nil
}

// process is a Runner to run in a process of its own, which can be killed.
type process struct {
	Data     string
	Identity hubclient.Identity
	Config   Config
}

func runnerProcess(plan string) int {
	var p process
	if err := yaml.Unmarshal([]byte(plan), &p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p.Config.Agent = selfAgent()
	r, err := New(p.Data, p.Identity, p.Config, "test", zerolog.New(os.Stderr).Level(zerolog.InfoLevel))
	if err == nil {
		err = r.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func selfAgent() []string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return []string{self, "agent"}
}

const testRunDirs = "/run/chr-"

var testDirs atomic.Int64

func testRunDir() string {
	return fmt.Sprintf("%s%d-%d", testRunDirs, os.Getpid(), testDirs.Add(1))
}

// sweepOld takes away what test processes that were killed left on the host.
func sweepOld() {
	dirs, _ := filepath.Glob(testRunDirs + "*")
	for _, d := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(d, testRunDirs), "-")
		if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, 0) == nil {
			continue
		}
		data, err := os.MkdirTemp("", "sweep")
		if err != nil {
			continue
		}
		if err := teardown(data, d); err != nil {
			fmt.Fprintln(os.Stderr, "leftovers of an earlier run:", err)
		}
		_ = os.RemoveAll(data)
	}
}

// teardown takes away all that a Runner's engine has on the host but its data folder.
func teardown(dir, runDir string) error {
	e, err := oci.Open(oci.Config{Dir: dir, RunDir: runDir, Agent: selfAgent(), Log: zerolog.Nop()})
	if err != nil {
		return err
	}
	list, err := e.List(context.Background())
	errs := []error{err}
	for _, s := range list {
		errs = append(errs, e.Stop(context.Background(), s.ID, 0))
	}
	return errors.Join(append(errs, e.Teardown())...)
}
