package image_test

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/image"
	. "github.com/claude-hub/claude-hub/runner/image/imagetest"
)

func header(typ byte, name, link string) Entry {
	return Entry{Header: tar.Header{Typeflag: typ, Name: name, Linkname: link}}
}

// pullLayers pushes and pulls an image of layers of entries.
func pullLayers(t *testing.T, layers ...[]Entry) (image.Image, error) {
	t.Helper()
	var all []v1.Layer
	for _, l := range layers {
		all = append(all, Layer(t, l...))
	}
	return open(t, image.Options{}).Pull(t.Context(), Push(t, Registry(t), "app", Image(t, nil, all...)), nil)
}

func layers(t *testing.T, all ...[]Entry) []string {
	t.Helper()
	img, err := pullLayers(t, all...)
	if err != nil {
		t.Fatalf("%v (%v)", err, unwrapped(err))
	}
	return img.Layers
}

func TestMaliciousLayersWriteNothingOutsideTheirFolder(t *testing.T) {
	t.Parallel()
	for name, entries := range map[string]func(victim string) []Entry{
		"absolute path": func(v string) []Entry { return []Entry{File(v+"/new", 0o644, "evil")} },
		"path with ..":  func(v string) []Entry { return []Entry{File(strings.Repeat("../", 40)+v[1:]+"/new", 0o644, "evil")} },
		".. in the middle": func(v string) []Entry {
			return []Entry{Dir("a", 0o755), File("a/../../../../../../../../../../"+v[1:]+"/new", 0o644, "evil")}
		},
		"through a link to the folder": func(v string) []Entry {
			return []Entry{Link("out", v), File("out/new", 0o644, "evil"), File("out/kept", 0o644, "evil")}
		},
		"through a relative link": func(v string) []Entry {
			return []Entry{Link("out", strings.Repeat("../", 40)+v[1:]), File("out/new", 0o644, "evil")}
		},
		"over a link to the file": func(v string) []Entry { return []Entry{Link("f", v+"/kept"), File("f", 0o777, "evil")} },
		"link replaced by a folder": func(v string) []Entry {
			return []Entry{Link("out", v), header(tar.TypeDir, "out/", ""), File("out/new", 0o644, "evil")}
		},
		"hard link to a host file": func(v string) []Entry {
			return []Entry{header(tar.TypeLink, "f", v+"/kept"), File("f", 0o777, "evil")}
		},
		"hard link with ..": func(v string) []Entry {
			return []Entry{header(tar.TypeLink, "f", strings.Repeat("../", 40)+v[1:]+"/kept")}
		},
		"hard link through a link": func(v string) []Entry {
			return []Entry{Link("out", v), header(tar.TypeLink, "f", "out/kept")}
		},
		"hard link to a link to a host file": func(v string) []Entry {
			l := File("g", 0o4777, "")
			l.Typeflag, l.Linkname = tar.TypeLink, "f"
			return []Entry{Link("f", v+"/kept"), l}
		},
		"whiteout through a link": func(v string) []Entry {
			return []Entry{Link("out", v), File("out/.wh.kept", 0o644, ""), File("out/.wh..wh..opq", 0o644, "")}
		},
		"whiteout, its folder replaced later": func(v string) []Entry {
			return []Entry{Dir("d", 0o755), File("d/.wh.kept", 0o644, ""), File("d/.wh.new", 0o644, ""), File("d/.wh..wh..opq", 0o644, ""), Link("d", v)}
		},
		"whiteout of ..":             func(string) []Entry { return []Entry{Dir("d", 0o755), File("d/.wh...", 0o644, "")} },
		"whiteout of the folder":     func(string) []Entry { return []Entry{Dir("d", 0o755), File("d/.wh..", 0o644, "")} },
		"link at the top of the way": func(v string) []Entry { return []Entry{Link("./", v), File("new", 0o644, "x")} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			victim := t.TempDir()
			if err := os.WriteFile(filepath.Join(victim, "kept"), []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			before := stat(t, victim, "kept")
			img, err := pullLayers(t, entries(victim))
			if err != nil && image.CodeOf(err) != image.Corrupt {
				t.Errorf("refused with %q: %v", image.CodeOf(err), err)
			}
			if got := names(t, victim); !slices.Equal(got, []string{"kept"}) {
				t.Errorf("the folder outside has %v", got)
			}
			after := stat(t, victim, "kept")
			if read(t, victim, "kept") != "precious" || before.Mode != after.Mode || before.Ino != after.Ino || after.Nlink != 1 {
				t.Errorf("the file outside changed: %+v, then %+v", before, after)
			}
			if v := make([]byte, 8); len(img.Layers) > 0 {
				if n, err := unix.Getxattr(victim, "trusted.overlay.opaque", v); err == nil {
					t.Errorf("the folder outside got an attribute: %q", v[:n])
				}
			}
		})
	}
}

