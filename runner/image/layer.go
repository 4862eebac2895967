package image

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A layer is layers/<id>/fs with layers/<id>/layer.json beside it; id is the hex of its diffID. While it is being made
// it is layers/tmp-<id>, and while it is being deleted layers/trash-<id>, both only under the layer's exclusive lock.
const (
	tmpPrefix   = "tmp-"
	trashPrefix = "trash-"
)

func layerID(diffID string) string { return strings.TrimPrefix(diffID, "sha256:") }

func (s *Store) layerPath(name string) string { return filepath.Join(s.dir, "layers", name) }

func (s *Store) layerDir(id string) string { return filepath.Join(s.layerPath(id), "fs") }

func (s *Store) readMeta(id string) (layerMeta, error) {
	var m layerMeta
	b, err := os.ReadFile(filepath.Join(s.layerPath(id), "layer.json"))
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(b, &m)
}

// makeLayer fills an empty folder with a layer and says what it is.
type makeLayer func(ctx context.Context, root string) (layerMeta, error)

// layer makes sure that a layer is in the store, and returns a shared lock on it: while that is held nobody removes
// it. Of several callers, in any process, one does the work and the others wait.
func (s *Store) layer(ctx context.Context, id string, make makeLayer) (*fileLock, layerMeta, error) {
	for {
		shared, err := s.lock(ctx, layerLock(id), unix.LOCK_SH)
		if err != nil {
			return nil, layerMeta{}, err
		}
		meta, err := s.readMeta(id)
		if err == nil {
			return shared, meta, nil
		}
		shared.release()
		if !errors.Is(err, os.ErrNotExist) {
			return nil, meta, err
		}
		alone, err := s.exclusive(ctx, layerLock(id))
		if err != nil {
			return nil, meta, err
		}
		if _, err = s.readMeta(id); errors.Is(err, os.ErrNotExist) {
			err = s.makeLayer(ctx, id, make)
		}
		alone.release()
		if err != nil {
			return nil, meta, err
		}
	}
}

func (s *Store) makeLayer(ctx context.Context, id string, make makeLayer) (err error) {
	tmp := s.layerPath(tmpPrefix + id)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tmp)
		}
	}()
	root := filepath.Join(tmp, "fs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	meta, err := make(ctx, root)
	if err != nil {
		return err
	}
	return s.publish(tmp, id, meta)
}

// publish gives a finished folder its final name, after everything in it is durable.
func (s *Store) publish(tmp, id string, meta layerMeta) error {
	b, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "layer.json"), b, 0o600); err != nil {
		return err
	}
	if err := syncFileSystem(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, s.layerPath(id)); err != nil {
		return err
	}
	return syncFolder(filepath.Join(s.dir, "layers"))
}

// unpackBlob unpacks an archive that src reads, counting into t.
func (s *Store) unpackBlob(src io.Reader, diffID string, b *budget, t *tracker) makeLayer {
	return func(ctx context.Context, root string) (layerMeta, error) {
		return unpack(ctx, readerFunc(func(p []byte) (int, error) {
			n, err := src.Read(p)
			t.unpacked.Add(int64(n))
			return n, err
		}), diffID, root, b)
	}
}

// dropLayer takes a layer out of the store and returns the folder that is left to delete; "" if the layer stays since
// somebody, such as a pull about to record its image, holds it.
func (s *Store) dropLayer(id string) (string, error) {
	l, err := s.tryLock(layerLock(id), unix.LOCK_EX)
	if l == nil || err != nil {
		return "", err
	}
	defer l.release()
	trash := s.layerPath(trashPrefix + id)
	if err := os.RemoveAll(trash); err != nil {
		return "", err
	}
	return trash, os.Rename(s.layerPath(id), trash)
}

// sweep removes what killed processes left, unless it is in the making now. Unfinished downloads wait some days to be
// gone on with.
func (s *Store) sweep() {
	entries, _ := os.ReadDir(filepath.Join(s.dir, "layers"))
	for _, e := range entries {
		for _, prefix := range []string{tmpPrefix, trashPrefix} {
			id, ok := strings.CutPrefix(e.Name(), prefix)
			if !ok {
				continue
			}
			if l, _ := s.tryLock(layerLock(id), unix.LOCK_EX); l != nil {
				_ = os.RemoveAll(s.layerPath(e.Name()))
				l.release()
			}
		}
	}
	entries, _ = os.ReadDir(filepath.Join(s.dir, "blobs"))
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < partKept {
			continue
		}
		if l, _ := s.tryLock(blobLock(e.Name()), unix.LOCK_EX); l != nil {
			_ = os.RemoveAll(filepath.Join(s.dir, "blobs", e.Name()))
			l.release()
		}
	}
}
