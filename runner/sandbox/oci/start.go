package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// Start is sandbox.Engine's.
func (e *Engine) Start(ctx context.Context, id sandbox.ID, s sandbox.Spec) (sandbox.Sandbox, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	if err := checkSpec(s); err != nil {
		return nil, err
	}
	defer e.ids.lock(string(id))()
	if b := e.box(id); b != nil && b.running() {
		if sameSpec(b.boot.Spec, s) {
			return b, nil
		}
		return nil, sandbox.Errorf(sandbox.ErrRunning, "the Sandbox %s runs with other settings: stop it before it is started with new ones", id)
	}
	if err := e.cleanUp(ctx, id); err != nil {
		return nil, fmt.Errorf("what the last boot of the Sandbox %s left can't be cleaned up: %w", id, err)
	}
	b, err := e.boot(ctx, id, s)
	if err != nil {
		// The caller may have given up; cleaning up may not.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if cerr := e.cleanUp(clean, id); cerr != nil {
			e.cfg.Log.Warn().Err(cerr).Str("sandbox", string(id)).Msg("What a failed boot left could not be cleaned up; the next start tries again.")
		}
		return nil, err
	}
	return b, nil
}

// boot does the steps of a boot in order. Each leaves what cleanUp undoes, and the record of the boot is ready last.
func (e *Engine) boot(ctx context.Context, id sandbox.ID, s sandbox.Spec) (*box, error) {
	if err := e.checkRoom(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(e.bundleDir(id), 0o711); err != nil {
		return nil, err
	}
	rt, err := e.begin(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() {
		if rt != nil {
			rt.giveUp()
		}
	}()
	p := plan{spec: s, folders: map[string]string{}, cgroup: e.cgroups.path(id)}
	if err := e.prepareDisk(ctx, id, &p); err != nil {
		return nil, err
	}
	// Syncing takes as long as the host's disk is busy, and the runtime has better to do meanwhile.
	synced := make(chan error, 1)
	go func() { synced <- e.syncStart(id, p.disk) }()
	defer func() {
		if synced != nil {
			<-synced
		}
	}()
	boot := bootRecord{Generation: randomID(), Runtime: e.cfg.Runtime, Spec: s}
	res := resolver{}
	if !s.Network.Off {
		l, err := e.takeLease(id)
		if err != nil {
			return nil, err
		}
		res = e.hostResolver()
		l.Forward = res.forward
		boot.Net = l
	}
	if err := writeJSON(e.bootFile(id), boot, false); err != nil {
		return nil, err
	}
	p.boot = AgentBoot{Hostname: s.Hostname, Hosts: hostsFile(s.Hostname, boot.Net), Resolv: res.file(boot.Net)}
	if isGVisor(e.cfg.Runtime) {
		p.boot.GVisor, p.boot.Pids = true, gvisorPids(s.Limits)
		// Its kernel has nobody asked about a call, nor two folders exchanged, so dependency folders stay in the Workspace.
		p.spec.Store, p.store = nil, ""
	}
	if p.spec.Store != nil {
		p.boot.Store, p.boot.Withheld = storeGuestPath, withheld(p.spec)
	}
	cfg, err := e.runtimeSpec(p)
	if err != nil {
		return nil, err
	}
	if g, ok := rt.(*gvisor); ok {
		if err := e.connect(g.net, boot.Net); err != nil {
			return nil, err
		}
	}
	pid, err := rt.run(cfg)
	rt = nil
	if err != nil {
		return nil, err
	}
	if boot.Process, err = identify(pid); err != nil {
		return nil, fmt.Errorf("the Sandbox %s ended right after its boot: %w", id, err)
	}
	if !isGVisor(boot.Runtime) {
		if err := e.furnish(id, pid, p.disk.IDBase, boot); err != nil {
			return nil, err
		}
	}
	err = <-synced
	synced = nil
	if err != nil {
		return nil, fmt.Errorf("what is known of the Sandbox %s can't be written: %w", id, err)
	}
	boot.Ready, boot.Fresh = true, p.fresh
	if err := writeJSON(e.bootFile(id), boot, false); err != nil {
		return nil, err
	}
	fd, alive := boot.Process.open()
	if !alive {
		return nil, fmt.Errorf("the Sandbox %s ended right after its boot", id)
	}
	if !isGVisor(boot.Runtime) {
		go e.cgroups.awaken(id, pid)
	}
	b := e.newBox(id, boot, fd)
	e.setBox(id, b)
	if p.fresh {
		// Cloning and the first boot leave more in the journal and in freed blocks than on the disk.
		e.disks.tidying(s.Disk.Path).Go(func() { trim(p.disk.Folder) })
	}
	return b, nil
}

// begin starts what boots id, before it is known what to boot.
func (e *Engine) begin(ctx context.Context, id sandbox.ID) (booting, error) {
	if isGVisor(e.cfg.Runtime) {
		return e.gvisorStart(ctx, id)
	}
	return e.runtimeStart(ctx, id)
}

// furnish gives what runs as PID 1 its limits and its network. They have nothing to do with each other, and a person waits for both.
func (e *Engine) furnish(id sandbox.ID, pid, idBase int, boot bootRecord) error {
	attached := make(chan error, 1)
	go func() {
		ns, err := netns.GetFromPid(pid)
		if err != nil {
			attached <- fmt.Errorf("the Sandbox's network namespace can't be opened: %w", err)
			return
		}
		attached <- errors.Join(e.connect(ns, boot.Net), ns.Close())
	}()
	err := e.cgroups.divide(id, pid, idBase, boot.Spec.Limits)
	if err != nil {
		err = fmt.Errorf("the limits of the Sandbox %s can't be set: %w", id, err)
	}
	return errors.Join(err, <-attached)
}

// connect gives a Sandbox's network namespace its network; a nil lease is none.
func (e *Engine) connect(ns netns.NsHandle, l *lease) error {
	if l == nil {
		return nil
	}
	if err := e.attach(ns, l); err != nil || !l.Forward {
		return err
	}
	return e.dns.start(l)
}

// syncStart makes durable what must be found again after a power cut: the record of id, and which base its root
// filesystem is made on.
func (e *Engine) syncStart(id sandbox.ID, m sandbox.Mounted) error {
	return errors.Join(syncPath(e.recordFile(id)), syncPath(filepath.Dir(e.recordFile(id))),
		syncPath(filepath.Join(m.Folder, rootName, rootInfo)), syncPath(filepath.Join(m.Folder, rootName)))
}

// prepareDisk mounts the disk, the root filesystem on it, and makes the folders that are bound.
func (e *Engine) prepareDisk(ctx context.Context, id sandbox.ID, p *plan) error {
	defer e.disks.locks.lock(p.spec.Disk.Path)()
	if other, ok := e.disks.take(p.spec.Disk.Path, id); !ok {
		return sandbox.Errorf(sandbox.ErrRunning, "the disk %s is used by the Sandbox %s", p.spec.Disk.Path, other)
	}
	m, err := e.mountDisk(ctx, p.spec.Disk)
	if err != nil {
		return err
	}
	p.disk = m
	aside, err := reclaim(m, p.spec.Base)
	if err != nil {
		return err
	}
	if err := checkUpper(m, p.spec.Base); err != nil {
		return err
	}
	if err := writeJSON(e.recordFile(id), record{Spec: p.spec, Started: time.Now().UTC(), Aside: aside}, false); err != nil {
		return err
	}
	p.fresh = !exists(filepath.Join(m.Folder, rootName, rootInfo))
	// From the record on nobody deletes the snapshots among the layers; one that went before shows here.
	if p.root, err = e.mountRoot(id, m, p.spec.Base); err != nil {
		return err
	}
	if p.tmp, err = e.freshTmp(m, p.spec.Disk.Path); err != nil {
		return err
	}
	if p.store, err = diskStore(m, p.spec.Store); err != nil {
		return err
	}
	for _, b := range p.spec.Binds {
		if filepath.IsAbs(b.Folder) {
			if !exists(b.Folder) {
				return fmt.Errorf("the host's %s, to be bound at %s, is not there", b.Folder, b.Guest)
			}
			p.folders[b.Guest] = b.Folder
			continue
		}
		if p.folders[b.Guest], err = diskFolder(m, b.Folder, b.UID, b.GID, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// hostsFile names the Sandbox itself, else sudo warns (facts/sandbox.md §2.11).
func hostsFile(hostname string, l *lease) string {
	own := "127.0.1.1"
	if l != nil {
		own = l.guest().String()
	}
	return "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + own + "\t" + hostname + "\n"
}

// Stop is sandbox.Engine's.
func (e *Engine) Stop(ctx context.Context, id sandbox.ID, grace time.Duration) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer e.ids.lock(string(id))()
	return e.stopBox(ctx, id, grace)
}

// stopBox stops id and cleans up after it. The caller holds the id's lock.
func (e *Engine) stopBox(ctx context.Context, id sandbox.ID, grace time.Duration) error {
	if b := e.box(id); b != nil && grace > 0 && b.running() {
		if err := e.askToEnd(ctx, b, grace); err != nil {
			return err
		}
	}
	return e.cleanUp(ctx, id)
}

// askToEnd gives everything in a Sandbox but the agent SIGTERM, and waits until it has ended or the grace is over.
func (e *Engine) askToEnd(ctx context.Context, b *box, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	alone := func() bool {
		left := e.cgroups.processes(b.id)
		return len(left) == 0 || len(left) == 1 && left[0] == b.boot.Process.PID
	}
	var err error
	if isGVisor(b.boot.Runtime) {
		alone = func() bool { return e.gvisorAlone(ctx, b) }
		err = e.gvisorTerm(ctx, b)
	} else {
		err = e.cgroups.signal(b.id, unix.SIGTERM, b.boot.Process.PID)
	}
	if err != nil {
		return err
	}
	for {
		if alone() {
			return nil
		}
		select {
		case <-b.done:
			return nil
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil
			}
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// cleanUp ends whatever is left of a boot and takes back all that a boot makes, in the opposite order. It can be
// repeated. The caller holds the id's lock, or is the only one there.
func (e *Engine) cleanUp(ctx context.Context, id sandbox.ID) error {
	dir := e.bundleDir(id)
	if !exists(dir) {
		return nil
	}
	var boot bootRecord
	if _, err := readJSON(e.bootFile(id), &boot); err != nil {
		e.cfg.Log.Warn().Err(err).Msg("The record of a boot is damaged.")
	}
	// The box knows its process even if the record of it was lost.
	b := e.box(id)
	if b != nil {
		boot = b.boot
	}
	force := true
	if fd, alive := boot.Process.open(); alive {
		// Without PID 1 the kernel ends every process of its pid namespace. `delete --force` does it, too, but polls at
		// 100 ms (facts/sandbox.md §1).
		err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		ended := waitExit(fd, 30*time.Second)
		unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		if !ended {
			return fmt.Errorf("the processes of the Sandbox %s don't end: one waits in the kernel", id)
		}
		force = false
	}
	if b != nil {
		<-b.done
		e.setBox(id, nil)
		force = false
	}
	runtime := cmp.Or(boot.Runtime, defaultRuntime)
	if err := e.runtimeDelete(ctx, id, runtime, force); err != nil {
		if err := e.runtimeDelete(ctx, id, runtime, true); err != nil {
			return err
		}
	}
	// A runtime that was killed half way has processes it knows nothing of.
	if err := e.cgroups.signal(id, unix.SIGKILL, 0); err != nil {
		return err
	}
	if err := errors.Join(e.cgroups.remove(id), e.gvisorForget(id)); err != nil {
		return err
	}
	if boot.Net != nil {
		if err := e.detach(boot.Net); err != nil {
			return err
		}
	}
	if err := errors.Join(unmountTree(e.rootDir(id)), removeMountDirs(e.rootDir(id))); err != nil {
		return err
	}
	if err := os.Remove(e.socketPath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	e.releaseDisk(id)
	return os.RemoveAll(dir)
}

// releaseDisk frees whichever disk id has.
func (e *Engine) releaseDisk(id sandbox.ID) {
	e.disks.mu.Lock()
	defer e.disks.mu.Unlock()
	for path, user := range e.disks.users {
		if user == id {
			delete(e.disks.users, path)
		}
	}
}

// Remove is sandbox.Engine's.
func (e *Engine) Remove(ctx context.Context, id sandbox.ID) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer e.ids.lock(string(id))()
	if b := e.box(id); b != nil && b.running() {
		return sandbox.Errorf(sandbox.ErrRunning, "the Sandbox %s is running: stop it before it is removed", id)
	}
	if err := e.cleanUp(ctx, id); err != nil {
		return err
	}
	rec, found := e.readRecord(id)
	if !found {
		return nil
	}
	if err := e.removeRoot(ctx, rec.Spec.Disk); err != nil {
		return fmt.Errorf("the root filesystem of the Sandbox %s can't be removed: %w", id, err)
	}
	return os.Remove(e.recordFile(id))
}

// removeRoot deletes the root filesystem on a disk, if the disk is there, and leaves the disk mounted or not as it was.
func (e *Engine) removeRoot(ctx context.Context, d sandbox.Disk) error {
	defer e.disks.locks.lock(d.Path)()
	if other, used := e.disks.user(d.Path); used {
		// Somebody else was started on the disk since: its root filesystem is theirs.
		e.cfg.Log.Debug().Str("disk", d.Path).Str("sandbox", string(other)).Msg("A removed Sandbox's disk has another user.")
		return nil
	}
	if !exists(filepath.Join(d.Path, diskImage)) {
		return nil
	}
	mounted, err := isMountpoint(e.diskMount(d.Path))
	if err != nil {
		return err
	}
	m, err := e.mountDisk(ctx, d)
	if err != nil {
		return err
	}
	e.disks.tidying(d.Path).Wait()
	if err := errors.Join(toTrash(m, rootName), toTrash(m, asideName)); err != nil {
		return err
	}
	if err := emptyTrash(m.Folder); err != nil {
		return err
	}
	if mounted {
		return nil
	}
	return e.unmountDisk(d.Path)
}
