package cmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/image/imagetest"
)

// runImage runs an image command on a data folder.
func runImage(t *testing.T, data string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	c := imageCommand()
	var out, log bytes.Buffer
	c.SetArgs(append(args, "--data", data))
	c.SetOut(&out)
	c.SetErr(&log)
	c.SilenceErrors, c.SilenceUsage = true, true
	err = c.ExecuteContext(t.Context())
	return out.String(), log.String(), err
}

func TestImageCommandsOnOneStore(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	img := imagetest.Image(t, nil, imagetest.Layer(t, imagetest.File("f", 0o644, "f")))
	ref := imagetest.Push(t, imagetest.Registry(t), "app:v1", img)

	out, log, err := runImage(t, data, "pull", ref)
	if err != nil || !strings.Contains(out, ref) || !strings.Contains(log, "done: ") {
		t.Fatalf("pull: %v\n%s\n%s", err, out, log)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(file, mustName(t, "saved:v2"), img); err != nil {
		t.Fatal(err)
	}
	if out, _, err = runImage(t, data, "import", file, "-o", "json"); err != nil {
		t.Fatal(err)
	}
	var got image.Image
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Names[0] != "saved:v2" {
		t.Fatalf("import gave %s", out)
	}
	if out, _, err = runImage(t, data, "ls"); err != nil || strings.Count(out, "\n") != 3 || !strings.Contains(out, "saved:v2") {
		t.Fatalf("ls: %v\n%s", err, out)
	}
	for _, n := range []string{ref, "saved:v2"} {
		if _, _, err := runImage(t, data, "rm", n); err != nil {
			t.Fatal(err)
		}
	}
	if out, _, err = runImage(t, data, "ls", "-o", "json"); err != nil || strings.TrimSpace(out) != "[]" {
		t.Fatalf("ls of an empty store: %v, %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(data, "runner", "images", "index.json")); err != nil {
		t.Error(err)
	}
}

func mustName(t *testing.T, v string) name.Tag {
	t.Helper()
	tag, err := name.NewTag(v)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

func TestImageCommandsTellUsageFromFailure(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	var usage usageError
	if _, _, err := runImage(t, data, "pull", "Not Valid"); !errors.As(err, &usage) {
		t.Errorf("a bad reference is not a usage error: %v", err)
	}
	_, _, err := runImage(t, data, "rm", "nothing")
	if err == nil || errors.As(err, &usage) || !strings.Contains(err.Error(), "there is no image nothing on this host") {
		t.Errorf("removing what isn't there: %v", err)
	}
}

func TestImageProgressGoesInTenths(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := showImageProgress(&out)
	for i := range int64(101) {
		p.step(image.Progress{Phase: image.PhaseDownload, Bytes: i * 1e6, TotalBytes: 100e6, TotalKnown: true})
	}
	p.end()
	if n := strings.Count(out.String(), "\n"); n != 11 {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}
