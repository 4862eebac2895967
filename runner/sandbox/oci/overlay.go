package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// rootRecord stands on the disk beside upper and work: the base the upper was made on.
type rootRecord struct {
	Name   string   `json:"name"`
	Layers []string `json:"layers"`
}

const rootInfo = "base.json"

// checkUpper refuses a base other than the one the disk's root filesystem was made on: an upper on other lowers is
// undefined behavior.
func checkUpper(m sandbox.Mounted, b sandbox.Base) error {
	rec, found, err := rootAt(m, rootName)
	if err != nil {
		return err
	}
	if found && !rec.on(b) {
		return sandbox.Errorf(sandbox.ErrOtherBase, "the root filesystem was made on the base %q and can't go on with %q", rec.Name, b.Name)
	}
	return nil
}

// mountRoot mounts the root filesystem of id: every layer as an idmapped mount into the disk's id range, the upper and
// work folders plain (idmapped ones make overlayfs read-only, facts/sandbox.md §2.4).
func (e *Engine) mountRoot(id sandbox.ID, m sandbox.Mounted, b sandbox.Base) (string, error) {
	layers, err := e.resolveLayers(b)
	if err != nil {
		return "", err
	}
	dir := e.rootDir(id)
	spaces := map[int]*os.File{}
	defer func() {
		for _, f := range spaces {
			f.Close()
		}
	}()
	for i, l := range layers {
		if spaces[l.idBase] == nil {
			if spaces[l.idBase], err = idmapping(l.idBase, m.IDBase); err != nil {
				return "", err
			}
		}
		to := filepath.Join(dir, "l", strconv.Itoa(i))
		if err := os.MkdirAll(to, 0o711); err != nil {
			return "", err
		}
		if err := mountIdmapped(l.path, to, spaces[l.idBase]); err != nil {
			return "", err
		}
	}
	upper, err := makeUpper(m, b, layers[len(layers)-1].path)
	if err != nil {
		return "", err
	}
	if err := upperUnused(upper); err != nil {
		return "", err
	}
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(root, 0o711); err != nil {
		return "", err
	}
	// mount(2) takes at most a page of options, which some thirty layers with long paths would fill.
	short, err := os.OpenFile(filepath.Join(dir, "l"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer short.Close()
	var lower []string
	for i := len(layers) - 1; i >= 0; i-- {
		lower = append(lower, fmt.Sprintf("/proc/self/fd/%d/%d", short.Fd(), i))
	}
	// Always explicit: with index=on a changed lower is ESTALE, without redirect_dir=on renaming a folder of a lower is
	// EXDEV (facts/sandbox.md §2.11). No device node of an image is ever opened: its major and minor are the host's.
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,index=off,metacopy=off,redirect_dir=on",
		strings.Join(lower, ":"), upper, filepath.Join(m.Folder, rootName, "work"))
	if err := unix.Mount("overlay", root, "overlay", unix.MS_NODEV, options); err != nil {
		return "", fmt.Errorf("the root filesystem can't be mounted (%d layers): %w", len(layers), err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return "", err
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return "", errors.New("the kernel mounted the root filesystem read-only: its upper folder can't be used (see dmesg)")
	}
	return root, nil
}

// makeUpper makes upper and work on the disk. base.json comes last: without it the root filesystem is made anew.
func makeUpper(m sandbox.Mounted, b sandbox.Base, top string) (string, error) {
	dir := filepath.Join(m.Folder, rootName)
	upper, info := filepath.Join(dir, "upper"), filepath.Join(dir, rootInfo)
	if exists(info) {
		return upper, nil
	}
	if err := removeTree(dir); err != nil {
		return "", err
	}
	for _, d := range []string{dir, upper, filepath.Join(dir, "work")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
		if err := os.Chmod(d, 0o755); err != nil {
			return "", err
		}
	}
	// The top folder's owner and mode are those of the upper, never of a lower.
	fi, err := os.Stat(top)
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.Chown(upper, m.IDBase, m.IDBase), os.Chmod(upper, fi.Mode().Perm()|0o555)); err != nil {
		return "", err
	}
	return upper, writeJSON(info, rootRecord{Name: b.Name, Layers: b.Layers}, false)
}

// upperUnused guards against one upper in two mounts, which the kernel only complains about in its log.
func upperUnused(upper string) error {
	table, err := mountTable()
	if err != nil {
		return err
	}
	for _, mt := range table {
		if mt.fstype == "overlay" && slices.Contains(strings.Split(mt.super, ","), "upperdir="+upper) {
			return sandbox.Errorf(sandbox.ErrRunning, "the root filesystem is mounted already, at %s", mt.point)
		}
	}
	return nil
}

// layer is one lower of a root filesystem, with the id that its files' id 0 has on the disk.
type layer struct {
	path   string
	idBase int
}

// resolveLayers mounts the snapshots among a base's layers and knows each layer's ids: an image's layer has its own, a
// snapshot's those of the disk it was.
func (e *Engine) resolveLayers(b sandbox.Base) ([]layer, error) {
	if len(b.Layers) == 0 {
		return nil, sandbox.Errorf(sandbox.ErrInvalid, "the base %q has no layers", b.Name)
	}
	var out []layer
	for _, p := range b.Layers {
		if !filepath.IsAbs(p) || filepath.Clean(p) != p {
			return nil, sandbox.Errorf(sandbox.ErrInvalid, "a layer's path must be absolute and clean, not %q", p)
		}
		l := layer{path: p}
		if name, ok := e.snapshotOfLayer(p); ok {
			rec, err := e.mountBase(name)
			if err != nil {
				return nil, err
			}
			l.idBase = rec.IDBase
		}
		if fi, err := os.Lstat(p); err != nil || !fi.IsDir() {
			return nil, sandbox.Errorf(sandbox.ErrBaseLost, "a layer of the base %q is gone from this host: %s", b.Name, p)
		}
		out = append(out, l)
	}
	return out, nil
}

func (e *Engine) snapshotOfLayer(path string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(path, filepath.Join(e.mountDir(), "b")+"/")
	name, _, _ = strings.Cut(rest, "/")
	return name, ok
}
