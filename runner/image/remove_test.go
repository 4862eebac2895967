package image_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/claude-hub/claude-hub/runner/image"
	. "github.com/claude-hub/claude-hub/runner/image/imagetest"
)

func TestRemovingAnImageKeepsLayersThatOthersHave(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	shared := Layer(t, File("shared", 0o644, "s"))
	s := open(t, image.Options{})
	one := pull(t, s, Push(t, host, "one", Image(t, nil, shared, Layer(t, File("1", 0o644, "1")))))
	two := pull(t, s, Push(t, host, "two", Image(t, nil, shared, Layer(t, File("2", 0o644, "2")))))
	if err := s.Remove(t.Context(), host+"/one", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(host + "/one"); image.CodeOf(err) != image.NotFound {
		t.Errorf("the removed image is still there: %v", err)
	}
	if _, err := os.Stat(one.Layers[1]); err == nil {
		t.Error("the removed image's own layer is still there")
	}
	if got, err := s.Get(host + "/two"); err != nil || read(t, got.Layers[0], "shared") != "s" {
		t.Errorf("the other image is broken: %v", err)
	}
	if err := s.Remove(t.Context(), strings.TrimPrefix(two.Digest, "sha256:")[:12], nil); err != nil {
		t.Errorf("removing by the beginning of the digest: %v", err)
	}
	dir := filepath.Dir(filepath.Dir(two.Layers[0]))
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("layers left: %v", left)
	}
}

func TestAnImageInUseIsNotRemoved(t *testing.T) {
	t.Parallel()
	s := open(t, image.Options{})
	host := Registry(t)
	ref := Push(t, host, "app", Image(t, nil, Layer(t, File("f", 0o644, "f"))))
	img := pull(t, s, ref)
	err := s.Remove(t.Context(), ref, func(dir string) bool { return dir == img.Layers[0] })
	refused(t, err, image.InUse, "in use by a Sandbox")

	if err := s.Hold(t.Context(), "build b1", img.Digest); err != nil {
		t.Fatal(err)
	}
	refused(t, s.Remove(t.Context(), ref, nil), image.InUse, "in use by build b1")
	// Another process sees the hold too.
	dir := filepath.Dir(filepath.Dir(filepath.Dir(img.Layers[0])))
	other := openAt(t, dir, image.Options{})
	refused(t, other.Remove(t.Context(), ref, nil), image.InUse, "build b1")
	if got, err := s.Get(ref); err != nil || read(t, got.Layers[0], "f") != "f" {
		t.Fatalf("a refused removal changed the image: %v", err)
	}
	if err := s.Release(t.Context(), "build b1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	refused(t, s.Hold(t.Context(), "build b2", img.Digest), image.NotFound)
}

func TestRemovingOneOfTwoNamesKeepsTheImage(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	img := Image(t, nil, Layer(t, File("f", 0o644, "f")))
	s := open(t, image.Options{})
	for _, n := range []string{"app:1", "app:2"} {
		pull(t, s, Push(t, host, n, img))
	}
	if err := s.Hold(t.Context(), "session", host+"/app:1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), host+"/app:1", nil); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(host + "/app:2")
	if err != nil || !slices.Equal(got.Names, []string{host + "/app:2"}) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestPruneSparesWhatIsNamedHeldOrInUse(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	s := open(t, image.Options{})
	var got []image.Image
	for _, body := range []string{"held", "used", "old", "named"} {
		got = append(got, pull(t, s, Push(t, host, "app", Image(t, nil, Layer(t, File("f", 0o644, body))))))
	}
	if err := s.Hold(t.Context(), "build", got[0].Digest); err != nil {
		t.Fatal(err)
	}
	gone, err := s.Prune(t.Context(), func(dir string) bool { return dir == got[1].Layers[0] })
	if err != nil || !slices.Equal(gone, []string{got[2].Digest}) {
		t.Fatalf("pruned %v, %v", gone, err)
	}
	for i, kept := range []bool{true, true, false, true} {
		if _, err := os.Stat(got[i].Layers[0]); (err == nil) != kept {
			t.Errorf("image %d: %v", i, err)
		}
	}
}

func TestRemoveAndPullAtOnceNeverGiveAnImageWithoutItsLayers(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	ref := Push(t, host, "app", Image(t, nil, Layer(t, File("a", 0o644, "a")), Layer(t, File("b", 0o644, "b"))))
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 3 {
		s := openAt(t, dir, image.Options{})
		wg.Go(func() {
			for range 15 {
				if _, err := s.Pull(t.Context(), ref, nil); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 15 {
				if err := s.Remove(t.Context(), ref, nil); err != nil && image.CodeOf(err) != image.NotFound {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if img := pull(t, openAt(t, dir, image.Options{}), ref); read(t, img.Layers[0], "a")+read(t, img.Layers[1], "b") != "ab" {
		t.Error("the image isn't whole")
	}
}

func TestUnknownImagesAreSaidToBeUnknown(t *testing.T) {
	t.Parallel()
	s := open(t, image.Options{})
	for _, ref := range []string{"nothing", "nothing:v1", "sha256:" + zeros64, "0123456789ab"} {
		refused(t, s.Remove(t.Context(), ref, nil), image.NotFound, "there is no image "+ref+" on this host")
		_, err := s.Get(ref)
		refused(t, err, image.NotFound)
	}
}

func TestOpenClearsWhatAKilledProcessLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	openAt(t, dir, image.Options{})
	for _, left := range []string{"tmp-" + zeros64, "trash-" + zeros64, "tmp-boot-X"} {
		if err := os.MkdirAll(filepath.Join(dir, "layers", left, "fs", "d"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	openAt(t, dir, image.Options{})
	if got := names(t, dir, "layers"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestLayersOfAMountedOverlayAreKnownToBeInUse(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	s := open(t, image.Options{})
	ref := Push(t, host, "app", Image(t, nil, Layer(t, File("f", 0o644, noise(777)))))
	img := pull(t, s, ref)
	before, err := image.Mounted()
	if err != nil || before(img.Layers[0]) {
		t.Fatalf("a layer that isn't mounted is in use, or %v", err)
	}
	mount(t, img.Layers)
	mounted, err := image.Mounted()
	if err != nil {
		t.Fatal(err)
	}
	refused(t, s.Remove(t.Context(), ref, mounted), image.InUse, "in use by a Sandbox")
}
