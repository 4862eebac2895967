package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Resolved is what a reference means now.
type Resolved struct {
	Digest string // of the manifest for the store's platform
	Name   string // full name, "index.docker.io/library/debian:bookworm"
	Local  bool   // imported or made here, or pinned by a digest that is here: no registry was asked
	Config Config
	Layers int
	Bytes  int64 // of all layers, compressed; 0 for a local image
}

// Resolve says what Pull would give, and fetches no layer. Names of images that were imported or made here, and digests
// that are here already, are found without a registry; every other name is asked for at its registry, each time.
func (s *Store) Resolve(ctx context.Context, ref string) (Resolved, error) {
	if img, full, ok, err := s.here(ref); ok || err != nil {
		return Resolved{Digest: img.Digest, Name: full, Local: true, Config: img.Config, Layers: len(img.Layers)}, err
	}
	r, err := parse(ref)
	if err != nil {
		return Resolved{}, err
	}
	p, _, err := s.ask(ctx, ref, r)
	if err != nil {
		return Resolved{}, err
	}
	res := Resolved{Digest: p.digest, Name: r.Name(), Config: configOf(p.config), Layers: len(p.blobs)}
	for _, b := range p.blobs {
		res.Bytes += b.size
	}
	return res, nil
}

// here finds an image that no registry needs to be asked for.
func (s *Store) here(ref string) (img Image, full string, ok bool, err error) {
	ix, err := s.readIndex()
	if err != nil {
		return img, "", false, err
	}
	if strings.HasPrefix(ref, "sha256:") {
		digest, err := s.lookup(ix, ref)
		if err == nil {
			img, err = s.load(ix, ref, digest)
		}
		return img, digest, err == nil, err
	}
	r, err := parse(ref)
	if err != nil {
		return img, "", false, err
	}
	digest := ix.Names[r.Name()].Digest
	if _, pinned := r.(name.Digest); !pinned && !ix.Names[r.Name()].Local {
		return img, r.Name(), false, nil
	} else if pinned && digest == "" {
		digest = r.Identifier()
	}
	img, err = s.load(ix, ref, digest)
	if CodeOf(err) == NotFound {
		return img, r.Name(), false, nil
	}
	return img, r.Name(), err == nil, err
}

// ask finds the image of a reference at a mirror or at its registry, and says where.
func (s *Store) ask(ctx context.Context, ref string, r name.Reference) (plan, *endpoint, error) {
	all, err := s.endpoints(ref, r)
	if err != nil {
		return plan{}, nil, err
	}
	for i, e := range all {
		p, err := s.askOne(ctx, e)
		if err == nil {
			return p, e, nil
		}
		if ctx.Err() != nil {
			return plan{}, nil, ctx.Err()
		}
		if err = e.explain(err); i == len(all)-1 {
			return plan{}, nil, err
		}
	}
	return plan{}, nil, fmt.Errorf("no registry for %s", ref)
}

func (s *Store) askOne(ctx context.Context, e *endpoint) (plan, error) {
	raw, mediaType, err := e.fetch(ctx, "manifests", e.identifier, accepted)
	if err != nil {
		return plan{}, err
	}
	return s.plan(ctx, e.ref, raw, mediaType, func(ctx context.Context, kind, digest string) ([]byte, error) {
		accept := "*/*"
		if kind == "manifests" {
			accept = accepted
		}
		b, _, err := e.fetch(ctx, kind, digest, accept)
		return b, err
	})
}

// Pull brings an image into the store, or finds it there, and points its name at it. Its layers are fetched and unpacked
// in parallel, each once, also when several processes pull at the same time; a pull that was interrupted in any way
// goes on where it stopped. progress (may be nil) is called from one goroutine, at most twice a second and once more at
// the end. Errors are *Error, or the context's.
func (s *Store) Pull(ctx context.Context, ref string, progress func(Progress)) (img Image, err error) {
	t := track(progress, false)
	defer func() { t.end(err == nil) }()
	img, full, ok, err := s.here(ref)
	if err != nil {
		return Image{}, err
	}
	if ok {
		t.resolved.Store(true)
		for _, c := range []interface{ Store(int64) }{&t.totalLayers, &t.known, &t.layers} {
			c.Store(int64(len(img.Layers)))
		}
		return s.named(ctx, img, full)
	}
	r, err := parse(ref)
	if err != nil {
		return Image{}, err
	}
	p, e, err := s.ask(ctx, ref, r)
	if err != nil {
		return Image{}, err
	}
	if err := s.room(ref, p); err != nil {
		return Image{}, err
	}
	all, err := s.endpoints(ref, r)
	if err != nil {
		return Image{}, err
	}
	// Layers come from where the manifest came from; the registry itself stands in for a mirror that fails halfway.
	from := []*endpoint{e}
	if last := all[len(all)-1]; last.reg != e.reg || last.repo != e.repo {
		from = append(from, last)
	}
	b := s.newBudget(ref)
	return s.assemble(ctx, ref, full, false, p, t, b, func(bl blob) makeLayer { return s.fromRegistry(from, bl, b, t) })
}

