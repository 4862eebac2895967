package image

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

var accepted = strings.Join([]string{
	string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
	string(types.OCIImageIndex), string(types.DockerManifestList),
}, ", ")

// maxLayers is what one overlay can stack, less those that builds and Sandboxes add.
const maxLayers = 400

// fetcher returns a manifest ("manifests") or a config ("blobs") by digest, verified.
type fetcher func(ctx context.Context, kind, digest string) ([]byte, error)

// plan is an image that is known but whose layers needn't be here.
type plan struct {
	digest string // of the platform's manifest
	config *v1.ConfigFile
	blobs  []blob // as in the manifest, bottom first
}

type blob struct {
	diffID, digest string
	size           int64
}

// plan goes from any manifest or index to the one image for the store's platform.
func (s *Store) plan(ctx context.Context, ref string, raw []byte, mediaType string, get fetcher) (plan, error) {
	for depth := 0; ; depth++ {
		kind, ix, m, err := readManifest(ref, raw, mediaType)
		if err != nil {
			return plan{}, err
		}
		if kind == isManifest {
			return s.planManifest(ctx, ref, digestOf(raw), m, get)
		}
		if depth == 3 {
			return plan{}, fail(Unsupported, ref, nil, "image %s is an index of indexes of indexes; this can't be followed", ref)
		}
		d, err := s.choose(ref, ix.Manifests)
		if err != nil {
			return plan{}, err
		}
		if raw, err = get(ctx, "manifests", d.Digest.String()); err != nil {
			return plan{}, err
		}
		mediaType = string(d.MediaType)
	}
}

type manifestKind int

const (
	isManifest manifestKind = iota
	isIndex
)

