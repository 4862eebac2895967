package build

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// Use remembers that a build is used now, so that pruning keeps what is used rather than what is new.
func (b *Builder) Use(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used[name] = time.Now().UnixMilli()
	body, err := json.Marshal(b.used)
	if err == nil {
		err = WriteFile(b.usedPath(), body, false)
	}
	if err != nil {
		b.cfg.Log.Warn().Err(err).Msg("when a build was used last could not be stored")
	}
}

func (b *Builder) usedPath() string { return filepath.Join(b.cfg.Dir, "used.json") }

func (b *Builder) readUsed() {
	if body, err := os.ReadFile(b.usedPath()); err == nil {
		_ = json.Unmarshal(body, &b.used) // a damaged one only makes the order of pruning worse
	}
	if b.used == nil {
		b.used = map[string]int64{}
	}
}

// Prune deletes builds: of each Environment the Keep most recently used stay, one for each key, and all that keep
// names, by name or by key. What a Sandbox stands on stays in any case. It returns the names of what it deleted.
func (b *Builder) Prune(ctx context.Context, keep func(name, key string) bool) ([]string, error) {
	all, err := b.All(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	at := map[string]int64{}
	for _, base := range all {
		at[base.Name] = max(base.Meta.Created, b.used[base.Name])
	}
	b.mu.Unlock()
	seen, kept := map[string]bool{}, map[string]int{}
	var old []Base
	var candidates []Base
	for _, base := range all { // newest first
		if seen[base.Meta.Key] {
			old = append(old, base)
			continue
		}
		seen[base.Meta.Key] = true
		candidates = append(candidates, base)
	}
	slices.SortStableFunc(candidates, func(x, y Base) int { return int(max(-1, min(1, at[y.Name]-at[x.Name]))) })
	for _, base := range candidates {
		if kept[base.Meta.Environment]++; kept[base.Meta.Environment] > b.cfg.Keep {
			old = append(old, base)
		}
	}
	var deleted []string
	var errs []error
	for _, base := range old {
		if keep(base.Name, base.Meta.Key) {
			continue
		}
		switch err := b.engine.Delete(ctx, base.Base); {
		case err == nil:
			deleted = append(deleted, base.Name)
			b.forget(base.Name)
			errs = append(errs, b.release(ctx, heldByBuild+base.Name))
		case !errors.Is(err, sandbox.ErrInUse):
			errs = append(errs, err)
		}
	}
	errs = append(errs, b.pruneImages(ctx))
	return deleted, errors.Join(errs...)
}

// Usage is how many builds there are and what their disks take, in bytes.
func (b *Builder) Usage(ctx context.Context) (builds int, bytes int64, err error) {
	all, err := b.All(ctx)
	if err != nil {
		return 0, 0, err
	}
	var errs []error
	for _, base := range all {
		var st unix.Statfs_t
		if err := unix.Statfs(base.Layers[len(base.Layers)-1], &st); err != nil {
			errs = append(errs, err)
			continue
		}
		bytes += int64(st.Blocks-st.Bfree) * st.Bsize
	}
	return len(all), bytes, errors.Join(errs...)
}

func (b *Builder) forget(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.used, name)
}

// Sweep gives up build Sandboxes and disks that belong to nothing any more: owned says which Test builds the Runner
// knows, and building which keys are being built.
func (b *Builder) Sweep(ctx context.Context, owned func(assignment string) bool, building func(key string) bool) error {
	boxes := map[sandbox.ID]bool{}
	list, err := b.engine.List(ctx)
	if err != nil {
		return err
	}
	for _, s := range list {
		boxes[s.ID] = true
	}
	entries, err := os.ReadDir(filepath.Join(b.cfg.Dir, "disks"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		boxes[sandbox.ID(e.Name())] = true
	}
	errs := []error{b.sweepHolds(ctx, boxes)}
	for id := range boxes {
		kind, of, _ := strings.Cut(string(id), "-")
		switch kind {
		case "b", "t":
			if owned(of) {
				continue
			}
		case "k":
			if building(of) {
				continue
			}
		default:
			continue
		}
		errs = append(errs, b.discard(ctx, id))
	}
	return errors.Join(errs...)
}

// WriteFile replaces a file as a whole: after a kill at any moment there is the old one or the new one. durable waits
// until a power cut can't bring the old one back.
func WriteFile(path string, body []byte, durable bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	if err == nil && durable {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	if !durable {
		return nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