// named gives an image found here the name it was pulled by, if that is a new one.
func (s *Store) named(ctx context.Context, img Image, full string) (Image, error) {
	if strings.HasPrefix(full, "sha256:") || slices.Contains(img.Names, familiar(full)) {
		return img, nil
	}
	err := s.change(ctx, func(ix *index) error {
		ix.Names[full] = indexName{Digest: img.Digest}
		var err error
		img, err = s.load(*ix, familiar(full), img.Digest)
		return err
	})
	return img, err
}

// room refuses a pull that can't fit before it begins: the compressed layers alone are a lower bound.
func (s *Store) room(ref string, p plan) error {
	free, err := s.free()
	if err != nil {
		return s.local(ref, err, "looking at free space")
	}
	need := int64(0)
	seen := map[string]bool{}
	for _, b := range p.blobs {
		if _, err := s.readMeta(layerID(b.diffID)); err == nil || seen[b.diffID] {
			continue
		}
		seen[b.diffID] = true
		need += b.size
	}
	if need > max(free, 0) {
		return fail(DiskFull, ref, nil, "image %s needs at least %s MB, but only %s MB are free on the file system of %s, beside %s MB kept "+
			"in reserve; free space or remove images with \"claude-hub image rm\"", ref, megabytes(need), megabytes(max(free, 0)), s.dir, megabytes(s.o.Reserve))
	}
	return nil
}

// free is how much of the file system the store may still take; below 0 where the reserve is touched.
func (s *Store) free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail)*st.Bsize - s.o.Reserve, nil
}

// fromRegistry makes a layer of a blob of a registry.
func (s *Store) fromRegistry(from []*endpoint, bl blob, b *budget, t *tracker) makeLayer {
	return func(ctx context.Context, root string) (layerMeta, error) {
		lock, err := s.exclusive(ctx, blobLock(bl.digest))
		if err != nil {
			return layerMeta{}, err
		}
		defer lock.release()
		done, err := s.slot(ctx)
		if err != nil {
			return layerMeta{}, err
		}
		defer done()
		var f *os.File
		for i, e := range from {
			// A connection has no lock; each layer has its own.
			own := *e
			f, err = own.download(ctx, bl.digest, bl.size, &t.fetched)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return layerMeta{}, ctx.Err()
			}
			var file *os.PathError
			if errors.As(err, &file) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
				return layerMeta{}, s.local(e.ref, err, "downloading image "+e.ref)
			}
			if err = own.explain(err); i == len(from)-1 {
				return layerMeta{}, err
			}
		}
		defer func() {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}()
		t.fetching.Add(-1)
		return s.unpackBlob(f, bl.diffID, b, t)(ctx, root)
	}
}

// assemble makes sure of all layers of a planned image and records it under its full name.
func (s *Store) assemble(ctx context.Context, ref, full string, local bool, p plan, t *tracker, b *budget,
	source func(blob) makeLayer,
) (Image, error) {
	// The same layer twice is kept where it is topmost: overlayfs refuses the same folder twice, and a lower one changes
	// nothing that the upper one doesn't decide.
	var unique []blob
	for i, bl := range p.blobs {
		if !slices.ContainsFunc(p.blobs[i+1:], func(o blob) bool { return o.diffID == bl.diffID }) {
			unique = append(unique, bl)
		}
	}
	t.totalLayers.Store(int64(len(unique)))
	t.resolved.Store(true)
	ids, metas, locks := make([]string, len(unique)), make([]layerMeta, len(unique)), make([]*fileLock, len(unique)+1)
	defer func() {
		for _, l := range locks {
			l.release()
		}
	}()
	g, gctx := errgroup.WithContext(ctx)
	for i, bl := range unique {
		ids[i] = layerID(bl.diffID)
		g.Go(func() (err error) {
			known := false
			know := func() {
				if !known {
					known = true
					t.known.Add(1)
				}
			}
			defer know()
			make := source(bl)
			locks[i], metas[i], err = s.layer(gctx, ids[i], func(ctx context.Context, root string) (layerMeta, error) {
				t.total.Add(bl.size)
				t.fetching.Add(1)
				know()
				return make(ctx, root)
			})
			if err == nil {
				t.layers.Add(1)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return Image{}, s.local(ref, err, "unpacking image "+ref)
	}
	r := record{Digest: p.digest, Layers: ids, Config: configOf(p.config)}
	devices := 0
	for _, m := range metas {
		r.Size += m.Size
		devices += m.Devices
	}
	if devices > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d device nodes of the image were left out: a Sandbox has its own /dev", devices))
	}
	extra, lock, err := s.impliedLayer(ctx, ids, metas)
	if err != nil {
		return Image{}, s.local(ref, err, "unpacking image "+ref)
	}
	if extra != "" {
		r.Layers, locks[len(unique)] = append(r.Layers, extra), lock
	}
	return s.save(ctx, r, full, local)
}