func TestDeviceNodesAreLeftOutWithANote(t *testing.T) {
	t.Parallel()
	null := header(tar.TypeChar, "dev/null", "")
	null.Devmajor, null.Devminor = 1, 3
	disk := header(tar.TypeBlock, "dev/sda", "")
	disk.Devmajor = 8
	hidden := header(tar.TypeChar, "etc", "") // 0:0 is overlayfs's own whiteout
	img, err := pullLayers(t, []Entry{Dir("dev", 0o755), null, disk, hidden, header(tar.TypeFifo, "dev/pipe", "")})
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, img.Layers[0], "dev"); !slices.Equal(got, []string{"pipe"}) {
		t.Errorf("/dev has %v", got)
	}
	if _, err := os.Lstat(filepath.Join(img.Layers[0], "etc")); err == nil {
		t.Error("a device of the archive became a whiteout")
	}
	if len(img.Notes) != 1 || !strings.Contains(img.Notes[0], "3 device nodes") {
		t.Errorf("notes: %v", img.Notes)
	}
}

func TestLayersKeepIdsModesTimesAndAttributes(t *testing.T) {
	t.Parallel()
	sudo := File("sudo", 0o4755, "#!")
	ping := File("ping", 0o755, "#!")
	// CAP_NET_RAW, permitted and effective, as `setcap cap_net_raw+ep` writes it.
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	ping.PAXRecords = map[string]string{
		"SCHILY.xattr.security.capability":    capability,
		"SCHILY.xattr.user.note":              "kept",
		"SCHILY.xattr.trusted.overlay.opaque": "y",
	}
	owned := File("owned", 0o640, "x")
	owned.Uid, owned.Gid = 70_000, 1234
	same := owned
	same.Name, same.Typeflag, same.Linkname, same.Body = "same", tar.TypeLink, "owned", ""
	l := layers(t, []Entry{sudo, ping, owned, same, Link("to", "/etc/passwd")})[0]
	if st := stat(t, l, "sudo"); st.Mode&0o7777 != 0o4755 || st.Mtim.Sec != 1_700_000_000 {
		t.Errorf("sudo is %+v", st)
	}
	if st := stat(t, l, "owned"); st.Uid != 70_000 || st.Gid != 1234 || st.Nlink != 2 || st.Ino != stat(t, l, "same").Ino {
		t.Errorf("owned is %+v", st)
	}
	for attr, want := range map[string]string{"security.capability": capability, "user.note": "kept", "trusted.overlay.opaque": ""} {
		v := make([]byte, 64)
		n, err := unix.Lgetxattr(filepath.Join(l, "ping"), attr, v)
		if got := string(v[:max(n, 0)]); got != want {
			t.Errorf("%s is %q (%v), want %q", attr, got, err, want)
		}
	}
	if to, err := os.Readlink(filepath.Join(l, "to")); err != nil || to != "/etc/passwd" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
}

