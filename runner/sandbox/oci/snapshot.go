package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// A snapshot is the disk image of a build: renamed, never copied, and mounted read-only (facts/sandbox.md §2.5). What
// is being made is NAME.new and what is being deleted is NAME.old; neither counts.
const (
	baseInfo = "base.json"
	halfMade = ".new"
	halfGone = ".old"
)

// baseRecord stands beside a snapshot's image.
type baseRecord struct {
	Name   string          `json:"name"`
	Below  []string        `json:"below"` // layers under the snapshot's own, bottom first
	IDBase int             `json:"id_base"`
	Meta   json.RawMessage `json:"meta,omitempty"`
}

func (e *Engine) baseOf(rec baseRecord) sandbox.Base {
	return sandbox.Base{
		Name:   rec.Name,
		Layers: append(slices.Clone(rec.Below), filepath.Join(e.buildMount(rec.Name), rootName, "upper")),
		Meta:   rec.Meta,
	}
}

func (e *Engine) readBase(name string) (rec baseRecord, found bool, err error) {
	found, err = readJSON(filepath.Join(e.buildDir(name), baseInfo), &rec)
	return rec, found, err
}

// Base is sandbox.Engine's.
func (e *Engine) Base(_ context.Context, name string) (sandbox.Base, bool, error) {
	if err := checkName(name); err != nil {
		return sandbox.Base{}, false, err
	}
	rec, found, err := e.readBase(name)
	if err != nil || !found {
		return sandbox.Base{}, false, err
	}
	return e.baseOf(rec), true, nil
}

// Bases is sandbox.Engine's.
func (e *Engine) Bases(ctx context.Context) ([]sandbox.Base, error) {
	names, err := e.baseNames()
	if err != nil {
		return nil, err
	}
	var out []sandbox.Base
	for _, n := range names {
		b, found, err := e.Base(ctx, n)
		if err != nil {
			return nil, err
		}
		if found {
			out = append(out, b)
		}
	}
	return out, nil
}

func (e *Engine) baseNames() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(e.cfg.Dir, "builds"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range entries {
		if !strings.HasSuffix(d.Name(), halfMade) && !strings.HasSuffix(d.Name(), halfGone) {
			out = append(out, d.Name())
		}
	}
	return out, nil
}

// Snapshot is sandbox.Engine's.
func (e *Engine) Snapshot(ctx context.Context, id sandbox.ID, name string, meta json.RawMessage) (sandbox.Base, error) {
	if err := errors.Join(checkID(id), checkName(name)); err != nil {
		return sandbox.Base{}, err
	}
	if strings.HasSuffix(name, halfMade) || strings.HasSuffix(name, halfGone) {
		return sandbox.Base{}, sandbox.Errorf(sandbox.ErrInvalid, "a snapshot's name doesn't end in %q or %q", halfMade, halfGone)
	}
	defer e.ids.lock(string(id))()
	if rec, found, err := e.readBase(name); err != nil {
		return sandbox.Base{}, err
	} else if found {
		return e.baseOf(rec), nil
	}
	if b := e.box(id); b != nil && b.running() {
		return sandbox.Base{}, sandbox.Errorf(sandbox.ErrRunning, "the Sandbox %s is running: stop it before its snapshot is made", id)
	}
	r, found := e.readRecord(id)
	if !found {
		return sandbox.Base{}, sandbox.Errorf(sandbox.ErrNotFound, "there is no Sandbox %s on this host", id)
	}
	if err := e.cleanUp(ctx, id); err != nil {
		return sandbox.Base{}, err
	}
	// Locks are always taken in this order: Sandbox, disk, snapshot.
	defer e.disks.locks.lock(r.Spec.Disk.Path)()
	defer e.bases.lock(name)()
	if rec, found, err := e.readBase(name); err != nil {
		return sandbox.Base{}, err
	} else if found {
		return e.baseOf(rec), nil
	}
	rec, err := e.seal(ctx, r.Spec, name, meta)
	if err != nil {
		return sandbox.Base{}, fmt.Errorf("the snapshot of the Sandbox %s can't be made: %w", id, err)
	}
	if err := os.Remove(e.recordFile(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return sandbox.Base{}, err
	}
	if _, err := e.mountBaseLocked(name, rec); err != nil {
		return sandbox.Base{}, err
	}
	return e.baseOf(rec), nil
}

// seal turns a disk into a snapshot. Whatever it is killed in, either the disk is still there or recoverSnapshots
// finishes it: base.json is written before the image moves, and the image moves before the folder gets its name. The
// caller holds the locks of the disk and of the snapshot.
func (e *Engine) seal(ctx context.Context, s sandbox.Spec, name string, meta json.RawMessage) (baseRecord, error) {
	rec := baseRecord{Name: name, Below: s.Base.Layers, Meta: meta}
	half := e.buildDir(name) + halfMade
	m, err := e.mountDisk(ctx, s.Disk)
	if err != nil {
		return rec, err
	}
	rec.IDBase = m.IDBase
	if !exists(filepath.Join(m.Folder, rootName, rootInfo)) {
		return rec, errors.New("it has no root filesystem")
	}
	// Only the root filesystem is kept. What /tmp held may still be on its way out.
	e.disks.tidying(s.Disk.Path).Wait()
	entries, err := os.ReadDir(m.Folder)
	if err != nil {
		return rec, err
	}
	for _, d := range entries {
		if d.Name() == rootName || d.Name() == "lost+found" {
			continue
		}
		if err := removeTree(filepath.Join(m.Folder, d.Name())); err != nil {
			return rec, err
		}
	}
	if err := removeTree(filepath.Join(m.Folder, rootName, "work")); err != nil {
		return rec, err
	}
	if err := e.unmountDisk(s.Disk.Path); err != nil {
		return rec, err
	}
	image := filepath.Join(s.Disk.Path, diskImage)
	// The loop device wrote to the image's pages; without this a power cut leaves empty files in an applied build.
	if err := syncPath(image); err != nil {
		return rec, err
	}
	if err := os.RemoveAll(half); err != nil {
		return rec, err
	}
	if err := os.Mkdir(half, 0o700); err != nil {
		return rec, err
	}
	if err := writeJSON(filepath.Join(half, baseInfo), rec, true); err != nil {
		return rec, err
	}
	if err := moveImage(image, filepath.Join(half, diskImage)); err != nil {
		return rec, err
	}
	if err := e.finishSnapshot(name, rec); err != nil {
		return rec, err
	}
	if err := os.Remove(filepath.Join(s.Disk.Path, diskInfo)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return rec, err
	}
	// The folder is the caller's, and gone if nothing else is in it.
	_ = os.Remove(s.Disk.Path)
	return rec, nil
}

func moveImage(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("a build's disk must be on the file system of the Runner's data folder: %w", err)
	}
	return errors.Join(syncPath(filepath.Dir(to)), syncPath(filepath.Dir(from)))
}

