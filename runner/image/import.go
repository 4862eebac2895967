package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Import brings an image from a file into the store: an OCI layout (folder or tar) or what `docker save` and `podman
// save` write, also compressed. It becomes a local name: no registry is asked for it until it is removed. An empty name
// means the one that the archive gives; of an archive with several images, name picks one. progress is as in Pull.
func (s *Store) Import(ctx context.Context, file, name string, progress func(Progress)) (img Image, err error) {
	t := track(progress, true)
	defer func() { t.end(err == nil) }()
	full := ""
	if name != "" {
		if full, err = localName(name); err != nil {
			return Image{}, err
		}
	}
	f, err := s.openFiles(file)
	if err != nil {
		return Image{}, err
	}
	defer f.close()
	im := &importer{s: s, f: f, file: file, full: full}
	p, err := im.plan(ctx)
	if err != nil {
		return Image{}, err
	}
	if im.full == "" {
		return Image{}, fail(BadReference, file, nil, "the image in %s has no name; give it one", file)
	}
	b := s.newBudget(file)
	return s.assemble(ctx, file, im.full, true, p, t, b, func(bl blob) makeLayer { return im.layer(bl, b, t) })
}

// localName reads the name of an image that is made here: a tag, not a digest.
func localName(name string) (string, error) {
	r, err := parse(name)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(r.Identifier(), "sha256:") {
		return "", fail(BadReference, name, nil, "%s names a digest; an image that is made here gets a name like my-image or my-image:v1", name)
	}
	return r.Name(), nil
}

type importer struct {
	s      *Store
	f      files
	file   string
	full   string            // the wanted name, or the archive's
	member map[string]string // docker save: the file of each layer
}

func (im *importer) plan(ctx context.Context) (plan, error) {
	if raw, err := readSmall(im.f, "index.json"); err == nil {
		return im.layout(ctx, raw)
	}
	raw, err := readSmall(im.f, "manifest.json")
	if err != nil {
		return plan{}, fail(Unsupported, im.file, err, "%s is neither an OCI layout nor a docker save archive: it has no index.json and no "+
			"manifest.json", im.file)
	}
	return im.saved(raw)
}

// layout reads an OCI layout. Several manifests there are platforms of one image, or several images with names.
func (im *importer) layout(ctx context.Context, raw []byte) (plan, error) {
	ix, err := v1.ParseIndexManifest(strings.NewReader(string(raw)))
	if err != nil {
		return plan{}, fail(Corrupt, im.file, err, "the index.json in %s can't be read: %v", im.file, err)
	}
	list := slices.DeleteFunc(ix.Manifests, func(d v1.Descriptor) bool { return !d.MediaType.IsImage() && !d.MediaType.IsIndex() })
	if len(list) == 0 {
		return plan{}, fail(NotFound, im.file, nil, "there is no image in %s", im.file)
	}
	names := make([]string, len(list)) // full names
	for i, d := range list {
		names[i] = layoutName(d)
	}
	var d v1.Descriptor
	i := slices.IndexFunc(names, func(n string) bool { return n != "" && n == im.full })
	switch {
	case i >= 0:
	case len(list) == 1:
		i = 0
	default:
		return im.several(ctx, list, names)
	}
	d = list[i]
	if im.full == "" {
		im.full = names[i]
	}
	return im.follow(ctx, d)
}

func (im *importer) several(ctx context.Context, list []v1.Descriptor, names []string) (plan, error) {
	for i := range list {
		if names[i] != names[0] || list[i].Platform == nil {
			return plan{}, im.whichOne(names)
		}
	}
	d, err := im.s.choose(im.file, list)
	if err != nil {
		return plan{}, err
	}
	if im.full == "" {
		im.full = names[0]
	}
	return im.follow(ctx, d)
}

func (im *importer) whichOne(names []string) error {
	var short []string
	for _, n := range names {
		if n != "" && !slices.Contains(short, familiar(n)) {
			short = append(short, familiar(n))
		}
	}
	if len(short) == 0 {
		return fail(BadReference, im.file, nil, "%s holds several images without names; write an archive with one", im.file)
	}
	return fail(BadReference, im.file, nil, "%s holds several images; name the one you want: %s", im.file, strings.Join(short, ", "))
}

// layoutName is the full name in an annotation, if it is one: containerd's has a whole name, OCI's often just a tag.
func layoutName(d v1.Descriptor) string {
	for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
		if v := d.Annotations[key]; strings.ContainsAny(v, ":/") {
			if full, err := localName(v); err == nil {
				return full
			}
		}
	}
	return ""
}

