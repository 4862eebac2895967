package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// index is the file that says which name means which image, and which images are held. It is replaced whole, so that
// readers need no lock.
type index struct {
	Version int                  `json:"version"`
	Names   map[string]indexName `json:"names"` // by full name ("index.docker.io/library/debian:bookworm")
	Holds   map[string]string    `json:"holds"` // owner to digest
}

type indexName struct {
	Digest string `json:"digest"`
	Local  bool   `json:"local,omitempty"` // imported or made here: no registry is asked for it
}

// record is what the store knows of one image.
type record struct {
	Digest  string    `json:"digest"`
	Layers  []string  `json:"layers"` // ids, bottom first
	Config  Config    `json:"config"`
	Size    int64     `json:"size"`
	Notes   []string  `json:"notes,omitempty"`
	Created time.Time `json:"created"`
}

func (s *Store) indexPath() string { return filepath.Join(s.dir, "index.json") }

func (s *Store) readIndex() (index, error) {
	ix := index{Version: 1, Names: map[string]indexName{}, Holds: map[string]string{}}
	b, err := os.ReadFile(s.indexPath())
	if errors.Is(err, os.ErrNotExist) {
		return ix, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &ix)
	}
	if err != nil {
		return ix, s.local("", err, "reading "+s.indexPath())
	}
	if ix.Version != 1 {
		return ix, fail(Unsupported, "", nil, "the image store in %s was written by a newer claude-hub", s.dir)
	}
	return ix, nil
}

// change edits the index under the store's lock.
func (s *Store) change(ctx context.Context, f func(*index) error) error {
	l, err := s.exclusive(ctx, storeLock)
	if err != nil {
		return s.local("", err, "locking the image store")
	}
	defer l.release()
	ix, err := s.readIndex()
	if err != nil {
		return err
	}
	if err := f(&ix); err != nil {
		return err
	}
	b, err := json.MarshalIndent(ix, "", "  ")
	if err != nil {
		return err
	}
	return s.local("", writeFile(s.indexPath(), b), "writing the image index")
}

func (s *Store) recordPath(digest string) string {
	return filepath.Join(s.dir, "images", strings.TrimPrefix(digest, "sha256:")+".json")
}

// digests lists the images of the store.
func (s *Store) digests() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "images"))
	if err != nil {
		return nil, s.local("", err, "reading the image store")
	}
	var all []string
	for _, e := range entries {
		if hex, ok := strings.CutSuffix(e.Name(), ".json"); ok && len(hex) == 64 {
			all = append(all, "sha256:"+hex)
		}
	}
	return all, nil
}

// lookup finds the digest that a user means.
func (s *Store) lookup(ix index, ref string) (string, error) {
	absent := fail(NotFound, ref, nil, "there is no image %s on this host", ref)
	if hex := strings.TrimPrefix(ref, "sha256:"); isHex(hex) && len(hex) >= 12 && len(hex) <= 64 {
		all, err := s.digests()
		if err != nil {
			return "", err
		}
		var found []string
		for _, d := range all {
			if strings.HasPrefix(d, "sha256:"+hex) {
				found = append(found, d)
			}
		}
		if len(found) > 1 {
			return "", fail(BadReference, ref, nil, "%s is the beginning of %d images' digests; give more digits", ref, len(found))
		}
		if len(found) == 1 {
			return found[0], nil
		}
		if strings.HasPrefix(ref, "sha256:") {
			return "", absent
		}
	}
	r, err := parse(ref)
	if err != nil {
		return "", err
	}
	if n, ok := ix.Names[r.Name()]; ok {
		return n.Digest, nil
	}
	if _, err := os.Stat(s.recordPath(r.Identifier())); err == nil && strings.HasPrefix(r.Identifier(), "sha256:") {
		return r.Identifier(), nil
	}
	return "", absent
}

func isHex(v string) bool {
	return v != "" && strings.Trim(v, "0123456789abcdef") == ""
}

func (s *Store) readRecord(digest string) (record, error) {
	var r record
	b, err := os.ReadFile(s.recordPath(digest))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%s: %w", s.recordPath(digest), err)
	}
	return r, nil
}

// load makes the Image of a digest; NotFound when its record or one of its layers is gone.
func (s *Store) load(ix index, ref, digest string) (Image, error) {
	r, err := s.readRecord(digest)
	if errors.Is(err, os.ErrNotExist) {
		return Image{}, fail(NotFound, ref, err, "there is no image %s on this host", ref)
	}
	if err != nil {
		return Image{}, s.local(ref, err, "reading image "+ref)
	}
	img := Image{Digest: r.Digest, Config: r.Config, Size: r.Size, Notes: r.Notes, Created: r.Created, Names: []string{}}
	for _, id := range r.Layers {
		dir := s.layerDir(id)
		if _, err := os.Stat(dir); err != nil {
			return Image{}, fail(NotFound, ref, err, "image %s is on this host, but not whole: pull it again", ref)
		}
		img.Layers = append(img.Layers, dir)
	}
	for n, to := range ix.Names {
		if to.Digest == digest {
			img.Names = append(img.Names, familiar(n))
		}
	}
	slices.Sort(img.Names)
	return img, nil
}

// save writes the record, points name at it, and returns the image. The caller holds its layers.
func (s *Store) save(ctx context.Context, r record, full string, local bool) (Image, error) {
	r.Created = time.Now().UTC().Truncate(time.Second)
	var img Image
	err := s.change(ctx, func(ix *index) error {
		if old, err := s.readRecord(r.Digest); err == nil {
			r.Created = old.Created
		}
		b, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := writeFile(s.recordPath(r.Digest), b); err != nil {
			return s.local(full, err, "writing image "+familiar(full))
		}
		if full != "" {
			ix.Names[full] = indexName{Digest: r.Digest, Local: local}
		}
		img, err = s.load(*ix, familiar(full), r.Digest)
		return err
	})
	return img, err
}

func configOf(c *v1.ConfigFile) Config {
	return Config{
		Env: c.Config.Env, User: c.Config.User, WorkingDir: c.Config.WorkingDir, Labels: c.Config.Labels,
		OS: c.OS, Architecture: c.Architecture,
	}
}
