package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// A Sandbox's group holds its limits; all of its files are the host's. Below it is `user`, with everything but PID 1,
// whose limits leave the agent enough to live (facts/sandbox.md §2.3). PID 1 is in the group itself and programs in `user`, or, since
// version 2 has processes in leaves only, in `agent` beside `user`, and in `programs` below it, beside the groups of containers. Of `user` the Sandbox's root owns the folder and the files that
// move processes and delegate controllers, and not one limit (§2.2).
const (
	agentGroup = "agent"
	userGroup  = "user"
	leafGroup  = "programs"
)

// cgroups is where the host's cgroup hierarchies are. In version 2 there is one, named "".
type cgroups struct {
	v2          bool
	hierarchies map[string]string // v1: controller → mount point
	memsw       bool              // v1: memory.memsw.* is there
	parent      string            // the engine's group in each
}

func findCgroups(tag string) (*cgroups, error) {
	c := &cgroups{hierarchies: map[string]string{}, parent: "claude-hub-" + tag}
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return nil, fmt.Errorf("the host has no cgroups at /sys/fs/cgroup: %w", err)
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		c.v2 = true
		c.hierarchies[""] = "/sys/fs/cgroup"
		return c, nil
	}
	table, err := mountTable()
	if err != nil {
		return nil, err
	}
	for _, m := range table {
		if m.fstype != "cgroup" || filepath.Dir(m.point) != "/sys/fs/cgroup" {
			continue
		}
		for _, o := range strings.Split(m.super, ",") {
			if o == "rw" || o == "xattr" || strings.Contains(o, "/") {
				continue
			}
			c.hierarchies[o] = m.point
		}
	}
	for _, need := range []string{"memory", "pids", "cpu"} {
		if c.hierarchies[need] == "" {
			return nil, fmt.Errorf("the host's kernel has no %s cgroup controller: Sandboxes can't be limited", need)
		}
	}
	c.memsw = exists(filepath.Join(c.hierarchies["memory"], "memory.memsw.limit_in_bytes"))
	return c, nil
}

// path is what the runtime calls the Sandbox's group.
func (c *cgroups) path(id sandbox.ID) string { return "/" + c.parent + "/" + string(id) }

func (c *cgroups) dir(controller string, id sandbox.ID) string {
	if c.v2 {
		controller = ""
	}
	return filepath.Join(c.hierarchies[controller], c.parent, string(id))
}

// points are the mount points, each once (cpu and cpuacct often share one).
func (c *cgroups) points() map[string][]string {
	out := map[string][]string{}
	for controller, p := range c.hierarchies {
		out[p] = append(out[p], controller)
	}
	return out
}

func (c *cgroups) resources(l sandbox.Limits) *specs.LinuxResources {
	quota, period := int64(l.CPU*cpuPeriod), uint64(cpuPeriod)
	r := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &l.Memory},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
		Pids:   &specs.LinuxPids{Limit: &l.Pids},
		// The runtime adds /dev/null and its like to what is allowed.
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
	}
	// Memory and swap together are no more than memory alone: Variables never reach a swap device.
	if c.v2 || c.memsw {
		r.Memory.Swap = &l.Memory
	} else {
		none := uint64(0)
		r.Memory.Swappiness = &none
	}
	return r
}

// divide makes the child groups, sets the limits of `user` and delegates it.
func (c *cgroups) divide(id sandbox.ID, pid, idBase int, l sandbox.Limits) error {
	if c.v2 {
		return c.divideV2(id, pid, idBase, l)
	}
	for point, controllers := range c.points() {
		own := filepath.Join(point, c.parent, string(id))
		if !exists(own) {
			continue // a hierarchy the runtime doesn't use
		}
		user := filepath.Join(own, userGroup)
		if err := mkdirGroup(user); err != nil {
			return err
		}
		for _, ctl := range controllers {
			var err error
			switch ctl {
			case "memory":
				err = writeGroup(user, "memory.limit_in_bytes", l.Memory-sandbox.AgentMemory)
				if err == nil && c.memsw {
					err = writeGroup(user, "memory.memsw.limit_in_bytes", l.Memory-sandbox.AgentMemory)
				}
			case "pids":
				err = writeGroup(user, "pids.max", l.Pids-sandbox.AgentPids)
			case "cpuset":
				err = errors.Join(copyGroupFile(own, user, "cpuset.cpus"), copyGroupFile(own, user, "cpuset.mems"))
			case "cpu":
			default:
				continue
			}
			if err != nil {
				return err
			}
		}
		if err := delegate(user, idBase, "cgroup.procs", "tasks"); err != nil {
			return err
		}
	}
	return nil
}

// awaken moves PID 1 to where it is. In version 1 the first move of a process for some milliseconds waits for an RCU grace
// period, of 5 ms and more, and the first command's move to `user` would: it comes in time after this one.
func (c *cgroups) awaken(id sandbox.ID, pid int) {
	if !c.v2 {
		_ = writeGroup(c.dir("pids", id), "cgroup.procs", int64(pid)) // the command then waits
	}
}

