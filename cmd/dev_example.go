package cmd

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/claude-hub/claude-hub/app/config"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner"
	"github.com/claude-hub/claude-hub/runner/image"
)

//go:embed example
var exampleFiles embed.FS

// example is the Repo that dev makes.
type example struct{ repo config.Repo }

const (
	exampleID     = 1
	exampleName   = "example/wordcount"
	fallbackImage = "claude-hub/debian:bookworm"
	// resolveLimit is how long the registry has to answer before an image made here takes its place.
	resolveLimit = 15 * time.Second
)

// makeExample makes the example's bare repository.
func makeExample(ctx context.Context, data string) (example, error) {
	bare := filepath.Join(data, "example.git")
	e := example{repo: config.Repo{ID: exampleID, Name: exampleName, URL: "file://" + bare}}
	_, err := os.Stat(bare)
	if errors.Is(err, fs.ErrNotExist) {
		err = makeBare(ctx, bare)
	}
	return e, err
}

// exampleImage is the default image, or one made with debootstrap where that can't be had.
func exampleImage(ctx context.Context, cfg fileConfig, out io.Writer) (string, error) {
	pulls, err := cfg.Runner.ImageOptions()
	if err != nil {
		return "", err
	}
	images, err := image.Open(runner.ImageFolder(cfg.Data), pulls)
	if err != nil {
		return "", err
	}
	want := envspec.Default().Image
	limited, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	_, reason := images.Resolve(limited, want)
	if reason == nil {
		return want, nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	fmt.Fprintf(out, "%s can't be pulled here (%s)\nso the example uses an image made with debootstrap, %s\n", want, reason, fallbackImage)
	if _, err := images.Get(fallbackImage); err == nil {
		return fallbackImage, nil
	}
	fmt.Fprintln(out, "making it, once: this takes one to three minutes")
	var log bytes.Buffer
	if _, err := images.Debootstrap(ctx, image.DebootstrapOptions{Name: fallbackImage, Suite: "bookworm"}, &log); err != nil {
		return "", fmt.Errorf("make %s: %w\n%s", fallbackImage, err, log.String())
	}
	return fallbackImage, nil
}

// draft saves the example's draft unless it has one.
func (e example) draft(ctx context.Context, h *hub, cfg fileConfig, out io.Writer) error {
	who, secret, err := h.gate.SignInDev(ctx, devPerson)
	if err != nil {
		return err
	}
	defer func() { _ = h.gate.SignOut(ctx, secret) }()
	grant, err := h.gate.Repo(ctx, who, e.repo.ID)
	if err != nil {
		return err
	}
	env, err := h.env.Get(ctx, grant)
	if err != nil || env.Draft != nil {
		return err
	}
	spec := envspec.Default()
	if spec.Image, err = exampleImage(ctx, cfg, out); err != nil {
		return err
	}
	for file, into := range map[string]*string{"bootstrap.sh": &spec.Bootstrap, "start.sh": &spec.Start} {
		b, err := exampleFiles.ReadFile("example/" + file)
		if err != nil {
			return err
		}
		*into = string(b)
	}
	if _, err = h.env.Save(ctx, grant, 0, spec, nil); fault.Is(err, fault.Conflict) {
		return nil // somebody was quicker
	}
	return err
}

// makeBare makes the repository under a temporary name and renames it when it is whole.
func makeBare(ctx context.Context, bare string) error {
	if err := os.MkdirAll(filepath.Dir(bare), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(bare), "example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	tree := filepath.Join(tmp, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"app.py", "test_app.py", "README.md"} {
		b, err := exampleFiles.ReadFile("example/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(tree, name), b, 0o644); err != nil {
			return err
		}
	}
	made := filepath.Join(tmp, "bare.git")
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", tree},
		{"-C", tree, "add", "."},
		{"-C", tree, "-c", "user.name=claude-hub", "-c", "user.email=example@localhost", "commit", "-q", "-m", "Count words over HTTP"},
		{"clone", "-q", "--bare", tree, made},
	} {
		git := exec.CommandContext(ctx, "git", args...)
		git.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null")
		if b, err := git.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(b))
		}
	}
	return os.Rename(made, bare)
}
