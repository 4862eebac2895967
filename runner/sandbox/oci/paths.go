package oci

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// Layout of Dir: lock, ids/N (range N's user), sandboxes/ID.json (record), builds/NAME/{disk.ext4,base.json}.
// Layout of RunDir: rt (the runtime's state), k (agents' sockets, host only), s/ID (bundle and boot.json), and m, a
// private tmpfs for all mounts: m/d/KEY (disks), m/b/NAME (snapshots), m/s/ID/{l/N,root} (root filesystems).
// Mounts are private because another service's mount namespace would otherwise pin them (facts/sandbox.md §2.11).

func (e *Engine) recordFile(id sandbox.ID) string {
	return filepath.Join(e.cfg.Dir, "sandboxes", string(id)+".json")
}
func (e *Engine) buildDir(name string) string    { return filepath.Join(e.cfg.Dir, "builds", name) }
func (e *Engine) bundleDir(id sandbox.ID) string { return filepath.Join(e.cfg.RunDir, "s", string(id)) }
func (e *Engine) bootFile(id sandbox.ID) string  { return filepath.Join(e.bundleDir(id), "boot.json") }
func (e *Engine) socketPath(id sandbox.ID) string {
	return filepath.Join(e.cfg.RunDir, "k", string(id))
}
func (e *Engine) mountDir() string              { return filepath.Join(e.cfg.RunDir, "m") }
func (e *Engine) rootDir(id sandbox.ID) string  { return filepath.Join(e.mountDir(), "s", string(id)) }
func (e *Engine) buildMount(name string) string { return filepath.Join(e.mountDir(), "b", name) }

func (e *Engine) diskMount(path string) string {
	h := sha256.Sum256([]byte(path))
	return filepath.Join(e.mountDir(), "d", hex.EncodeToString(h[:8]))
}

var (
	idPattern       = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
	namePattern     = regexp.MustCompile(`^[a-zA-Z0-9_-][a-zA-Z0-9_.-]{0,127}$`)
	hostnamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

func checkID(id sandbox.ID) error {
	if !idPattern.MatchString(string(id)) {
		return sandbox.Errorf(sandbox.ErrInvalid, "a Sandbox's id is 1 to 64 characters of a-z, 0-9 and \"-\", not %q", id)
	}
	return nil
}

func checkName(name string) error {
	if !namePattern.MatchString(name) {
		return sandbox.Errorf(sandbox.ErrInvalid, "a snapshot's name is 1 to 128 characters of letters, digits, \"-\", \"_\" and \".\", not %q", name)
	}
	return nil
}

// writeJSON replaces a file as a whole. durable: it is there after a power cut, once this returned.
func writeJSON(path string, v any, durable bool) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && durable {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if durable {
		return syncPath(filepath.Dir(path))
	}
	return nil
}

// readJSON says false if there is no such file.
func readJSON(path string, v any) (bool, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return false, fmt.Errorf("%s is damaged: %w", path, err)
	}
	return true, nil
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func randomID() string {
	b := make([]byte, 12)
	rand.Read(b) // never fails (Go 1.24)
	return hex.EncodeToString(b)
}

// checkRoom refuses new work while a file system has less than the low-water mark free: sparse disks promise more than
// the host has, and a disk whose host runs full is damaged.
func (e *Engine) checkRoom(paths ...string) error {
	for _, p := range append([]string{e.cfg.Dir}, paths...) {
		free, err := freeBytes(p)
		if err != nil {
			return fmt.Errorf("the free space of %s can't be read: %w", p, err)
		}
		if free < e.lowWater {
			return sandbox.Errorf(sandbox.ErrHostFull, "the host has %s free in %s and keeps %s in reserve: nothing new is started until space is freed",
				bytesText(free), p, bytesText(e.lowWater))
		}
	}
	return nil
}

func (c Config) lowWaterMark() (int64, error) {
	if c.LowWater > 0 {
		return c.LowWater, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(c.Dir, &st); err != nil {
		return 0, fmt.Errorf("the size of %s can't be read: %w", c.Dir, err)
	}
	return min(2<<30, int64(st.Blocks)*st.Bsize/20), nil
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