func blobName(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

func (im *importer) follow(ctx context.Context, d v1.Descriptor) (plan, error) {
	get := func(_ context.Context, _, digest string) ([]byte, error) {
		b, err := readSmall(im.f, blobName(digest))
		if err != nil {
			return nil, fail(Corrupt, im.file, err, "%s is not whole: it lacks %s", im.file, blobName(digest))
		}
		if digestOf(b) != digest {
			return nil, fail(Corrupt, im.file, nil, "%s is damaged: %s doesn't have its digest", im.file, blobName(digest))
		}
		return b, nil
	}
	raw, err := get(ctx, "manifests", d.Digest.String())
	if err != nil {
		return plan{}, err
	}
	return im.s.plan(ctx, im.file, raw, string(d.MediaType), get)
}

// saved reads a docker save archive. It has no manifest with a digest, so one is made of what it has.
func (im *importer) saved(raw []byte) (plan, error) {
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return plan{}, fail(Corrupt, im.file, err, "the manifest.json in %s can't be read: %v", im.file, err)
	}
	var names []string
	found := -1
	for i, m := range list {
		for _, tag := range m.RepoTags {
			full, err := localName(tag)
			if err != nil {
				continue
			}
			names = append(names, full)
			if full == im.full {
				found = i
			}
		}
	}
	switch {
	case len(list) == 0:
		return plan{}, fail(NotFound, im.file, nil, "there is no image in %s", im.file)
	case found >= 0:
	case len(list) > 1:
		return plan{}, im.whichOne(names)
	default:
		found = 0
		if im.full == "" && len(names) > 0 {
			im.full = names[0]
		}
	}
	m := list[found]
	rawConfig, err := readSmall(im.f, m.Config)
	if err != nil {
		return plan{}, fail(Corrupt, im.file, err, "%s is not whole: it lacks %s", im.file, m.Config)
	}
	cfg, err := im.s.readConfig(im.file, rawConfig, len(m.Layers))
	if err != nil {
		return plan{}, err
	}
	p := plan{config: cfg}
	var layers []v1.Descriptor
	im.member = map[string]string{}
	for i, l := range m.Layers {
		r, size, err := im.f.open(l)
		if err != nil {
			return plan{}, fail(Corrupt, im.file, err, "%s is not whole: it lacks %s", im.file, path.Clean(l))
		}
		_ = r.Close()
		d := cfg.RootFS.DiffIDs[i]
		im.member[d.String()] = l
		layers = append(layers, v1.Descriptor{MediaType: types.OCIUncompressedLayer, Digest: d, Size: size})
		p.blobs = append(p.blobs, blob{diffID: d.String(), size: size})
	}
	p.digest = madeDigest(rawConfig, layers)
	return p, nil
}

// madeDigest is the digest of the manifest that an image without one would have.
func madeDigest(rawConfig []byte, layers []v1.Descriptor) string {
	b, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: layers, Config: v1.Descriptor{
		MediaType: types.OCIConfigJSON, Size: int64(len(rawConfig)), Digest: hashOf(digestOf(rawConfig)),
	}})
	if err != nil {
		panic(err) // a manifest of strings and numbers
	}
	return digestOf(b)
}

func hashOf(digest string) v1.Hash {
	algorithm, hex, _ := strings.Cut(digest, ":")
	return v1.Hash{Algorithm: algorithm, Hex: hex}
}

func (im *importer) layer(bl blob, b *budget, t *tracker) makeLayer {
	return func(ctx context.Context, root string) (layerMeta, error) {
		done, err := im.s.slot(ctx)
		if err != nil {
			return layerMeta{}, err
		}
		defer done()
		t.fetching.Add(-1)
		name := im.member[bl.diffID]
		if name == "" {
			name = blobName(bl.digest)
		}
		r, size, err := im.f.open(name)
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				err = fail(Corrupt, im.file, err, "%s is not whole: it lacks %s", im.file, name)
			}
			return layerMeta{}, err
		}
		defer r.Close()
		damaged := fail(Corrupt, im.file, nil, "%s is damaged: %s doesn't have its digest", im.file, name)
		if size != bl.size {
			return layerMeta{}, damaged
		}
		v := &verified{r: r, sum: sha256.New()}
		meta, err := im.s.unpackBlob(v, bl.diffID, b, t)(ctx, root)
		if bl.digest == "" || CodeOf(err) == TooLarge {
			return meta, err
		}
		if err == nil || CodeOf(err) == Corrupt {
			if _, e := io.Copy(io.Discard, v); e != nil {
				return meta, e
			}
			if "sha256:"+hex.EncodeToString(v.sum.Sum(nil)) != bl.digest {
				return meta, damaged
			}
		}
		return meta, err
	}
}

// verified hashes what is read through it.
type verified struct {
	r   io.Reader
	sum hash.Hash
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	return n, err
}