// mount stacks layers with overlayfs, read-only, and returns the folder.
func mount(t *testing.T, layers []string) string {
	t.Helper()
	dir := t.TempDir()
	top := slices.Clone(layers)
	slices.Reverse(top)
	if len(top) == 1 {
		top = append(top, t.TempDir())
	}
	options := "index=off,metacopy=off,lowerdir=" + strings.Join(top, ":")
	if err := unix.Mount("overlay", dir, "overlay", unix.MS_RDONLY, options); err != nil {
		t.Fatalf("mounting an overlay (the tests need root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestWhiteoutsHideWhatIsBelow(t *testing.T) {
	t.Parallel()
	below := []Entry{
		Dir("gone", 0o755), File("gone/f", 0o644, ""), File("file", 0o644, "old"), Dir("opaque", 0o755), File("opaque/old", 0o644, ""),
		Dir("anew", 0o755), File("anew/old", 0o644, ""), Dir("before", 0o755), File("before/old", 0o644, ""), Dir("usr", 0o755),
		File("usr/tool", 0o644, ""), Dir("deep", 0o755), Dir("deep/er", 0o755), File("deep/er/f", 0o644, ""), File("stays", 0o644, "old"),
	}
	above := []Entry{
		File(".wh.gone", 0o644, ""), File(".wh.file", 0o644, ""),
		File("opaque/new", 0o644, ""), File("opaque/.wh..wh..opq", 0o644, ""), // the marker after what it keeps
		File(".wh.anew", 0o644, ""), Dir("anew", 0o700), File("anew/new", 0o644, ""), // deleted, then made again
		Dir("before", 0o755), File("before/new", 0o644, ""), File(".wh.before", 0o644, ""), // the same, in the other order
		File(".wh.stays", 0o644, ""), File("stays", 0o644, "new"),
		File("deep/er/.wh.f", 0o644, ""), // without entries for the folders
		File(".wh..wh.plnk", 0o644, ""), File(".wh.never-there", 0o644, ""),
	}
	root := mount(t, layers(t, below, above))
	for dir, want := range map[string][]string{
		".":      {"anew", "before", "deep", "opaque", "stays", "usr"},
		"opaque": {"new"}, "anew": {"new"}, "before": {"new"}, "deep/er": nil,
	} {
		if got := names(t, root, dir); !slices.Equal(got, want) {
			t.Errorf("%s shows %v, want %v", dir, got, want)
		}
	}
	if read(t, root, "stays") != "new" {
		t.Error("a file made again shows the old one")
	}
}

func TestFoldersWithoutAnEntryKeepTheAttributesOfTheLayerBelow(t *testing.T) {
	t.Parallel()
	home := Dir("home/coder", 0o700)
	home.Uid, home.Gid = 1000, 1000
	base := []Entry{Dir("tmp", 0o1777), Dir("home", 0o755), home, Dir("etc", 0o755), Dir("gone", 0o700), Dir("gone/sub", 0o700)}
	// As ko and Bazel write layers: files only.
	add := []Entry{File("tmp/x", 0o644, ""), File("home/coder/y", 0o644, ""), File("etc/z", 0o644, ""), File("brand/new/w", 0o644, "")}
	again := []Entry{File(".wh.gone", 0o644, ""), File("tmp/y", 0o644, "")}
	anew := []Entry{File("gone/sub/f", 0o644, "")}
	got := layers(t, base, add, again, anew)
	if len(got) != 5 {
		t.Fatalf("got layers %v", got)
	}
	root := mount(t, got)
	for p, want := range map[string]string{
		"tmp": "1777 0:0", "home": "755 0:0", "home/coder": "700 1000:1000", "etc": "755 0:0", "brand/new": "755 0:0", "gone/sub": "755 0:0",
	} {
		st := stat(t, root, p)
		if is := fmt.Sprintf("%o %d:%d", st.Mode&0o7777, st.Uid, st.Gid); is != want {
			t.Errorf("%s is %s, want %s", p, is, want)
		}
	}
	for _, f := range []string{"tmp/x", "tmp/y", "home/coder/y", "etc/z", "brand/new/w", "gone/sub/f"} {
		if _, err := os.Lstat(filepath.Join(root, f)); err != nil {
			t.Error(err)
		}
	}
	if whole := layers(t, base, []Entry{File("etc/z", 0o644, "")}); len(whole) != 2 {
		t.Errorf("an extra layer was made though none is needed: %v", whole)
	}
}

func TestArchivesThatAreNotOnesAreCorrupt(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]v1.Layer{
		"no tar":    LayerOf(t, []byte(strings.Repeat("this is no tar. ", 100))),
		"cut short": LayerOf(t, Tar(t, File("f", 0o644, noise(10_000)))[:5000]),
		"path through a file": Layer(t, File("f", 0o644, ""),
			File("f/g", 0o644, "")),
		"link to nothing": Layer(t, header(tar.TypeLink, "f", "nothing")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			_, err := openAt(t, dir, image.Options{}).Pull(t.Context(), Push(t, Registry(t), "app", Image(t, nil, l)), nil)
			refused(t, err, image.Corrupt, "can't be unpacked")
			if left := append(names(t, dir, "layers"), names(t, dir, "blobs")...); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestALayerMustBeWhatTheConfigurationSays(t *testing.T) {
	t.Parallel()
	img, err := mutate.Append(Image(t, nil), mutate.Addendum{
		Layer: stored{static.NewLayer(Tar(t, File("f", 0o644, "evil")), types.OCIUncompressedLayer), Tar(t, File("f", 0o644, "good"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = open(t, image.Options{}).Pull(t.Context(), Push(t, Registry(t), "app", img), nil)
	refused(t, err, image.Corrupt, "something else than its configuration says")
}

func TestImagesLargerThanAllowedAreRefused(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	bomb := Push(t, host, "bomb", Image(t, nil, Layer(t, File("a", 0o644, strings.Repeat("\x00", 4<<20))), Layer(t, File("b", 0o644, strings.Repeat("\x00", 4<<20)))))
	_, err := open(t, image.Options{MaxBytes: 6 << 20}).Pull(t.Context(), bomb, nil)
	refused(t, err, image.TooLarge, "6.3 MB")
	many := Push(t, host, "many", Image(t, nil, Layer(t, manyFiles(300)...)))
	_, err = open(t, image.Options{MaxEntries: 200}).Pull(t.Context(), many, nil)
	refused(t, err, image.TooLarge, "200 files")
}

func TestAFullDiskIsSaidAndLeavesNothing(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatalf("mounting a small file system (the tests need root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := openAt(t, dir, image.Options{})
	// Small on the way, too large here: found only while unpacking.
	_, err := s.Pull(t.Context(), Push(t, host, "zeros", Image(t, nil, Layer(t, File("z", 0o644, strings.Repeat("\x00", 8<<20))))), nil)
	refused(t, err, image.DiskFull, dir, "claude-hub image rm")
	// Too large on the way already: found before anything is fetched.
	_, err = s.Pull(t.Context(), Push(t, host, "noise", Image(t, nil, Layer(t, File("n", 0o644, noise(5<<20))))), nil)
	refused(t, err, image.DiskFull, "needs at least 5.2 MB")
	if left := append(names(t, dir, "layers"), names(t, dir, "blobs")...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	pull(t, s, Push(t, host, "small", Image(t, nil, Layer(t, File("s", 0o644, "s")))))
}

func TestAnImageLeavesTheReserveOfTheDiskFree(t *testing.T) {
	t.Parallel()
	host := Registry(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128m"); err != nil {
		t.Fatalf("mounting a small file system (the tests need root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := openAt(t, dir, image.Options{Reserve: 64 << 20})
	// Small on the way; unpacked it fits on the disk, but not beside the reserve.
	zeros := func(n int) string {
		return Push(t, host, "zeros", Image(t, nil, Layer(t, File("z", 0o644, strings.Repeat("\x00", n)))))
	}
	_, err := s.Pull(t.Context(), zeros(100<<20), nil)
	refused(t, err, image.DiskFull, "67 MB are kept free")
	if left := append(names(t, dir, "layers"), names(t, dir, "blobs")...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	pull(t, s, zeros(20<<20))
	_, err = openAt(t, dir, image.Options{Reserve: 127 << 20}).Pull(t.Context(), Push(t, host, "noise", Image(t, nil, Layer(t, File("n", 0o644, noise(1<<20))))), nil)
	refused(t, err, image.DiskFull, "in reserve")
}

func TestABusyboxImageRuns(t *testing.T) {
	t.Parallel()
	img := pull(t, open(t, image.Options{}), Push(t, Registry(t), "busybox", Busybox(t, nil, File("etc/extra", 0o644, "extra"))))
	cmd := exec.Command("/bin/sh", "-c", "cat /etc/extra; ls -d /tmp; id -un 1000 2>/dev/null || grep -c coder /etc/passwd")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: mount(t, img.Layers)}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "extra/tmp\n") {
		t.Fatalf("%v: %s", err, out)
	}
}
