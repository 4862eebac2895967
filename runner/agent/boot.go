package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// BootEnv is the environment variable by which the engine gives PID 1 the contents of its network files, as JSON:
// {"hostname":"…","hosts":"…","resolv":"…"}. Nothing in it is secret. The agent removes it from its environment.
const BootEnv = "CLAUDE_HUB_AGENT"

type bootFiles struct {
	Hostname string `json:"hostname"`
	Hosts    string `json:"hosts"`
	Resolv   string `json:"resolv"`
	// Store is where the Sandbox's Store is found, if it has one, and Withheld the capabilities that the agent then has for itself.
	Store    string `json:"store"`
	Withheld []int  `json:"withheld"`
	// GVisor: the kernel is gVisor, and the agent keeps what it starts to Pids processes.
	GVisor bool  `json:"gvisor"`
	Pids   int64 `json:"pids"`
}

func readBoot(config string) (b bootFiles, problems []string) {
	if config == "" {
		return b, nil
	}
	if err := json.Unmarshal([]byte(config), &b); err != nil {
		return bootFiles{}, []string{fmt.Sprintf("%s is not the JSON it should be: %v", BootEnv, err)}
	}
	return b, nil
}

// prepare takes the Store over, and puts what is started from now on under the filter that belongs to it.
func (a *agent) prepare(b bootFiles) error {
	a.withheld, a.gvisor = b.Withheld, b.GVisor
	if b.GVisor && b.Pids > 0 {
		if err := limitPids("/sys/fs/cgroup/pids/user", b.Pids); err != nil {
			a.problems = append(a.problems, fmt.Sprintf("the number of processes isn't limited, and too many end the Sandbox: %v", err))
		}
	}
	if b.Store == "" {
		return nil
	}
	s, err := openStore(b.Store)
	if err != nil {
		return err
	}
	a.folders = newFolders(s)
	listener := -1
	watched := func() (err error) {
		listener, err = installFilter(len(b.Withheld) > 0, true)
		return err
	}
	if a.reaper.forks, err = newThread(watched); err == nil {
		return (&watch{folders: a.folders, fd: listener}).run()
	}
	a.problems = append(a.problems, fmt.Sprintf("a dependency folder can't be removed or renamed while the Sandbox runs: %v", err))
	if len(b.Withheld) > 0 {
		a.reaper.forks, err = newThread(func() error {
			_, err := installFilter(true, false)
			return err
		})
		return err
	}
	return nil
}

// writeBootFiles writes the network files beneath root. They are plain files and not mounts, so that a bootstrap can
// replace them (facts/sandbox.md §2.11). It returns a sentence for each that could not be written.
func writeBootFiles(root string, b bootFiles) []string {
	if b.Hostname == "" && b.Hosts == "" && b.Resolv == "" {
		return nil
	}
	etc, err := openEtc(root)
	if err != nil {
		return []string{fmt.Sprintf("/etc/hostname, /etc/hosts and /etc/resolv.conf were not written: "+
			"the image's /etc can't be used: %v", err)}
	}
	defer unix.Close(etc)
	var problems []string
	for _, f := range []struct{ name, content string }{
		{"hostname", lineOf(b.Hostname)}, {"hosts", b.Hosts}, {"resolv.conf", b.Resolv},
	} {
		if f.content == "" {
			continue
		}
		if err := replace(etc, f.name, []byte(f.content), 0o644); err != nil {
			problems = append(problems, fmt.Sprintf("/etc/%s was not written: %v", f.name, err))
		}
	}
	return problems
}

func lineOf(s string) string {
	if s == "" || s[len(s)-1] == '\n' {
		return s
	}
	return s + "\n"
}

// openEtc opens root's etc, made if absent, and follows no link on the way.
func openEtc(root string) (int, error) {
	r, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(r)
	if err := unix.Mkdirat(r, "etc", 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return unix.Openat(r, "etc", unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// replace makes name in dir a regular file of root's with that content and mode, by a temporary file and rename: a link of that
// name is replaced, never followed. A file that is the same already isn't touched.
func replace(dir int, name string, content []byte, mode uint32) error {
	if same(dir, name, content, mode) {
		return nil
	}
	tmp := ".claude-hub-" + name
	if err := unix.Unlinkat(dir, tmp, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	fd, err := unix.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), tmp)
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(os.FileMode(mode)) // whatever the umask is
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = unix.Renameat(dir, tmp, dir, name)
	}
	if err != nil {
		unix.Unlinkat(dir, tmp, 0) //nolint:errcheck // the first error is the one to tell
	}
	return err
}

func same(dir int, name string, content []byte, mode uint32) bool {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode != unix.S_IFREG|mode || st.Size != int64(len(content)) {
		return false
	}
	b := make([]byte, len(content)+1)
	n, err := unix.Read(fd, b)
	return err == nil && bytes.Equal(b[:n], content)
}

// cgroupFiles are where a process moves itself below the limits that leave the agent room: of cgroup v2, and of those v1
// hierarchies that the engine limits (facts/sandbox.md §2.3). Which of them exist is seen at each start, since the
// engine makes the groups after the agent runs.
var cgroupFiles = []string{
	"/sys/fs/cgroup/user/programs/cgroup.procs",
	"/sys/fs/cgroup/memory/user/cgroup.procs",
	"/sys/fs/cgroup/pids/user/cgroup.procs",
	"/sys/fs/cgroup/cpu/user/cgroup.procs",
	"/sys/fs/cgroup/cpu,cpuacct/user/cgroup.procs",
}

// limitPids makes the group that all programs are moved to, where the engine can make none.
func limitPids(group string, most int64) error {
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.WriteFile(group+"/pids.max", []byte(strconv.FormatInt(most, 10)), 0)
}

// oomKills is how often the kernel has killed in the Sandbox for want of memory, as far as that can be read.
func oomKills() int64 {
	for _, f := range []string{"/sys/fs/cgroup/user/memory.events", "/sys/fs/cgroup/memory/user/memory.oom_control"} {
		fd, err := unix.Open(f, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		b := make([]byte, 1024)
		n, err := unix.Read(fd, b)
		unix.Close(fd)
		if err != nil {
			continue
		}
		return counter(b[:max(n, 0)], "oom_kill")
	}
	return 0
}

func counter(b []byte, key string) int64 {
	for _, l := range bytes.Split(b, []byte("\n")) {
		if f := bytes.Fields(l); len(f) == 2 && string(f[0]) == key {
			n, _ := strconv.ParseInt(string(f[1]), 10, 64)
			return n
		}
	}
	return 0
}
