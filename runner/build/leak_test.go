package build

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/secret"
	"github.com/claude-hub/claude-hub/runner/wire"
)

func scanned(t *testing.T, dir string, values ...string) []string {
	t.Helper()
	var list []*wire.Value
	for i, v := range values {
		list = append(list, &wire.Value{Name: fmt.Sprintf("V%d", i), Value: []byte(v), Id: "1", Sensitive: true, Build: true})
	}
	vs, err := secret.From(list)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	err = newScanner(vs.SensitiveAtBuild()).folder(t.Context(), dir, func(file, variable string) { got = append(got, variable+" in "+file) })
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	return got
}

func TestValuesAreFoundWhereverTheyLieInAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, long := "a value of sixteen", strings.Repeat("0123456789abcdef", 4<<10-1)+"a long value"
	write := func(name string, parts ...string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(parts, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for _, at := range []int{0, 1, leakChunk - 17, leakChunk - 1, leakChunk, 2*leakChunk - 5, 3*leakChunk + 7} {
		write(fmt.Sprintf("one-%d", at), strings.Repeat("x", at), one)
		write(fmt.Sprintf("long-%d", at), strings.Repeat("0", at), long, "tail")
		want = append(want, fmt.Sprintf("V0 in /one-%d", at), fmt.Sprintf("V1 in /long-%d", at))
	}
	write("both-twice", long, one, one, long)
	write("not", one[:17], "X", long[:len(long)-1])
	write("empty")
	want = append(want, "V0 in /both-twice", "V1 in /both-twice")
	slices.Sort(want)
	if got := scanned(t, dir, one, long); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestTheScanFollowsNothingAndPassesByWhatIsNoFile(t *testing.T) {
	t.Parallel()
	outside, dir := t.TempDir(), t.TempDir()
	const value = "a value that lies elsewhere"
	if err := os.WriteFile(filepath.Join(outside, "file"), []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": outside + "/file", "folder": outside, "loop": "."} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	deep := "d"
	for range leakDepth + 10 {
		deep += "/d"
	}
	if err := os.MkdirAll(filepath.Join(dir, deep), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(dir, "whiteout"), unix.S_IFCHR, 0); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer sparse.Close()
	if _, err := sparse.WriteAt([]byte(value), 1<<40); err != nil {
		t.Fatal(err)
	}
	if err := sparse.Truncate(4 << 40); err != nil {
		t.Fatal(err)
	}
	if got := scanned(t, dir, value); !slices.Equal(got, []string{"V0 in /sparse"}) {
		t.Errorf("found %q", got)
	}
}

func TestTheScanEndsWithItsTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), bytes.Repeat([]byte("x"), 64), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	vs, err := secret.From([]*wire.Value{{Name: "V", Value: []byte("a value of sixteen"), Id: "1", Sensitive: true, Build: true}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if err := newScanner(vs.SensitiveAtBuild()).folder(ctx, dir, func(string, string) {}); err == nil {
		t.Error("it went on without time")
	}
}

// BenchmarkScan is how fast files of a build are looked through.
func BenchmarkScan(b *testing.B) {
	dir := b.TempDir()
	body := bytes.Repeat([]byte("lines of a program, {\"json\": 12345}, \x7fELF and more of what a package holds\n"), 400_000)
	if err := os.WriteFile(filepath.Join(dir, "file"), body, 0o600); err != nil {
		b.Fatal(err)
	}
	var list []*wire.Value
	for i := range 50 {
		list = append(list, &wire.Value{Name: fmt.Sprintf("V%d", i), Value: fmt.Appendf(nil, "%c%dvalue of some length", 'a'+i%26, i), Id: "1", Sensitive: true, Build: true})
	}
	vs, err := secret.From(list)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if err := newScanner(vs.SensitiveAtBuild()).folder(b.Context(), dir, func(string, string) {}); err != nil {
			b.Fatal(err)
		}
	}
}
