package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// A disk is a folder of the caller's with a sparse ext4 image and what is known of it (facts/sandbox.md §2.5). On the
// disk are: root/ (the root filesystem: upper, work, base.json), tmp/ (the Sandbox's /tmp), and a folder for each Bind.
const (
	diskImage = "disk.ext4"
	diskInfo  = "disk.json"
	rootName  = "root"
	tmpName   = "tmp"
	trashMark = ".trash-"

	minDiskSize = 16 << 20

	// The same on every architecture Go and Linux share but MIPS, PowerPC and SPARC.
	fitrim         = 0xC0185879 // FITRIM
	ext4Checkpoint = 0x4004662B // EXT4_IOC_CHECKPOINT
	discardJournal = 1          // EXT4_IOC_CHECKPOINT_FLAG_DISCARD
)

// diskRecord stands beside the image and outlives every mount.
type diskRecord struct {
	IDBase int   `json:"id_base"`
	Size   int64 `json:"size"`
}

// disks is what this process knows of disks: who uses one, and who is still deleting and trimming on it.
type disks struct {
	locks keyed
	mu    sync.Mutex
	users map[string]sandbox.ID
	trash map[string]*sync.WaitGroup
}

func (d *disks) user(path string) (sandbox.ID, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, ok := d.users[path]
	return id, ok
}

// take says false if another Sandbox has the disk.
func (d *disks) take(path string, id sandbox.ID) (other sandbox.ID, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u, taken := d.users[path]; taken && u != id {
		return u, false
	}
	d.users[path] = id
	return "", true
}

func (d *disks) tidying(path string) *sync.WaitGroup {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.trash[path] == nil {
		d.trash[path] = &sync.WaitGroup{}
	}
	return d.trash[path]
}

func checkDisk(d sandbox.Disk) error {
	if !filepath.IsAbs(d.Path) || filepath.Clean(d.Path) != d.Path {
		return sandbox.Errorf(sandbox.ErrInvalid, "a disk's path must be absolute and clean, not %q", d.Path)
	}
	if d.Size < minDiskSize {
		return sandbox.Errorf(sandbox.ErrInvalid, "a disk has at least %s, not %s", bytesText(minDiskSize), bytesText(d.Size))
	}
	return nil
}

// Mount is sandbox.Engine's.
func (e *Engine) Mount(ctx context.Context, d sandbox.Disk) (sandbox.Mounted, error) {
	if err := checkDisk(d); err != nil {
		return sandbox.Mounted{}, err
	}
	defer e.disks.locks.lock(d.Path)()
	return e.mountDisk(ctx, d)
}

// mountDisk makes and mounts the disk as far as that is not done. The caller holds the disk's lock.
func (e *Engine) mountDisk(ctx context.Context, d sandbox.Disk) (sandbox.Mounted, error) {
	var rec diskRecord
	known, err := readJSON(filepath.Join(d.Path, diskInfo), &rec)
	if err != nil {
		return sandbox.Mounted{}, sandbox.Errorf(sandbox.ErrDiskDamaged, "the disk %s can't be used: %v", d.Path, err)
	}
	image, dir := filepath.Join(d.Path, diskImage), e.diskMount(d.Path)
	mounted, err := isMountpoint(dir)
	if err != nil {
		return sandbox.Mounted{}, err
	}
	if mounted && known {
		return sandbox.Mounted{Folder: dir, IDBase: rec.IDBase}, nil
	}
	if mounted {
		return sandbox.Mounted{}, sandbox.Errorf(sandbox.ErrDiskDamaged, "the disk %s was deleted while it was mounted", d.Path)
	}
	fresh := !known || !exists(image)
	if fresh {
		if rec, err = e.makeDisk(ctx, d, rec); err != nil {
			return sandbox.Mounted{}, fmt.Errorf("the disk %s can't be made: %w", d.Path, err)
		}
	}
	if d.Size > rec.Size {
		if err := growDisk(image, d.Size); err != nil {
			return sandbox.Mounted{}, fmt.Errorf("the disk %s can't be grown to %s: %w", d.Path, bytesText(d.Size), err)
		}
		rec.Size = d.Size
		if err := writeJSON(filepath.Join(d.Path, diskInfo), rec, true); err != nil {
			return sandbox.Mounted{}, err
		}
	}
	if err := mountImage(image, dir, false); err != nil {
		if !errors.Is(err, errNotMountable) {
			return sandbox.Mounted{}, err
		}
		e.cfg.Log.Warn().Err(err).Str("disk", d.Path).Msg("A disk didn't mount and is repaired.")
		// Who waits may give up; a repair that is cut off half way may leave less than it found.
		if out, rerr := runTool(context.WithoutCancel(ctx), "e2fsck", "-f", "-y", image); rerr != nil && exitCode(rerr) > 2 {
			return sandbox.Mounted{}, sandbox.Errorf(sandbox.ErrDiskDamaged, "the disk %s is damaged and e2fsck can't repair it: %v: %s", d.Path, err, out)
		}
		if err := mountImage(image, dir, false); errors.Is(err, errNotMountable) {
			return sandbox.Mounted{}, sandbox.Errorf(sandbox.ErrDiskDamaged, "the disk %s is damaged: %v", d.Path, err)
		} else if err != nil {
			return sandbox.Mounted{}, err
		}
	}
	if fresh {
		// mkfs gives the folder for what a repair finds 16 KiB, one block is enough.
		found := filepath.Join(dir, "lost+found")
		if err := errors.Join(os.Remove(found), os.Mkdir(found, 0o700)); err != nil {
			return sandbox.Mounted{}, fmt.Errorf("the disk %s can't be made: %w", d.Path, err)
		}
	}
	return sandbox.Mounted{Folder: dir, IDBase: rec.IDBase}, nil
}

