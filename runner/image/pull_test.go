package image_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/image"
	. "github.com/claude-hub/claude-hub/runner/image/imagetest"
)

func TestPullByTagGivesLayersAndConfig(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	pushed := Busybox(t, func(c *v1.ConfigFile) {
		c.Config.User, c.Config.WorkingDir = "coder", "/home/coder"
		c.Config.Env = append(c.Config.Env, "LANG=C.UTF-8")
		c.Config.Entrypoint = []string{"/bin/false"}
	}, File("etc/extra", 0o600, "more"))
	ref := Push(t, host, "team/app:v1", pushed)
	s := open(t, image.Options{})
	img := pull(t, s, ref)
	if img.Digest != digest(t, pushed) || !slices.Equal(img.Names, []string{ref}) || len(img.Layers) != 2 {
		t.Fatalf("got %+v", img)
	}
	if c := img.Config; c.User != "coder" || c.WorkingDir != "/home/coder" || !slices.Contains(c.Env, "LANG=C.UTF-8") || c.OS != "linux" {
		t.Fatalf("got config %+v", c)
	}
	if read(t, img.Layers[1], "etc/extra") != "more" {
		t.Error("the upper layer lacks its file")
	}
	if st := stat(t, img.Layers[0], "tmp"); st.Mode&0o7777 != 0o1777 {
		t.Errorf("/tmp has mode %o", st.Mode&0o7777)
	}
	if st := stat(t, img.Layers[0], "home/coder"); st.Uid != 1000 || st.Gid != 1000 {
		t.Errorf("the home belongs to %d:%d", st.Uid, st.Gid)
	}
	again, err := s.Get(ref)
	if err != nil || !slices.Equal(again.Layers, img.Layers) {
		t.Fatalf("got %+v, %v from the store", again, err)
	}
	if left := names(t, filepath.Dir(filepath.Dir(filepath.Dir(img.Layers[0]))), "blobs"); len(left) != 0 {
		t.Errorf("blobs are left: %v", left)
	}
}

func stat(t *testing.T, parts ...string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(parts...), &st); err != nil {
		t.Fatalf("%s: %v", filepath.Join(parts...), err)
	}
	return st
}

func TestPullByDigestNeedsNoRegistryOnceItIsHere(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	pushed := Image(t, nil, Layer(t, File("a", 0o644, "a")))
	Push(t, host, "app", pushed)
	pinned := host + "/app@" + digest(t, pushed)
	s := open(t, image.Options{})
	first := pull(t, s, pinned)
	q.set(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusTeapot); return true })
	for _, ref := range []string{pinned, digest(t, pushed)} {
		if again := pull(t, s, ref); again.Digest != first.Digest {
			t.Errorf("%s gave %s", ref, again.Digest)
		}
		if r, err := s.Resolve(t.Context(), ref); err != nil || !r.Local || r.Digest != first.Digest {
			t.Errorf("%s resolved to %+v, %v", ref, r, err)
		}
	}
	if n := q.count("GET", "/"); n != 0 {
		t.Errorf("the registry was asked %d times", n)
	}
}

func TestPullFollowsATagThatMoves(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	one := Image(t, nil, Layer(t, File("a", 0o644, "1")))
	two := Image(t, nil, Layer(t, File("a", 0o644, "2")))
	s := open(t, image.Options{})
	ref := Push(t, host, "app:latest", one)
	pull(t, s, ref)
	Push(t, host, "app:latest", two)
	r, err := s.Resolve(t.Context(), ref)
	if err != nil || r.Digest != digest(t, two) || r.Local {
		t.Fatalf("resolved to %+v, %v", r, err)
	}
	if img := pull(t, s, ref); read(t, img.Layers[0], "a") != "2" {
		t.Error("the old image was given")
	}
	all, err := s.List()
	if err != nil || len(all) != 2 || len(all[1].Names) != 0 {
		t.Fatalf("got %+v, %v", all, err)
	}
	if gone, err := s.Prune(t.Context(), nil); err != nil || !slices.Equal(gone, []string{digest(t, one)}) {
		t.Fatalf("pruned %v, %v", gone, err)
	}
}