// finishSnapshot gives a complete half-made snapshot its name.
func (e *Engine) finishSnapshot(name string, rec baseRecord) error {
	if err := e.moveIDs(rec.IDBase, e.buildDir(name)); err != nil {
		return err
	}
	if err := os.Rename(e.buildDir(name)+halfMade, e.buildDir(name)); err != nil {
		return err
	}
	return syncPath(filepath.Dir(e.buildDir(name)))
}

// recoverSnapshots finishes what a crash left between the steps of seal and Delete, before anybody else is there.
func (e *Engine) recoverSnapshots() error {
	entries, err := os.ReadDir(filepath.Join(e.cfg.Dir, "builds"))
	if err != nil {
		return err
	}
	for _, d := range entries {
		path := e.buildDir(d.Name())
		if strings.HasSuffix(d.Name(), halfGone) {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
		name, half := strings.CutSuffix(d.Name(), halfMade)
		if !half {
			continue
		}
		var rec baseRecord
		found, err := readJSON(filepath.Join(path, baseInfo), &rec)
		if err == nil && found && exists(filepath.Join(path, diskImage)) {
			if err := e.finishSnapshot(name, rec); err != nil {
				return err
			}
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// mountBase mounts a snapshot if it isn't.
func (e *Engine) mountBase(name string) (baseRecord, error) {
	defer e.bases.lock(name)()
	rec, found, err := e.readBase(name)
	if err != nil {
		return rec, err
	}
	if !found {
		return rec, sandbox.Errorf(sandbox.ErrBaseLost, "the snapshot %q is gone from this host", name)
	}
	return e.mountBaseLocked(name, rec)
}

func (e *Engine) mountBaseLocked(name string, rec baseRecord) (baseRecord, error) {
	dir := e.buildMount(name)
	mounted, err := isMountpoint(dir)
	if err != nil || mounted {
		return rec, err
	}
	if err := mountImage(filepath.Join(e.buildDir(name), diskImage), dir, true); err != nil {
		return rec, sandbox.Errorf(sandbox.ErrBaseLost, "the snapshot %q can't be used: %v", name, err)
	}
	return rec, nil
}

// Delete is sandbox.Engine's.
func (e *Engine) Delete(ctx context.Context, b sandbox.Base) error {
	if err := checkName(b.Name); err != nil {
		return err
	}
	defer e.bases.lock(b.Name)()
	rec, found, err := e.readBase(b.Name)
	if err != nil || !found {
		return err
	}
	users, err := e.baseUsers(ctx, b.Name)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return sandbox.Errorf(sandbox.ErrInUse, "the snapshot %q is in use by %s", b.Name, strings.Join(users, ", "))
	}
	dir := e.buildMount(b.Name)
	if mounted, err := isMountpoint(dir); err != nil {
		return err
	} else if mounted {
		if err := unmountImage(filepath.Join(e.buildDir(b.Name), diskImage), dir); err != nil {
			return fmt.Errorf("the snapshot %q can't be unmounted: %w", b.Name, err)
		}
	}
	gone := e.buildDir(b.Name) + halfGone
	if err := os.Rename(e.buildDir(b.Name), gone); err != nil {
		return err
	}
	if err := e.freeIDs(rec.IDBase); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// baseUsers names the Sandboxes, running or asleep, and the snapshots made on a snapshot.
func (e *Engine) baseUsers(ctx context.Context, name string) ([]string, error) {
	uses := func(layers []string) bool {
		return slices.ContainsFunc(layers, func(l string) bool { n, ok := e.snapshotOfLayer(l); return ok && n == name })
	}
	var out []string
	list, err := e.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range list {
		rec, _ := e.readRecord(s.ID)
		if uses(s.Spec.Base.Layers) || rec.Aside != nil && uses(rec.Aside.Layers) {
			out = append(out, "the Sandbox "+string(s.ID))
		}
	}
	names, err := e.baseNames()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if n == name {
			continue
		}
		rec, found, err := e.readBase(n)
		if err != nil {
			return nil, err
		}
		if found && uses(rec.Below) {
			out = append(out, "the snapshot "+n)
		}
	}
	return out, nil
}