func (c *cgroups) divideV2(id sandbox.ID, pid, idBase int, l sandbox.Limits) error {
	own := c.dir("", id)
	user, agent := filepath.Join(own, userGroup), filepath.Join(own, agentGroup)
	leaf := filepath.Join(user, leafGroup)
	if err := errors.Join(mkdirGroup(user), mkdirGroup(agent), mkdirGroup(leaf)); err != nil {
		return err
	}
	if err := writeGroup(agent, "cgroup.procs", int64(pid)); err != nil {
		return err
	}
	have, err := os.ReadFile(filepath.Join(own, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, ctl := range strings.Fields(string(have)) {
		if err := enableController(own, ctl); err != nil && (ctl == "memory" || ctl == "pids") {
			return fmt.Errorf("the %s controller can't be used for %s: %w", ctl, own, err)
		}
	}
	if err := errors.Join(
		writeGroup(user, "memory.max", l.Memory-sandbox.AgentMemory),
		writeGroup(user, "pids.max", l.Pids-sandbox.AgentPids),
	); err != nil {
		return err
	}
	if exists(filepath.Join(user, "memory.swap.max")) {
		if err := writeGroup(user, "memory.swap.max", 0); err != nil {
			return err
		}
	}
	for _, group := range []string{user, leaf} {
		if err := delegate(group, idBase, "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"); err != nil {
			return err
		}
	}
	// Some runtimes give the Sandbox's root more of its own group than it may have.
	entries, err := os.ReadDir(own)
	if err != nil {
		return err
	}
	if err := os.Chown(own, 0, 0); err != nil {
		return err
	}
	for _, f := range entries {
		if !f.IsDir() {
			if err := os.Chown(filepath.Join(own, f.Name()), 0, 0); err != nil {
				return err
			}
		}
	}
	// Moving a process from `agent` to `user` needs this file, too. Nothing can be moved into the group itself: a group
	// whose children have controllers takes no processes.
	return os.Chown(filepath.Join(own, "cgroup.procs"), idBase, idBase)
}

// enableController enables a controller for a group's children. A group with processes of its own can't, and what the
// runtime needed for the boot may still be ending there.
func enableController(dir, controller string) error {
	deadline := time.Now().Add(2 * time.Second)
	for wait := time.Millisecond; ; wait *= 2 {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(wait)
	}
}

func mkdirGroup(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func writeGroup(dir, file string, n int64) error {
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(n, 10)), 0); err != nil {
		return fmt.Errorf("a cgroup can't be set up: %w", err)
	}
	return nil
}

func copyGroupFile(from, to, file string) error {
	b, err := os.ReadFile(filepath.Join(from, file))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, file), b, 0)
}

func delegate(dir string, idBase int, files ...string) error {
	if err := os.Chown(dir, idBase, idBase); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Chown(filepath.Join(dir, f), idBase, idBase); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// remove removes a Sandbox's groups with all below them. Its processes have ended; the kernel may need a moment more
// until it counts them out.
func (c *cgroups) remove(id sandbox.ID) error {
	var errs []error
	for point := range c.points() {
		errs = append(errs, removeGroup(filepath.Join(point, c.parent, string(id))))
	}
	return errors.Join(errs...)
}

func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range entries {
		if d.IsDir() {
			if err := removeGroup(filepath.Join(dir, d.Name())); err != nil {
				return err
			}
		}
	}
	deadline := time.Now().Add(2 * time.Second)
	for wait := time.Millisecond; ; wait *= 2 {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the cgroup %s can't be removed: %w", dir, err)
		}
		time.Sleep(wait)
	}
}

// processes are the host's pids of all in a Sandbox's groups.
func (c *cgroups) processes(id sandbox.ID) []int {
	var out []int
	_ = filepath.WalkDir(c.dir("pids", id), func(p string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		b, _ := os.ReadFile(p)
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil && n > 0 {
				out = append(out, n)
			}
		}
		return nil
	})
	return out
}

// signal signals every process of a Sandbox but one. A pid that meanwhile belongs to another process is left alone.
func (c *cgroups) signal(id sandbox.ID, sig unix.Signal, but int) error {
	for _, pid := range c.processes(id) {
		if pid == but {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // ended
		}
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err == nil && strings.Contains(string(groups), ":"+c.path(id)) {
			err = unix.PidfdSendSignal(fd, sig, nil, 0)
		}
		unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the process %d of the Sandbox %s can't be signalled: %w", pid, id, err)
		}
	}
	return nil
}

func (c *cgroups) usage(id sandbox.ID) (sandbox.Usage, error) {
	var u sandbox.Usage
	number := func(controller, file string) int64 {
		b, err := os.ReadFile(filepath.Join(c.dir(controller, id), file))
		if err != nil {
			return 0
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		return n
	}
	field := func(path, name string) int64 {
		b, err := os.ReadFile(path)
		if err != nil {
			return 0
		}
		for _, l := range strings.Split(string(b), "\n") {
			if v, ok := strings.CutPrefix(l, name+" "); ok {
				n, _ := strconv.ParseInt(v, 10, 64)
				return n
			}
		}
		return 0
	}
	if !exists(c.dir("memory", id)) {
		return u, sandbox.Errorf(sandbox.ErrNotRunning, "the Sandbox %s is not running", id)
	}
	u.Pids = int(number("pids", "pids.current"))
	mem := c.dir("memory", id)
	// What the kernel gives back by itself when memory is short is not counted.
	if c.v2 {
		u.Memory = number("", "memory.current") - field(filepath.Join(mem, "memory.stat"), "inactive_file")
		u.CPU = time.Duration(field(filepath.Join(mem, "cpu.stat"), "usage_usec")) * time.Microsecond
		u.OOMKills = field(filepath.Join(mem, "memory.events"), "oom_kill")
	} else {
		u.Memory = number("memory", "memory.usage_in_bytes") - field(filepath.Join(mem, "memory.stat"), "total_inactive_file")
		if c.hierarchies["cpuacct"] != "" {
			u.CPU = time.Duration(number("cpuacct", "cpuacct.usage"))
		}
		for _, g := range []string{"", userGroup} {
			u.OOMKills += field(filepath.Join(mem, g, "memory.oom_control"), "oom_kill")
		}
	}
	u.Memory = max(u.Memory, 0)
	return u, nil
}