func TestPullTakesTheHostsPlatformFromAnIndex(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	arm := Image(t, func(c *v1.ConfigFile) { c.Architecture = "arm64" }, Layer(t, File("arm", 0o644, "")))
	amd := Image(t, func(c *v1.ConfigFile) { c.Architecture = "amd64" }, Layer(t, File("amd", 0o644, "")))
	index := multiarch(map[string]v1.Image{"linux/arm64/v8": arm, "linux/amd64": amd, "unknown/unknown": Image(t, nil, Layer(t))})
	ref := Push(t, host, "multi", index)
	for platform, want := range map[string]v1.Image{"linux/amd64": amd, "linux/arm64": arm} {
		img := pull(t, open(t, image.Options{Platform: platform}), host+"/multi@"+digest(t, index))
		if img.Digest != digest(t, want) {
			t.Errorf("%s got another image", platform)
		}
	}
	_, err := open(t, image.Options{Platform: "linux/s390x"}).Pull(t.Context(), ref, nil)
	refused(t, err, image.NoPlatform, "linux/amd64", "linux/arm64/v8", "needs linux/s390x")
	if strings.Contains(err.Error(), "unknown") {
		t.Errorf("attestations are offered as a platform: %v", err)
	}
	single := Push(t, host, "single", arm)
	_, err = open(t, image.Options{Platform: "linux/amd64"}).Pull(t.Context(), single, nil)
	refused(t, err, image.NoPlatform, "has linux/arm64 only", "needs linux/amd64")
}

func TestWhatCannotBePulledSaysWhy(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	Push(t, host, "app:v1", Image(t, nil, Layer(t)))
	closed := Registry(t, BasicAuth("u", "p"))
	s := open(t, image.Options{Keychain: authn.NewMultiKeychain(), Tries: 1})
	for ref, want := range map[string]struct {
		code  image.Code
		words []string
	}{
		"Not A Ref":                     {image.BadReference, []string{"Not A Ref", "not a valid image reference"}},
		"":                              {image.BadReference, nil},
		host + "/nothing":               {image.NotFound, []string{host, "has no image nothing"}},
		host + "/app:v2":                {image.NoTag, []string{"has no tag v2", host}},
		host + "/app@sha256:" + zeros64: {image.NoTag, []string{"has no digest sha256:000"}},
		closed + "/app:v1":              {image.NoAccess, []string{closed, "docker login " + closed, "Docker config"}},
		"127.0.0.1:1/app":               {image.Unreachable, []string{"127.0.0.1:1", "refuses connections"}},
		"registry.invalid/app":          {image.Unreachable, []string{"registry.invalid", "can't be resolved"}},
	} {
		_, err := s.Pull(t.Context(), ref, nil)
		refused(t, err, want.code, want.words...)
		_, err = s.Resolve(t.Context(), ref)
		refused(t, err, want.code)
	}
	status := func(code int, header ...string) {
		q.set(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "manifests") {
				return false
			}
			if len(header) > 0 {
				w.Header().Set(header[0], header[1])
			}
			w.WriteHeader(code)
			return true
		})
	}
	status(http.StatusTooManyRequests, "Retry-After", "77")
	_, err := s.Pull(t.Context(), host+"/app:v1", nil)
	refused(t, err, image.RateLimited, "in 77 s", "docker login")
	status(http.StatusForbidden)
	_, err = s.Pull(t.Context(), host+"/app:v1", nil)
	refused(t, err, image.NoAccess, "HTTP 403")
	status(http.StatusServiceUnavailable)
	_, err = s.Pull(t.Context(), host+"/app:v1", nil)
	refused(t, err, image.Unreachable, "HTTP 503", "try again later")
}

const zeros64 = "0000000000000000000000000000000000000000000000000000000000000000"

