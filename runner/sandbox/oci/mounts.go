package oci

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// mountEntry is one line of /proc/self/mountinfo.
type mountEntry struct {
	point, fstype, source, super string
}

var mountUnescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func mountTable() ([]mountEntry, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []mountEntry
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	for sc.Scan() {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		out = append(out, mountEntry{point: mountUnescape.Replace(l[4]), fstype: r[0], source: mountUnescape.Replace(r[1]), super: mountUnescape.Replace(r[2])})
	}
	return out, sc.Err()
}

// isMountpoint compares the device of a folder with its parent's, as mountpoint(1) does; right for all that is mounted
// here by this package, since nothing is bind-mounted from its own parent.
func isMountpoint(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// unmountTree unmounts all that is mounted at or below a folder, the deepest first.
func unmountTree(dir string) error {
	if !exists(dir) {
		return nil
	}
	table, err := mountTable()
	if err != nil {
		return err
	}
	var points []string
	for _, m := range table {
		if m.point == dir || strings.HasPrefix(m.point, dir+"/") {
			points = append(points, m.point)
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(points)))
	var errs []error
	for _, p := range points {
		if err := unix.Unmount(p, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("%s can't be unmounted: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// removeMountDirs removes the folders mounts stood on. It only removes empty folders, so that a mount that is still
// there loses nothing.
func removeMountDirs(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if m, err := isMountpoint(dir); err != nil || m {
		return errors.Join(err, fmt.Errorf("%s is still mounted", dir))
	}
	for _, d := range entries {
		if d.IsDir() {
			if err := removeMountDirs(dir + "/" + d.Name()); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// privateTmpfs makes dir the place of this engine's mounts, once an uptime.
func privateTmpfs(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	m, err := isMountpoint(dir)
	if err != nil {
		return err
	}
	if !m {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size=16m"); err != nil {
			return fmt.Errorf("a tmpfs can't be mounted at %s: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("the mounts below %s can't be made private: %w", dir, err)
	}
	for _, d := range []string{"d", "b", "s"} {
		if err := os.MkdirAll(dir+"/"+d, 0o711); err != nil {
			return err
		}
	}
	return nil
}
