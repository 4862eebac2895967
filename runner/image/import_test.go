package image_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/claude-hub/claude-hub/runner/image"
	. "github.com/claude-hub/claude-hub/runner/image/imagetest"
)

func layoutOf(t *testing.T, images map[string]v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for n, img := range images {
		var opts []layout.Option
		if n != "" {
			opts = append(opts, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": n}))
		}
		if err := p.AppendImage(img, opts...); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tarOf packs a folder.
func tarOf(t *testing.T, dir string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func fileOf(t *testing.T, b []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func saved(t *testing.T, images map[string]v1.Image) []byte {
	t.Helper()
	refs := map[name.Reference]v1.Image{}
	for n, img := range images {
		ref, err := name.ParseReference(n)
		if err != nil {
			t.Fatal(err)
		}
		refs[ref] = img
	}
	var buf bytes.Buffer
	if err := tarball.MultiRefWrite(refs, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestImportsAnOCILayoutFolderOrTar(t *testing.T) {
	t.Parallel()
	img := Image(t, func(c *v1.ConfigFile) { c.Config.User = "1000" }, Layer(t, File("f", 0o644, "x")), Layer(t, File("g", 0o644, "y")))
	dir := layoutOf(t, map[string]v1.Image{"": img})
	for _, from := range []string{dir, fileOf(t, tarOf(t, dir))} {
		s := open(t, image.Options{})
		var last image.Progress
		got, err := s.Import(t.Context(), from, "mine:v1", func(p image.Progress) {
			if last = p; strings.Contains(p.String(), "registry") {
				t.Errorf("an import says %q", p)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest != digest(t, img) || got.Config.User != "1000" || read(t, got.Layers[1], "g") != "y" {
			t.Errorf("got %+v", got)
		}
		if last.Phase != image.PhaseDone || last.Layers != 2 {
			t.Errorf("the last progress is %+v", last)
		}
		// Local names are found without a registry.
		if again := pull(t, s, "mine:v1"); again.Digest != got.Digest {
			t.Errorf("pulling the local name gave %s", again.Digest)
		}
		if r, err := s.Resolve(t.Context(), "mine:v1"); err != nil || !r.Local || r.Digest != got.Digest {
			t.Errorf("resolved to %+v, %v", r, err)
		}
	}
}

func TestImportsWhatDockerSaveWrites(t *testing.T) {
	t.Parallel()
	img := Image(t, func(c *v1.ConfigFile) { c.Config.Env = []string{"A=b"} }, Layer(t, File("f", 0o644, "x")), Layer(t, File("g", 0o644, "y")))
	archive := saved(t, map[string]v1.Image{"team/app:v3": img})
	var digests []string
	for name, b := range map[string][]byte{"plain": archive, "gzip": gzipped(t, archive), "zstd": zstded(t, archive)} {
		s := open(t, image.Options{})
		got, err := s.Import(t.Context(), fileOf(t, b), "", nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Names[0] != "team/app:v3" || got.Config.Env[0] != "A=b" || read(t, got.Layers[0], "f") != "x" {
			t.Errorf("%s: got %+v", name, got)
		}
		digests = append(digests, got.Digest)
	}
	if digests[0] != digests[1] || digests[1] != digests[2] {
		t.Errorf("the same image got digests %v", digests)
	}
}

// Old versions of Docker give equal layers once and link to them.
func TestImportsAnArchiveWithLinkedLayers(t *testing.T) {
	t.Parallel()
	img := Image(t, nil, Layer(t, File("f", 0o644, "x")))
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	b := Tar(t, Dir("aa", 0o755), File("aa/real.tar", 0o644, string(Tar(t, File("f", 0o644, "x")))), Link("bb/layer.tar", "../aa/real.tar"),
		File("c.json", 0o644, string(config)), File("manifest.json", 0o644, `[{"Config":"c.json","RepoTags":["old:1"],"Layers":["bb/layer.tar"]}]`))
	got, err := open(t, image.Options{}).Import(t.Context(), fileOf(t, b), "", nil)
	if err != nil || read(t, got.Layers[0], "f") != "x" {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func zstded(t *testing.T, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

func TestOfSeveralImagesANamePicksOne(t *testing.T) {
	t.Parallel()
	one, two := Image(t, nil, Layer(t, File("1", 0o644, ""))), Image(t, nil, Layer(t, File("2", 0o644, "")))
	both := map[string]v1.Image{"one:a": one, "two:b": two}
	for _, from := range []string{layoutOf(t, both), fileOf(t, saved(t, both))} {
		s := open(t, image.Options{})
		got, err := s.Import(t.Context(), from, "two:b", nil)
		if err != nil || read(t, got.Layers[0], "2") != "" {
			t.Errorf("%s: %+v, %v", from, got, err)
		}
		_, err = s.Import(t.Context(), from, "", nil)
		refused(t, err, image.BadReference, "several images", "one:a", "two:b")
		_, err = s.Import(t.Context(), from, "three", nil)
		refused(t, err, image.BadReference, "several images")
	}
}

func TestAnImportedIndexGivesTheHostsPlatform(t *testing.T) {
	t.Parallel()
	arm := Image(t, func(c *v1.ConfigFile) { c.Architecture = "arm64" }, Layer(t, File("arm", 0o644, "")))
	amd := Image(t, func(c *v1.ConfigFile) { c.Architecture = "amd64" }, Layer(t, File("amd", 0o644, "")))
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendIndex(multiarch(map[string]v1.Image{"linux/arm64": arm, "linux/amd64": amd})); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, image.Options{Platform: "linux/arm64"}).Import(t.Context(), dir, "multi", nil)
	if err != nil || got.Digest != digest(t, arm) {
		t.Fatalf("got %+v, %v", got, err)
	}
	_, err = open(t, image.Options{Platform: "linux/riscv64"}).Import(t.Context(), dir, "multi", nil)
	refused(t, err, image.NoPlatform, "linux/amd64", "linux/arm64")
}

func TestWhatCannotBeImportedSaysWhy(t *testing.T) {
	t.Parallel()
	img := Image(t, nil, Layer(t, File("f", 0o644, noise(10_000))))
	layer, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	blob := func(dir string) string {
		return filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(digest(t, layer[0]), "sha256:"))
	}
	lacking, damaged, nameless := layoutOf(t, map[string]v1.Image{"": img}), layoutOf(t, map[string]v1.Image{"": img}), layoutOf(t, map[string]v1.Image{"": img})
	if err := os.Remove(blob(lacking)); err != nil {
		t.Fatal(err)
	}
	b := []byte(read(t, blob(damaged)))
	b[len(b)/2] ^= 0xff
	if err := os.WriteFile(blob(damaged), b, 0o600); err != nil {
		t.Fatal(err)
	}
	linked := layoutOf(t, map[string]v1.Image{"": img})
	if err := os.Remove(blob(linked)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(blob(nameless), blob(linked)); err != nil {
		t.Fatal(err)
	}
	s := open(t, image.Options{})
	for _, c := range []struct {
		from, name string
		code       image.Code
		words      []string
	}{
		{"/nowhere/at/all.tar", "app", image.NotFound, []string{"there is no file or folder /nowhere"}},
		{fileOf(t, []byte(strings.Repeat("no archive ", 1000))), "app", image.Corrupt, []string{"is not an image archive"}},
		{fileOf(t, nil), "app", image.Unsupported, []string{"neither an OCI layout nor a docker save"}},
		{t.TempDir(), "app", image.Unsupported, []string{"no index.json"}},
		{"/dev/null", "app", image.Unsupported, []string{"neither a file nor a folder"}},
		{nameless, "", image.BadReference, []string{"give it one"}},
		{nameless, "Bad Name", image.BadReference, []string{"not a valid image reference"}},
		{nameless, "app@sha256:" + zeros64, image.BadReference, []string{"names a digest"}},
		{lacking, "app", image.Corrupt, []string{"lacks blobs/sha256/"}},
		{damaged, "app", image.Corrupt, []string{"is damaged", "doesn't have its digest"}},
	} {
		_, err := s.Import(t.Context(), c.from, c.name, nil)
		refused(t, err, c.code, c.words...)
	}
	// A link in a layout may not lead out of it.
	if _, err := s.Import(t.Context(), linked, "app", nil); err == nil {
		t.Error("a layer was read from outside the layout")
	}
	if all, err := s.List(); err != nil || len(all) != 0 {
		t.Errorf("the store has %v, %v", all, err)
	}
}

func TestAnImportReplacesWhatALocalNameMeant(t *testing.T) {
	t.Parallel()
	s := open(t, image.Options{})
	for i := range 2 {
		img := Image(t, nil, Layer(t, File("f", 0o644, fmt.Sprint(i))))
		got, err := s.Import(t.Context(), layoutOf(t, map[string]v1.Image{"": img}), "mine", nil)
		if err != nil || read(t, got.Layers[0], "f") != fmt.Sprint(i) {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
}