func TestPullTriesAgainWhenARegistryIsDownForAMoment(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	ref := Push(t, host, "app", Image(t, nil, Layer(t)))
	var n int
	var mu sync.Mutex
	q.set(func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if n++; n > 2 {
			return false
		}
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	pull(t, open(t, image.Options{}), ref)
}

type keychain map[string]authn.AuthConfig

func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if c, ok := k[r.RegistryStr()]; ok {
		return authn.FromConfig(c), nil
	}
	return authn.Anonymous, nil
}

func TestPullWithCredentials(t *testing.T) {
	t.Parallel()
	host := Registry(t, BasicAuth("robot", "pass"))
	ref := Push(t, host, "private", Image(t, nil, Layer(t, File("a", 0o644, ""))), &authn.Basic{Username: "robot", Password: "pass"})
	pull(t, open(t, image.Options{Keychain: keychain{host: {Username: "robot", Password: "pass"}}}), ref)
	_, err := open(t, image.Options{Keychain: keychain{host: {Username: "robot", Password: "old"}}}).Pull(t.Context(), ref, nil)
	refused(t, err, image.NoAccess, "with the credentials of this user's Docker config", "HTTP 401")
	if strings.Contains(err.Error(), "old") {
		t.Error("the password is in the message")
	}
}

func TestCredentialsComeFromTheDockerConfig(t *testing.T) { // sets the environment, so not parallel
	host := Registry(t, BasicAuth("robot", "pass"))
	ref := Push(t, host, "private", Image(t, nil, Layer(t)), &authn.Basic{Username: "robot", Password: "pass"})
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	config := fmt.Sprintf(`{"auths":{%q:{"username":"robot","password":"pass"}}}`, host)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	pull(t, open(t, image.Options{}), ref)
}

func TestMirrorsAreAskedFirstAndPassedOverWhenTheyFail(t *testing.T) {
	t.Parallel()
	var mirrorAsked, originAsked requests
	origin, mirror := Registry(t, originAsked.wrap), Registry(t, mirrorAsked.wrap)
	pushed := Image(t, nil, Layer(t, File("a", 0o644, "a")))
	Push(t, mirror, "hub/team/app", pushed)
	Push(t, origin, "team/app", pushed)
	ref := origin + "/team/app"
	o := image.Options{Mirrors: map[string][]string{origin: {"127.0.0.1:1", "http://" + mirror + "/hub/"}}, Tries: 1}

	originAsked.set(nil)
	pull(t, open(t, o), ref)
	if n := originAsked.count("GET", "/"); n != 0 {
		t.Errorf("the registry was asked %d times though a mirror has the image", n)
	}
	// A mirror that has the manifest but not the layer.
	mirrorAsked.set(func(w http.ResponseWriter, r *http.Request) bool {
		if layer, _ := pushed.Layers(); strings.Contains(r.URL.Path, digest(t, layer[0])) {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	})
	pull(t, open(t, o), ref)
	if originAsked.count("GET", "/blobs/") == 0 {
		t.Error("the registry wasn't asked for the layer that the mirror lacks")
	}
	_, err := open(t, o).Pull(t.Context(), origin+"/team/none", nil)
	refused(t, err, image.NotFound, origin)
}

func TestMirrorsOfDockerHubAreFoundByItsUsualName(t *testing.T) {
	t.Parallel()
	mirror := Registry(t)
	Push(t, mirror, "library/debian:bookworm", Image(t, nil, Layer(t)))
	s := open(t, image.Options{Mirrors: map[string][]string{"docker.io": {mirror}}})
	if img := pull(t, s, "debian:bookworm"); !slices.Equal(img.Names, []string{"debian:bookworm"}) {
		t.Errorf("got names %v", img.Names)
	}
}

func TestPlainHTTPOnlyWhereItIsAllowed(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	_, port, _ := strings.Cut(host, ":")
	Push(t, host, "app", Image(t, nil, Layer(t)))
	// The name isn't loopback's, so that it stands for a registry elsewhere; the connection goes to the test's own.
	transport := &http.Transport{Proxy: nil, DialContext: dialTo(host)}
	ref := "10.9.8.7:" + port + "/app"
	_, err := open(t, image.Options{Transport: transport, Tries: 1}).Pull(t.Context(), ref, nil)
	refused(t, err, image.Unreachable, "plain HTTP", "plain-HTTP registries")
	pull(t, open(t, image.Options{Transport: transport, PlainHTTP: []string{"10.9.8.7:" + port}}), ref)
}

func TestAPinnedDigestIsVerified(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	pushed := Image(t, nil, Layer(t, File("a", 0o644, "a")))
	Push(t, host, "app", pushed)
	other, err := Image(t, nil, Layer(t, File("a", 0o644, "evil"))).RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	q.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		w.Header().Set("Content-Type", string(types.DockerManifestSchema2))
		_, _ = w.Write(other)
		return true
	})
	_, err = open(t, image.Options{}).Pull(t.Context(), host+"/app@"+digest(t, pushed), nil)
	refused(t, err, image.Corrupt, "doesn't have its digest "+digest(t, pushed))
}

