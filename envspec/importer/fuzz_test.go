package importer

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tailscale/hujson"
)

// devcontainers are files as repositories have them.
func devcontainers(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/devcontainer/*.json")
	if err != nil || len(files) < 4 {
		t.Fatalf("there are %d files: %v", len(files), err)
	}
	out := map[string][]byte{}
	for _, file := range files {
		if out[file], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestNothingOfADevcontainerIsLost(t *testing.T) {
	t.Parallel()
	for file, b := range devcontainers(t) {
		p, err := Import(repo(dev, string(b)), "")
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		check(t, p, dev, b)
	}
}

func FuzzImport(f *testing.F) {
	for _, b := range devcontainers(f) {
		f.Add(byte(0), b)
	}
	kinds := []string{dev, ".github/workflows/copilot-setup-steps.yml", ".cursor/environment.json", ".gitpod.yml", "mise.toml", ".tool-versions"}
	for _, e := range examples {
		if i := slices.Index(kinds, e.file); i >= 0 {
			f.Add(byte(i), []byte(e.text))
		}
	}
	for _, s := range []string{`{"a":1,}`, "{/*", `{"image":"\ud800"}`, `{"postCreateCommand":"\u202e'"}`, "{\"features\": {\"docker\": null}}//", `{"": {"": [], "0": ""}}`, `{"a": {"[0]": 1}, "[0]": [1]}`} {
		f.Add(byte(0), []byte(s))
	}
	f.Add(byte(3), []byte("? [a]\n: {b: 1}\n?\n1_0: ~\n<<: {c: 1}\n"))
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		file := kinds[int(kind)%len(kinds)]
		p, err := Import(repo(file, string(b)), "")
		switch {
		case err == nil:
			check(t, p, file, b)
		case !errors.Is(err, ErrNothing):
			t.Fatalf("%q: %v", b, err)
		case len(p.Left) != 1 || p.Left[0].Why == "":
			t.Fatalf("%q can't be read, and nothing says so: %+v", b, p)
		}
	})
}

// A dev container's file is read as JSON is, once its comments and trailing commas are gone.
func FuzzJSONC(f *testing.F) {
	for _, b := range devcontainers(f) {
		f.Add(b)
	}
	for _, e := range examples {
		if strings.HasSuffix(e.file, ".json") {
			f.Add([]byte(e.text))
		}
	}
	for _, s := range []string{"{/*", "//\n{}", `{"a": [1, 2.5e3, null, true, "\ud800\u0041", {},], /* "b": 1 */}`, `{"a": "// no comment"}`, `{"a":1,,}`, "\ufeff{}", `{"a": 1} {"b": 2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := parseJSONC(b)
		plain, wrong := hujson.Standardize([]byte(strings.TrimPrefix(string(b), "\ufeff")))
		if err != nil {
			if wrong == nil && !errors.Is(err, errLarge) {
				t.Fatalf("%q is refused: %v", b, err)
			}
			return
		}
		var want any
		d := json.NewDecoder(strings.NewReader(string(plain)))
		d.UseNumber()
		if err := errors.Join(wrong, d.Decode(&want)); err != nil {
			t.Fatalf("%q is read, and is not JSON: %v", b, err)
		}
		if got := plainly(n); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is read as %v, want %v", b, got, want)
		}
	})
}

// plainly is a tree as encoding/json has it.
func plainly(n *node) any {
	switch n.kind {
	case group:
		out := map[string]any{}
		for _, c := range n.children {
			out[c.name] = plainly(c)
		}
		return out
	case list:
		out := make([]any, len(n.children))
		for i, c := range n.children {
			out[i] = plainly(c)
		}
		return out
	case text:
		return n.value
	case null:
		return nil
	}
	switch n.value {
	case "true":
		return true
	case "false":
		return false
	}
	return json.Number(n.value)
}
