package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// attachLoop makes a block device of an image file. The device frees itself when nothing holds it any more: neither the
// returned file nor a mount, so a crash leaves no device behind.
func attachLoop(image string, readOnly bool) (*os.File, error) {
	mode, flags := os.O_RDWR, uint32(unix.LO_FLAGS_AUTOCLEAR)
	if readOnly {
		mode, flags = os.O_RDONLY, flags|unix.LO_FLAGS_READ_ONLY
	}
	back, err := os.OpenFile(image, mode, 0)
	if err != nil {
		return nil, err
	}
	defer back.Close()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("the host has no loop devices (modprobe loop): %w", err)
	}
	defer ctl.Close()
	// Somebody else may take the free device between the two calls: then the next one is asked for.
	for range 100 {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("the host gives no free loop device: %w", err)
		}
		path := fmt.Sprintf("/dev/loop%d", n)
		dev, err := os.OpenFile(path, mode, 0)
		if errors.Is(err, os.ErrNotExist) {
			if err := unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(7, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
				return nil, fmt.Errorf("%s can't be made: %w", path, err)
			}
			dev, err = os.OpenFile(path, mode, 0)
		}
		if err != nil {
			return nil, err
		}
		c := unix.LoopConfig{Fd: uint32(back.Fd()), Size: 4096}
		c.Info.Flags = flags
		copy(c.Info.File_name[:len(c.Info.File_name)-1], image)
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &c)
		if errors.Is(err, unix.EINVAL) {
			// A file system with larger or smaller blocks may refuse 4096: let the kernel choose.
			c.Size = 0
			err = unix.IoctlLoopConfigure(int(dev.Fd()), &c)
		}
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("%s can't be made a block device: %w", image, err)
		}
	}
	return nil, errors.New("the host's loop devices are taken away as fast as they are asked for")
}

// mountImage mounts an ext4 image. The host never runs what is set-user-id in it and opens no device node of it.
func mountImage(image, dir string, readOnly bool) error {
	// Two devices of one image are two file systems that know nothing of each other, and destroy it.
	if err := waitReleased(image); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	dev, err := attachLoop(image, readOnly)
	if err != nil {
		return err
	}
	defer dev.Close()
	flags, data := uintptr(unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME), "noinit_itable,errors=remount-ro"
	if readOnly {
		flags, data = flags|unix.MS_RDONLY, "noload"
	}
	if err := unix.Mount(dev.Name(), dir, "ext4", flags, data); err != nil {
		return fmt.Errorf("%s %w: %w", image, errNotMountable, err)
	}
	return nil
}

// errNotMountable says that the kernel finds no sound file system in an image.
var errNotMountable = errors.New("can't be mounted")

// unmountImage returns when the file system is gone, not only its mount here: another service's mount namespace that
// was made meanwhile has a copy of every mount. Removing the folder makes the kernel detach those.
func unmountImage(image, dir string) error {
	if err := unmountBusy(dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil {
		return err
	}
	return waitReleased(image)
}

// unmountBusy unmounts, and gives a process of the Runner that is just going away (a git of a clone) a second for it.
func unmountBusy(dir string) error {
	deadline := time.Now().Add(time.Second)
	for wait := time.Millisecond; ; wait *= 2 {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(wait)
	}
}

// waitReleased waits until no block device is made of an image, for at most ten seconds.
func waitReleased(image string) error {
	deadline := time.Now().Add(10 * time.Second)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		dev, err := loopOf(image)
		if err != nil || dev == "" {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is still held by /dev/%s: a process outside of this Runner uses what was mounted from it", image, dev)
		}
		time.Sleep(wait)
	}
}

// loopOf finds the block device made of an image, or "".
func loopOf(image string) (string, error) {
	real, err := filepath.EvalSymlinks(image)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && strings.TrimSuffix(string(b), "\n") == real {
			return filepath.Base(filepath.Dir(filepath.Dir(f))), nil
		}
	}
	return "", nil
}