func TestLayersOfEveryCompression(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	plain := Tar(t, File("zstd", 0o644, strings.Repeat("z", 100_000)))
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	none := Tar(t, File("none", 0o644, "n"))
	img, err := mutate.Append(Image(t, nil, Layer(t, File("gzip", 0o644, "g"))),
		mutate.Addendum{Layer: stored{static.NewLayer(enc.EncodeAll(plain, nil), types.OCILayerZStd), plain}},
		// Called gzip, as some tools do, but plain.
		mutate.Addendum{Layer: stored{static.NewLayer(none, types.OCILayer), none}})
	if err != nil {
		t.Fatal(err)
	}
	got := pull(t, open(t, image.Options{}), Push(t, host, "mixed", img))
	for i, f := range []string{"gzip", "zstd", "none"} {
		if read(t, got.Layers[i], f) == "" {
			t.Errorf("the %s layer is empty", f)
		}
	}
}

// stored is a layer whose blob and archive are both given.
type stored struct {
	v1.Layer
	archive []byte
}

func (s stored) DiffID() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(s.archive))
	return h, err
}

func TestImagesThatCannotRunAreRefused(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	s := open(t, image.Options{})
	windows := Image(t, func(c *v1.ConfigFile) { c.OS = "windows" }, Layer(t))
	_, err := s.Pull(t.Context(), Push(t, host, "windows", windows), nil)
	refused(t, err, image.NoPlatform, "windows/")

	foreign, err := mutate.Append(Image(t, nil, Layer(t)), mutate.Addendum{
		Layer: Layer(t, File("x", 0o644, "")), MediaType: types.DockerForeignLayer, URLs: []string{"https://elsewhere.invalid/x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Pull(t.Context(), Push(t, host, "foreign", foreign), nil)
	refused(t, err, image.Unsupported, "foreign layer", "Linux Sandbox")

	chart := mutate.ConfigMediaType(Image(t, nil, Layer(t)), "application/vnd.cncf.helm.config.v1+json")
	_, err = s.Pull(t.Context(), Push(t, host, "chart", chart), nil)
	refused(t, err, image.Unsupported, "not a container image", "helm")
}

func TestTheSameLayerTwiceIsOneFolderOnTop(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	a, b := Layer(t, File("f", 0o644, "a")), Layer(t, File("f", 0o644, "b"))
	img := pull(t, open(t, image.Options{}), Push(t, host, "twice", Image(t, nil, a, b, a)))
	if len(img.Layers) != 2 || read(t, img.Layers[0], "f") != "b" || read(t, img.Layers[1], "f") != "a" {
		t.Fatalf("got layers %v", img.Layers)
	}
}

func TestConcurrentPullsDoTheWorkOnce(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	shared := Layer(t, File("shared", 0o644, noise(1<<20)))
	one := Push(t, host, "one", Image(t, nil, shared, Layer(t, File("1", 0o644, "1"))))
	two := Push(t, host, "two", Image(t, nil, shared, Layer(t, File("2", 0o644, "2"))))
	dir := t.TempDir()
	q.set(nil)
	var wg sync.WaitGroup
	for i := range 8 {
		s := openAt(t, dir, image.Options{Parallel: 1}) // as if each were a process
		wg.Go(func() {
			if _, err := s.Pull(t.Context(), []string{one, two}[i%2], nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := q.count("GET", "/blobs/"+digest(t, shared)); n != 1 {
		t.Errorf("the shared layer was fetched %d times", n)
	}
	all, err := openAt(t, dir, image.Options{}).List()
	if err != nil || len(all) != 2 || all[0].Layers[0] != all[1].Layers[0] {
		t.Fatalf("got %+v, %v", all, err)
	}
}

// noise doesn't compress; the same each time.
func noise(n int) string {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b)
	return string(b)
}

func TestProgressIsOneTotalAndAtMostTwiceASecond(t *testing.T) {
	t.Parallel()
	var q requests
	host := Registry(t, q.wrap)
	ref := Push(t, host, "slow", Image(t, nil, Layer(t, File("a", 0o644, noise(300<<10))), Layer(t, File("b", 0o644, noise(200<<10)))))
	release := make(chan struct{})
	q.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		return false
	})
	time.AfterFunc(1200*time.Millisecond, func() { close(release) })
	var got []image.Progress
	var at []time.Time
	s := open(t, image.Options{})
	if _, err := s.Pull(t.Context(), ref, func(p image.Progress) { got, at = append(got, p), append(at, time.Now()) }); err != nil {
		t.Fatal(err)
	}
	last := got[len(got)-1]
	if last.Phase != image.PhaseDone || last.Layers != 2 || last.TotalLayers != 2 || !last.TotalKnown || last.Bytes != last.TotalBytes || last.Bytes < 500<<10 {
		t.Fatalf("the last progress is %+v (%s)", last, last)
	}
	for i := 1; i < len(at)-1; i++ {
		if at[i].Sub(at[i-1]) < 300*time.Millisecond {
			t.Errorf("reports %d and %d are only %v apart", i-1, i, at[i].Sub(at[i-1]))
		}
	}
	if got[0].Phase != image.PhaseResolve || len(got) < 3 {
		t.Errorf("got %+v", got)
	}
	var cached image.Progress
	if _, err := s.Pull(t.Context(), ref, func(p image.Progress) { cached = p }); err != nil {
		t.Fatal(err)
	}
	if cached.String() != "2/2 layers, all already here" {
		t.Errorf("a pull of what is here says %q", cached)
	}
}

func TestProgressReadsWell(t *testing.T) {
	t.Parallel()
	p := image.Progress{Phase: image.PhaseDownload, Bytes: 412e6, TotalBytes: 1240e6, Layers: 7, TotalLayers: 11, Rate: 38e6}
	if got := p.String(); got != "412 of ≥ 1,240 MB · 7/11 layers · 38 MB/s" {
		t.Errorf("got %q", got)
	}
}

func TestTheStoreIsClosedToOtherUsersOfTheHost(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	openAt(t, dir, image.Options{})
	for _, d := range []string{"", "layers", "blobs"} {
		if st := stat(t, dir, d); st.Mode&0o077 != 0 {
			t.Errorf("%q has mode %o: setuid files of images could be run there", d, st.Mode&0o7777)
		}
	}
}

func TestReferencesMeanWhatTheyMeanToDocker(t *testing.T) {
	t.Parallel()
	ref, err := name.ParseReference("debian")
	if err != nil || ref.Name() != "index.docker.io/library/debian:latest" {
		t.Fatalf("got %v, %v", ref, err)
	}
	mirror := Registry(t)
	Push(t, mirror, "library/debian:latest", Image(t, nil, Layer(t)))
	s := open(t, image.Options{Mirrors: map[string][]string{"index.docker.io": {mirror}}})
	pull(t, s, "docker.io/library/debian")
	for _, same := range []string{"debian", "debian:latest", "index.docker.io/library/debian"} {
		if _, err := s.Get(same); err != nil {
			t.Errorf("%s: %v", same, err)
		}
	}
}
