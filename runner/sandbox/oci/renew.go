package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// asideName is where on a disk the root filesystem is that answered last, while a fresh one has yet to.
const asideName = "root.aside"

// rootAt reads which base a root filesystem on a mounted disk was made on. One without base.json is none: it was never whole, or is
// about to be deleted.
func rootAt(m sandbox.Mounted, name string) (rec rootRecord, found bool, err error) {
	found, err = readJSON(filepath.Join(m.Folder, name, rootInfo), &rec)
	if err != nil {
		return rec, false, sandbox.Errorf(sandbox.ErrDiskDamaged, "the root filesystem can't be used: %v", err)
	}
	return rec, found, nil
}

func (r rootRecord) on(b sandbox.Base) bool {
	return r.Name == b.Name && slices.Equal(r.Layers, b.Layers)
}

// Renew is sandbox.Engine's.
func (e *Engine) Renew(ctx context.Context, id sandbox.ID, d sandbox.Disk) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer e.ids.lock(string(id))()
	if err := e.stopped(ctx, id); err != nil {
		return err
	}
	return e.onDisk(ctx, id, d, func(m sandbox.Mounted) error {
		was, found, err := rootAt(m, rootName)
		if err != nil || !found {
			return err
		}
		if exists(filepath.Join(m.Folder, asideName)) { // what is in the place never answered
			return toTrash(m, rootName)
		}
		// The record comes first: from it on nobody deletes the snapshots that what is aside is made on.
		rec, _ := e.readRecord(id)
		rec.Aside = &sandbox.Base{Name: was.Name, Layers: was.Layers}
		if rec.Spec.Disk.Path == "" {
			rec.Spec.Disk = d
		}
		if err := writeJSON(e.recordFile(id), rec, true); err != nil {
			return err
		}
		return os.Rename(filepath.Join(m.Folder, rootName), filepath.Join(m.Folder, asideName))
	})
}

// Settle is sandbox.Engine's.
func (e *Engine) Settle(ctx context.Context, id sandbox.ID, d sandbox.Disk, fresh bool) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer e.ids.lock(string(id))()
	if rec, found := e.readRecord(id); !found || rec.Aside == nil {
		return nil
	}
	if !fresh {
		if err := e.stopped(ctx, id); err != nil {
			return err
		}
	}
	return e.onDisk(ctx, id, d, func(m sandbox.Mounted) error {
		if fresh {
			if err := toTrash(m, asideName); err != nil {
				return err
			}
		} else if err := putBack(m); err != nil {
			return err
		}
		rec, _ := e.readRecord(id)
		if !fresh && rec.Aside != nil {
			rec.Spec.Base = *rec.Aside
		}
		rec.Aside = nil
		e.takeOut(m, d.Path)
		return writeJSON(e.recordFile(id), rec, false)
	})
}

// putBack has the root filesystem that is aside in its place again. Killed at any point, it can be repeated.
func putBack(m sandbox.Mounted) error {
	if !exists(filepath.Join(m.Folder, asideName)) {
		return nil
	}
	if err := toTrash(m, rootName); err != nil {
		return err
	}
	return os.Rename(filepath.Join(m.Folder, asideName), filepath.Join(m.Folder, rootName))
}

// reclaim puts back what is aside if it was made on the base that is wanted: nothing of it is to be given up. It returns the base
// of what stays aside.
func reclaim(m sandbox.Mounted, wanted sandbox.Base) (*sandbox.Base, error) {
	was, found, err := rootAt(m, asideName)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, nil
	case was.on(wanted):
		return nil, putBack(m)
	}
	return &sandbox.Base{Name: was.Name, Layers: was.Layers}, nil
}

// stopped cleans up after id, or says that it runs. The caller holds the id's lock.
func (e *Engine) stopped(ctx context.Context, id sandbox.ID) error {
	if b := e.box(id); b != nil && b.running() {
		return sandbox.Errorf(sandbox.ErrRunning, "the Sandbox %s is running: stop it before its root filesystem is replaced", id)
	}
	return e.cleanUp(ctx, id)
}

// onDisk runs f on a disk that only id may use, and leaves the disk mounted or not as it was.
func (e *Engine) onDisk(ctx context.Context, id sandbox.ID, d sandbox.Disk, f func(sandbox.Mounted) error) error {
	defer e.disks.locks.lock(d.Path)()
	if other, used := e.disks.user(d.Path); used && other != id {
		return sandbox.Errorf(sandbox.ErrRunning, "the disk %s is used by the Sandbox %s", d.Path, other)
	}
	mounted, err := isMountpoint(e.diskMount(d.Path))
	if err != nil {
		return err
	}
	m, err := e.mountDisk(ctx, d)
	if err != nil {
		return err
	}
	err = f(m)
	if mounted {
		return err
	}
	return errors.Join(err, e.unmountDisk(d.Path))
}

// toTrash takes a folder at the top of a disk out of its place at once, if it is there.
func toTrash(m sandbox.Mounted, name string) error {
	err := os.Rename(filepath.Join(m.Folder, name), filepath.Join(m.Folder, trashMark+randomID()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