// makeDisk makes the image. What a crash left of an earlier attempt is used or overwritten.
func (e *Engine) makeDisk(ctx context.Context, d sandbox.Disk, rec diskRecord) (diskRecord, error) {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return rec, err
	}
	if err := e.checkRoom(d.Path); err != nil {
		return rec, err
	}
	if rec.IDBase == 0 {
		base, err := e.takeIDs(d.Path)
		if err != nil {
			return rec, err
		}
		rec.IDBase = base
	}
	rec.Size = d.Size
	if err := writeJSON(filepath.Join(d.Path, diskInfo), rec, true); err != nil {
		return rec, err
	}
	tmp := filepath.Join(d.Path, diskImage+".new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return rec, err
	}
	if err := errors.Join(f.Truncate(d.Size), f.Close()); err != nil {
		return rec, err
	}
	// No space is kept for root, none for growing while mounted, one backup of the superblock instead of one in every
	// few groups, tables of many groups side by side, and they are written when they are used: 130 KiB instead of 4.3 MB
	// for an empty disk (facts/runtimes.md §5).
	args := []string{"-q", "-F", "-b", "4096", "-m", "0", "-i", "16384", "-G", "256", "-O", "^resize_inode,sparse_super2",
		"-E", "num_backup_sb=1,lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0", tmp}
	if d.Size >= 256<<20 {
		args = append([]string{"-J", "size=16"}, args...)
	}
	if out, err := runTool(ctx, "mkfs.ext4", args...); err != nil {
		return rec, fmt.Errorf("mkfs.ext4 (package e2fsprogs): %w: %s", err, out)
	}
	if err := syncPath(tmp); err != nil {
		return rec, err
	}
	if err := os.Rename(tmp, filepath.Join(d.Path, diskImage)); err != nil {
		return rec, err
	}
	return rec, syncPath(d.Path)
}

