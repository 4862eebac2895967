package build

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// Use remembers that an Environment uses a build now, so that pruning keeps what is used rather than what is new. It need not be
// the Environment that the build was made for: those of two Repos with one key share it.
func (b *Builder) Use(name, environment string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used[name] == nil {
		b.used[name] = map[string]int64{}
	}
	b.used[name][environment] = time.Now().UnixMilli()
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
	body, err := os.ReadFile(b.usedPath())
	if err != nil || json.Unmarshal(body, &b.used) != nil || b.used == nil { // a damaged one only makes the order of pruning worse
		b.used = map[string]map[string]int64{}
	}
}

// Prune deletes builds: of each Environment the Keep that it used most recently stay, one for each key, whichever Environment they
// were made for, and all that keep names, by name or by key. What a Sandbox stands on stays in any case. It returns the names of
// what it deleted.
func (b *Builder) Prune(ctx context.Context, keep func(name, key string) bool) ([]string, error) {
	all, err := b.All(ctx)
	if err != nil {
		return nil, err
	}
	old := b.old(all)
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

// old are those of all, the newest first, that no Environment would miss.
func (b *Builder) old(all []Base) []Base {
	// When each Environment used each key last: the newest build of a key stands for the older ones.
	uses := map[string]map[string]int64{}
	b.mu.Lock()
	for _, base := range all {
		use := func(environment string, at int64) {
			of := uses[environment]
			if of == nil {
				of = map[string]int64{}
				uses[environment] = of
			}
			of[base.Meta.Key] = max(of[base.Meta.Key], at)
		}
		use(base.Meta.Environment, base.Meta.Created)
		for environment, at := range b.used[base.Name] {
			use(environment, at)
		}
	}
	b.mu.Unlock()
	recent := map[string]bool{}
	for _, of := range uses {
		keys := slices.SortedFunc(maps.Keys(of), func(x, y string) int {
			return cmp.Or(cmp.Compare(of[y], of[x]), strings.Compare(x, y))
		})
		for _, key := range keys[:min(len(keys), b.cfg.Keep)] {
			recent[key] = true
		}
	}
	var old []Base
	for _, base := range all {
		if !recent[base.Meta.Key] {
			old = append(old, base)
		}
		recent[base.Meta.Key] = false // the others of the key are older
	}
	return old
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
