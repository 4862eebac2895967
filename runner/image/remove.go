package image

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Hold keeps an image (by name or digest) for an owner, such as a build or a Session, across restarts and against
// `claude-hub image rm` in another process. One owner holds one image; holding again replaces. NotFound if it isn't
// in the store.
func (s *Store) Hold(ctx context.Context, owner, ref string) error {
	return s.change(ctx, func(ix *index) error {
		digest, err := s.lookup(*ix, ref)
		if err == nil {
			_, err = s.load(*ix, ref, digest)
		}
		if err == nil {
			ix.Holds[owner] = digest
		}
		return err
	})
}

// Release ends an owner's hold. Releasing what isn't held is no error.
func (s *Store) Release(ctx context.Context, owner string) error {
	return s.change(ctx, func(ix *index) error {
		delete(ix.Holds, owner)
		return nil
	})
}

// Holds are all that are held, owner to digest.
func (s *Store) Holds() (map[string]string, error) {
	ix, err := s.readIndex()
	if err != nil {
		return nil, s.local("", err, "reading the image store")
	}
	return ix.Holds, nil
}

// Remove takes a name away; with its last name, or by digest, the image and those of its layers go that no other image
// has. InUse, and nothing is changed, if that image is held or inUse (may be nil) says so of one of its layers' folders.
func (s *Store) Remove(ctx context.Context, ref string, inUse func(layerDir string) bool) error {
	var gone []string
	err := s.change(ctx, func(ix *index) error {
		digest, err := s.lookup(*ix, ref)
		if err != nil {
			return err
		}
		var names []string
		for n, to := range ix.Names {
			if to.Digest == digest {
				names = append(names, n)
			}
		}
		if r, err := parse(ref); err == nil && len(names) > 1 && slices.Contains(names, r.Name()) {
			delete(ix.Names, r.Name())
			return nil
		}
		rec, err := s.readRecord(digest)
		if err != nil {
			return s.local(ref, err, "reading image "+ref)
		}
		if why := s.whyInUse(*ix, rec, inUse); why != "" {
			return fail(InUse, ref, nil, "image %s can't be removed: it is in use by %s", ref, why)
		}
		for _, n := range names {
			delete(ix.Names, n)
		}
		gone = append(gone, rec.Layers...)
		return s.local(ref, os.Remove(s.recordPath(digest)), "removing image "+ref)
	})
	if err != nil {
		return err
	}
	return s.dropLayers(gone, inUse)
}

// Prune removes every image without a name that is neither held nor in use, and layers of no image. It returns the
// digests of the images it removed.
func (s *Store) Prune(ctx context.Context, inUse func(layerDir string) bool) ([]string, error) {
	var removed []string
	err := s.change(ctx, func(ix *index) error {
		named := map[string]bool{}
		for n := range maps.Values(ix.Names) {
			named[n.Digest] = true
		}
		digests, err := s.digests()
		if err != nil {
			return err
		}
		for _, d := range digests {
			rec, err := s.readRecord(d)
			if err != nil || named[d] || s.whyInUse(*ix, rec, inUse) != "" {
				continue
			}
			if err := os.Remove(s.recordPath(d)); err != nil {
				return s.local(d, err, "removing image "+d)
			}
			removed = append(removed, d)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, "layers"))
	if err != nil {
		return removed, s.local("", err, "reading the image store")
	}
	var all []string
	for _, e := range entries {
		if isHex(e.Name()) {
			all = append(all, e.Name())
		}
	}
	return removed, s.dropLayers(all, inUse)
}

func (s *Store) whyInUse(ix index, r record, inUse func(string) bool) string {
	var owners []string
	for o, d := range ix.Holds {
		if d == r.Digest {
			owners = append(owners, o)
		}
	}
	if len(owners) > 0 {
		slices.Sort(owners)
		return strings.Join(owners, ", ")
	}
	for _, id := range r.Layers {
		if inUse != nil && inUse(s.layerDir(id)) {
			return "a Sandbox"
		}
	}
	return ""
}

// dropLayers deletes those of the layers that no image has. A pull that is about to record an image holds the locks of
// its layers, so they stay. The deleting itself, which can take seconds, holds up nobody.
func (s *Store) dropLayers(ids []string, inUse func(string) bool) error {
	trash, err := s.takeLayers(ids, inUse)
	for _, dir := range trash {
		if e := os.RemoveAll(dir); err == nil && e != nil {
			err = s.local("", e, "removing a layer")
		}
	}
	return err
}

func (s *Store) takeLayers(ids []string, inUse func(string) bool) (trash []string, err error) {
	lock, err := s.exclusive(context.Background(), storeLock)
	if err != nil {
		return nil, s.local("", err, "locking the image store")
	}
	defer lock.release()
	digests, err := s.digests()
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, d := range digests {
		rec, err := s.readRecord(d)
		if err != nil {
			return nil, s.local(d, err, "reading image "+d)
		}
		for _, id := range rec.Layers {
			used[id] = true
		}
	}
	for _, id := range ids {
		if used[id] || inUse != nil && inUse(s.layerDir(id)) {
			continue
		}
		dir, err := s.dropLayer(id)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return trash, s.local("", err, "removing a layer")
		}
		if err == nil && dir != "" {
			trash = append(trash, dir)
		}
	}
	return trash, nil
}

// Mounted returns an inUse function for Remove and Prune that knows the layers mounted on this host when it was called:
// those of running Sandboxes, whichever process started them. Layers of sleeping ones are known by Hold only.
func Mounted() (func(layerDir string) bool, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fail(Failed, "", err, "this host's mounts can't be read: %v", err)
	}
	table := string(b)
	return func(layerDir string) bool {
		// An idmapped mount has the folder as its root, an overlay names it in its options.
		id := filepath.Base(filepath.Dir(layerDir))
		return strings.Contains(table, "/layers/"+id+"/fs")
	}, nil
}