// growDisk makes the file system of an image that isn't mounted larger. Once begun it goes on to its end, whoever gives up: half of it is a
// damaged disk. Killed with the host, it is repaired and done again.
func growDisk(image string, size int64) error {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// The tools have the lock as well, so that what a killed Runner had begun is waited for.
	for err = unix.EINTR; errors.Is(err, unix.EINTR); err = unix.Flock(int(f.Fd()), unix.LOCK_EX) {
	}
	if err != nil {
		return err
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	if out, err := runHolding(f, "e2fsck", "-f", "-p", image); err != nil && exitCode(err) > 1 {
		if again, err := runHolding(f, "e2fsck", "-f", "-y", image); err != nil && exitCode(err) > 2 {
			return fmt.Errorf("e2fsck: %w: %s\n%s", err, out, again)
		}
	}
	if out, err := runHolding(f, "resize2fs", image); err != nil {
		return fmt.Errorf("resize2fs: %w: %s", err, out)
	}
	return f.Sync()
}

// runHolding is runTool with a file that the program has open, too.
func runHolding(f *os.File, name string, args ...string) (string, error) {
	cmd := exec.Command(tool(name), args...)
	cmd.SysProcAttr, cmd.ExtraFiles = &syscall.SysProcAttr{Setpgid: true}, []*os.File{f}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Unmount is sandbox.Engine's.
func (e *Engine) Unmount(_ context.Context, d sandbox.Disk) error {
	defer e.disks.locks.lock(d.Path)()
	return e.unmountDisk(d.Path)
}

// unmountDisk trims and unmounts. The caller holds the disk's lock.
func (e *Engine) unmountDisk(path string) error {
	if id, used := e.disks.user(path); used {
		return sandbox.Errorf(sandbox.ErrRunning, "the disk %s is used by the Sandbox %s: stop that first", path, id)
	}
	dir := e.diskMount(path)
	e.disks.tidying(path).Wait()
	if m, err := isMountpoint(dir); err != nil || !m {
		return err
	}
	trim(dir)
	if err := unmountImage(filepath.Join(path, diskImage), dir); err != nil {
		return fmt.Errorf("the disk %s can't be unmounted: %w", path, err)
	}
	return nil
}

// Flush is sandbox.Engine's.
func (e *Engine) Flush(_ context.Context, d sandbox.Disk) error {
	defer e.disks.locks.lock(d.Path)() // an open folder would keep the disk from being unmounted
	dir := e.diskMount(d.Path)
	if mounted, err := isMountpoint(dir); err != nil || !mounted {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// Clear is sandbox.Engine's.
func (e *Engine) Clear(ctx context.Context, d sandbox.Disk, keep ...string) error {
	defer e.disks.locks.lock(d.Path)()
	if id, used := e.disks.user(d.Path); used {
		return sandbox.Errorf(sandbox.ErrRunning, "the disk %s is used by the Sandbox %s: stop that first", d.Path, id)
	}
	m, err := e.mountDisk(ctx, d)
	if err != nil {
		return err
	}
	e.disks.tidying(d.Path).Wait()
	if err := setAside(m.Folder, "", append(keep, rootName, asideName, "lost+found")); err != nil {
		return err
	}
	if err := emptyTrash(m.Folder); err != nil {
		return err
	}
	return e.unmountDisk(d.Path)
}

// setAside makes trash of what is in a folder of the disk mounted at top, but for the paths on the disk that keep names.
func setAside(top, folder string, keep []string) error {
	entries, err := os.ReadDir(filepath.Join(top, folder))
	if err != nil {
		return err
	}
	for _, d := range entries {
		path := filepath.Join(folder, d.Name())
		above := func(k string) bool { return strings.HasPrefix(k, path+"/") }
		switch {
		case slices.Contains(keep, path), strings.HasPrefix(path, trashMark):
		case d.IsDir() && slices.ContainsFunc(keep, above):
			if err := setAside(top, path, keep); err != nil {
				return err
			}
		default:
			if err := os.Rename(filepath.Join(top, path), filepath.Join(top, trashMark+randomID())); err != nil {
				return err
			}
		}
	}
	return nil
}

// emptyTrash deletes what earlier steps made trash of.
func emptyTrash(top string) error {
	entries, err := os.ReadDir(top)
	if err != nil {
		return err
	}
	for _, d := range entries {
		if strings.HasPrefix(d.Name(), trashMark) {
			if err := removeTree(filepath.Join(top, d.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// DeleteDisk is sandbox.Engine's.
func (e *Engine) DeleteDisk(_ context.Context, d sandbox.Disk) error {
	defer e.disks.locks.lock(d.Path)()
	if err := e.unmountDisk(d.Path); err != nil {
		return err
	}
	var rec diskRecord
	known, err := readJSON(filepath.Join(d.Path, diskInfo), &rec)
	if err != nil {
		e.cfg.Log.Warn().Err(err).Msg("The id range of a damaged disk is freed when ranges run short.")
	}
	for _, f := range []string{diskImage, diskImage + ".new", diskInfo, diskInfo + ".new"} {
		if err := os.Remove(filepath.Join(d.Path, f)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if known {
		if err := e.freeIDs(rec.IDBase); err != nil {
			return err
		}
	}
	if err := os.Remove(d.Path); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// emptyJournal writes what the journal holds to its place, and gives the space of the journal back to the host: it
// would grow to its whole size with every Session. Kernels before 5.14 keep it, which is no error.
func emptyJournal(fd uintptr) {
	flags := uint32(discardJournal)
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, fd, ext4Checkpoint, uintptr(unsafe.Pointer(&flags)))
}

// trim gives the space of deleted files back to the host. A host file system without holes keeps it, which is no error.
func trim(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	// Blocks of deleted files are free only when the journal says so.
	_ = unix.Syncfs(int(f.Fd()))
	emptyJournal(f.Fd())
	r := struct{ start, length, minLength uint64 }{length: ^uint64(0)}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, f.Fd(), fitrim, uintptr(unsafe.Pointer(&r)))
}

// diskFolder makes a folder of a mounted disk, owned by ids of the Sandbox, if it is not there. The top of a disk is the
// host's, and so is a Store, so no Sandbox can have put a link there; it is refused all the same.
func diskFolder(m sandbox.Mounted, name string, uid, gid int, mode os.FileMode) (string, error) {
	path := filepath.Join(m.Folder, name)
	err := os.Mkdir(path, 0o700)
	switch {
	case err == nil:
		if err := os.Chown(path, m.IDBase+uid, m.IDBase+gid); err != nil {
			return "", err
		}
		return path, os.Chmod(path, mode)
	case !errors.Is(err, os.ErrExist):
		return "", err
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if !fi.IsDir() {
		return "", sandbox.Errorf(sandbox.ErrDiskDamaged, "%s on the disk is not a folder", name)
	}
	return path, nil
}

// diskStore makes the Store and the agent's own folder in it. The Store itself is the host's, as the top of the disk is; the
// Sandbox's ids may pass through it.
func diskStore(m sandbox.Mounted, s *sandbox.Store) (string, error) {
	if s == nil {
		return "", nil
	}
	path := filepath.Join(m.Folder, s.Folder)
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !fi.IsDir() || !ok || st.Uid != 0 {
		return "", sandbox.Errorf(sandbox.ErrDiskDamaged, "%s on the disk is not a folder of the host's", s.Folder)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return "", err
	}
	_, err = diskFolder(m, filepath.Join(s.Folder, s.Own), 0, 0, 0o700)
	return path, err
}

// freshTmp gives an empty /tmp. The old one is deleted while the Sandbox runs already.
func (e *Engine) freshTmp(m sandbox.Mounted, diskPath string) (string, error) {
	old := filepath.Join(m.Folder, tmpName)
	if entries, err := os.ReadDir(old); err == nil && len(entries) > 0 {
		if err := os.Rename(old, filepath.Join(m.Folder, trashMark+randomID())); err != nil {
			return "", err
		}
	}
	path, err := diskFolder(m, tmpName, 0, 0, os.ModeSticky|0o777)
	if err != nil {
		return "", err
	}
	// A Sandbox's root may have changed the folder itself at the last boot.
	if err := errors.Join(os.Chown(path, m.IDBase, m.IDBase), os.Chmod(path, os.ModeSticky|0o777)); err != nil {
		return "", err
	}
	e.takeOut(m, diskPath)
	return path, nil
}

// takeOut deletes the trash of a mounted disk while other things go on.
func (e *Engine) takeOut(m sandbox.Mounted, diskPath string) {
	entries, err := os.ReadDir(m.Folder)
	if err != nil {
		e.cfg.Log.Warn().Err(err).Str("disk", diskPath).Msg("What was to be deleted of a disk can't be listed; the next boot tries again.")
		return
	}
	wg := e.disks.tidying(diskPath)
	for _, d := range entries {
		if strings.HasPrefix(d.Name(), trashMark) {
			wg.Go(func() {
				if err := removeTree(filepath.Join(m.Folder, d.Name())); err != nil {
					e.cfg.Log.Warn().Err(err).Str("disk", diskPath).Msg("What was to be deleted of a disk could not be; the next boot tries again.")
				}
			})
		}
	}
}

// tool finds a program of the host also where PATH lacks the folders for root, as it does under some service managers.
func tool(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, d := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if p, err := exec.LookPath(filepath.Join(d, name)); err == nil {
			return p
		}
	}
	return name
}

// runTool runs a program of the host to its end, in its own process group so that Ctrl-C doesn't stop it half way.
func runTool(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, tool(name), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// removeTree deletes what a Sandbox may have written, by rm(1): folders nested ten thousands deep take one open file and
// a stack frame each in os.RemoveAll, and those are the Runner's.
func removeTree(path string) error {
	if !exists(path) {
		return nil
	}
	if out, err := runTool(context.Background(), "rm", "-rf", "--one-file-system", "--", path); err != nil {
		return fmt.Errorf("%s can't be deleted: %w: %s", path, err, out[max(0, len(out)-300):])
	}
	return nil
}

func exitCode(err error) int {
	var x *exec.ExitError
	if errors.As(err, &x) {
		return x.ExitCode()
	}
	return 127
}