// readManifest goes by the document's own media type, then by what the registry called it, then by its fields.
func readManifest(ref string, raw []byte, mediaType string) (manifestKind, *v1.IndexManifest, *v1.Manifest, error) {
	var head struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     types.MediaType `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
		Config        json.RawMessage `json:"config"`
	}
	broken := func(err error) error {
		return fail(Corrupt, ref, err, "what is called image %s has no readable manifest", ref)
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return 0, nil, nil, broken(err)
	}
	mt := head.MediaType
	if mt == "" {
		mt, _, _ = cutType(mediaType)
	}
	switch {
	case head.SchemaVersion == 1:
		return 0, nil, nil, fail(Unsupported, ref, nil, "image %s has a manifest of the format that Docker gave up in 2017 (schema 1); "+
			"push it again with a current tool", ref)
	case mt.IsIndex(), !mt.IsImage() && head.Config == nil && head.Manifests != nil:
		ix, err := v1.ParseIndexManifest(bytes.NewReader(raw))
		if err != nil {
			return 0, nil, nil, broken(err)
		}
		return isIndex, ix, nil, nil
	case head.Config == nil:
		return 0, nil, nil, broken(nil)
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return 0, nil, nil, broken(err)
	}
	return isManifest, nil, m, nil
}

func cutType(v string) (types.MediaType, string, bool) {
	t, rest, ok := strings.Cut(v, ";")
	return types.MediaType(strings.TrimSpace(t)), rest, ok
}

// choose picks the manifest for the store's platform.
func (s *Store) choose(ref string, list []v1.Descriptor) (v1.Descriptor, error) {
	var fit []v1.Descriptor
	var exist []string
	for _, d := range list {
		if !d.MediaType.IsImage() && !d.MediaType.IsIndex() {
			continue
		}
		p := d.Platform
		if p == nil || p.OS == "" && p.Architecture == "" {
			if len(list) == 1 {
				return d, nil
			}
			continue
		}
		if p.OS == "unknown" { // build attestations
			continue
		}
		if text := platformText(p.OS, p.Architecture, p.Variant); !slices.Contains(exist, text) {
			exist = append(exist, text)
		}
		if s.fits(p.OS, p.Architecture, p.Variant) {
			fit = append(fit, d)
		}
	}
	if len(fit) == 0 {
		return v1.Descriptor{}, s.noPlatform(ref, exist)
	}
	// A variant beyond the architecture's first may need instructions that this host lacks.
	first := map[string]bool{"": true, "v1": s.platform.Architecture == "amd64", "v8": true, "v7": true}
	best := slices.IndexFunc(fit, func(d v1.Descriptor) bool {
		return s.platform.Variant != "" && d.Platform.Variant == s.platform.Variant || s.platform.Variant == "" && first[d.Platform.Variant]
	})
	return fit[max(best, 0)], nil
}

func (s *Store) fits(os, arch, variant string) bool {
	return os == s.platform.OS && arch == s.platform.Architecture &&
		(s.platform.Variant == "" || variant == "" || variant == s.platform.Variant)
}

func platformText(os, arch, variant string) string {
	return strings.TrimSuffix(os+"/"+arch+"/"+variant, "/")
}

func (s *Store) noPlatform(ref string, exist []string) error {
	e := fail(NoPlatform, ref, nil, "image %s has %s only; this runner needs %s", ref, strings.Join(exist, ", "), s.o.Platform)
	if len(exist) == 0 {
		e.Message = "image " + ref + " has no platform that can run; this runner needs " + s.o.Platform
	}
	e.Platforms = exist
	return e
}

func (s *Store) planManifest(ctx context.Context, ref, digest string, m *v1.Manifest, get fetcher) (plan, error) {
	if mt := m.Config.MediaType; !mt.IsConfig() {
		return plan{}, fail(Unsupported, ref, nil, "%s is not a container image (its configuration is %s)", ref, mt)
	}
	for _, l := range m.Layers {
		if foreign(l) {
			return plan{}, fail(Unsupported, ref, nil, "image %s has a Windows or other foreign layer, which isn't kept in the registry; "+
				"it can't run in a Linux Sandbox", ref)
		}
		if !l.MediaType.IsLayer() && l.MediaType != "" {
			return plan{}, fail(Unsupported, ref, nil, "image %s has a layer of an unknown kind (%s)", ref, l.MediaType)
		}
		if l.Size < 0 || l.Digest.Algorithm != "sha256" {
			return plan{}, fail(Corrupt, ref, nil, "what is called image %s has no readable manifest", ref)
		}
	}
	raw, err := get(ctx, "blobs", m.Config.Digest.String())
	if err != nil {
		return plan{}, err
	}
	cfg, err := s.readConfig(ref, raw, len(m.Layers))
	if err != nil {
		return plan{}, err
	}
	p := plan{digest: digest, config: cfg}
	for i, l := range m.Layers {
		p.blobs = append(p.blobs, blob{cfg.RootFS.DiffIDs[i].String(), l.Digest.String(), l.Size})
	}
	return p, nil
}

func foreign(d v1.Descriptor) bool {
	return len(d.URLs) > 0 || d.MediaType == types.DockerForeignLayer ||
		strings.Contains(string(d.MediaType), "nondistributable") || strings.Contains(string(d.MediaType), "foreign")
}

// readConfig checks that an image's configuration fits its layers and this host.
func (s *Store) readConfig(ref string, raw []byte, layers int) (*v1.ConfigFile, error) {
	cfg, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, fail(Corrupt, ref, err, "image %s has no readable configuration", ref)
	}
	if len(cfg.RootFS.DiffIDs) != layers {
		return nil, fail(Corrupt, ref, nil, "image %s has %d layers, but its configuration names %d", ref, layers, len(cfg.RootFS.DiffIDs))
	}
	if layers > maxLayers {
		return nil, fail(Unsupported, ref, nil, "image %s has %d layers; at most %d can be stacked", ref, layers, maxLayers)
	}
	for _, d := range cfg.RootFS.DiffIDs {
		if d.Algorithm != "sha256" || len(d.Hex) != 64 || !isHex(d.Hex) {
			return nil, fail(Corrupt, ref, nil, "image %s has no readable configuration", ref)
		}
	}
	if cfg.OS == "" {
		cfg.OS = "linux"
	}
	if cfg.Architecture == "" {
		cfg.Architecture = s.platform.Architecture
	}
	if !s.fits(cfg.OS, cfg.Architecture, cfg.Variant) {
		return nil, s.noPlatform(ref, []string{platformText(cfg.OS, cfg.Architecture, cfg.Variant)})
	}
	return cfg, nil
}
