package oci

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// Engine is the sandbox.Engine. Beside it one process a data folder.
type Engine struct {
	cfg      Config
	tag      string
	lowWater int64
	locked   []*os.File
	cgroups  *cgroups
	firewall *firewall
	dns      *forwarder
	stop     context.CancelFunc
	watcher  sync.WaitGroup

	ids   keyed // by Sandbox
	bases keyed // by snapshot
	disks disks

	mu    sync.Mutex
	boxes map[sandbox.ID]*box

	idsMu, leaseMu sync.Mutex
	nextID         int
	nextLease      uint32
}

var _ sandbox.Engine = (*Engine)(nil)

// record is what is known of an id for as long as it has a root filesystem.
type record struct {
	Spec    sandbox.Spec `json:"spec"`
	Started time.Time    `json:"started"`
	// Aside is what the root filesystem is made on that Renew put aside; nil: there is none.
	Aside *sandbox.Base `json:"aside,omitempty"`
}

// readRecord takes a record that a power cut left half written for none: the next Start writes it again.
func (e *Engine) readRecord(id sandbox.ID) (record, bool) {
	var rec record
	found, err := readJSON(e.recordFile(id), &rec)
	if err != nil {
		e.cfg.Log.Warn().Err(err).Str("sandbox", string(id)).Msg("The record of a Sandbox can't be read.")
	}
	return rec, found && err == nil
}

// Open takes the data folder, adopts what an earlier process left running, cleans up what it left half done, and makes
// the host ready: folders, mounts, the nft table, kernel modules, sysctls. It needs root.
func Open(cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("the engine that boots Sandboxes needs root on the host: run the Runner as root")
	}
	for _, d := range []string{cfg.Dir, filepath.Join(cfg.Dir, "sandboxes"), filepath.Join(cfg.Dir, "builds"), filepath.Join(cfg.Dir, idsFolder)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	// The folders on the way to a root filesystem must be passable: the runtime opens it with the Sandbox's ids.
	for d, mode := range map[string]os.FileMode{"": 0o711, "s": 0o711, "k": 0o700, "rt": 0o700, "rg": 0o700} {
		path := filepath.Join(cfg.RunDir, d)
		if err := errors.Join(os.MkdirAll(path, mode), os.Chmod(path, mode)); err != nil {
			return nil, err
		}
	}
	e := &Engine{cfg: cfg, tag: cfg.tag(), boxes: map[sandbox.ID]*box{}}
	e.disks.users, e.disks.trash = map[string]sandbox.ID{}, map[string]*sync.WaitGroup{}
	if e.lowWater, err = cfg.lowWaterMark(); err != nil {
		return nil, err
	}
	if err := e.lock(); err != nil {
		return nil, err
	}
	if err := e.prepare(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Engine) prepare() error {
	prepareHost(e.cfg.Log)
	if err := privateTmpfs(e.mountDir()); err != nil {
		return err
	}
	var err error
	if e.cgroups, err = findCgroups(e.tag); err != nil {
		return err
	}
	e.firewall = newFirewall(e.cfg, e.tag)
	e.dns = &forwarder{log: e.cfg.Log, stops: map[string]func(){}, servers: func() []netip.AddrPort {
		var out []netip.AddrPort
		for _, s := range e.hostResolver().servers {
			out = append(out, netip.AddrPortFrom(s, 53))
		}
		return out
	}}
	if err := e.recoverSnapshots(); err != nil {
		return err
	}
	dead, err := e.adopt()
	if err != nil {
		return err
	}
	if err := e.firewall.install(context.Background()); err != nil {
		return err
	}
	for _, b := range e.boxes {
		if l := b.boot.Net; l != nil && l.Forward {
			if err := e.dns.start(l); err != nil {
				e.cfg.Log.Warn().Err(err).Str("sandbox", string(b.id)).Msg("An adopted Sandbox has no DNS.")
			}
		}
	}
	for _, id := range dead {
		if err := e.cleanUp(context.Background(), id); err != nil {
			e.cfg.Log.Warn().Err(err).Str("sandbox", string(id)).Msg("What a Sandbox left could not be cleaned up; its next start tries again.")
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	e.watcher.Go(func() { (&brim{e: e}).watch(ctx) })
	e.watcher.Go(func() {
		e.firewall.watch(ctx, func(err error) {
			e.cfg.Log.Warn().Err(err).Msg("The nft table that isolates Sandboxes was removed by another program and has been put back.")
		})
	})
	return nil
}

// lock keeps a second engine out of the data folder and out of the runtime folder. It ends with the process, however that ends.
func (e *Engine) lock() error {
	for what, dir := range map[string]string{"data": e.cfg.Dir, "runtime": e.cfg.RunDir} {
		f, err := lockFolder(dir)
		if err != nil {
			return errors.Join(fmt.Errorf("the %s folder %s is used by another Runner on this host: %w", what, dir, err), e.unlock())
		}
		e.locked = append(e.locked, f)
	}
	return nil
}

func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// A child that a killed Runner was just forking holds the lock until it has become its program.
	deadline := time.Now().Add(2 * time.Second)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(err, f.Close())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (e *Engine) unlock() error {
	var errs []error
	for _, f := range e.locked {
		errs = append(errs, f.Close())
	}
	e.locked = nil
	return errors.Join(errs...)
}

// adopt takes over every ready boot whose PID 1 still runs, and names the others.
func (e *Engine) adopt() (dead []sandbox.ID, err error) {
	entries, err := os.ReadDir(filepath.Join(e.cfg.RunDir, "s"))
	if err != nil {
		return nil, err
	}
	for _, d := range entries {
		id := sandbox.ID(d.Name())
		var boot bootRecord
		found, err := readJSON(e.bootFile(id), &boot)
		if err == nil && found && boot.Ready {
			if fd, alive := boot.Process.open(); alive {
				e.boxes[id] = e.newBox(id, boot, fd)
				e.disks.users[boot.Spec.Disk.Path] = id
				if boot.Net != nil {
					e.firewall.leases[boot.Net.Interface] = *boot.Net
				}
				continue
			}
		}
		dead = append(dead, id)
	}
	return dead, nil
}

// Close lets go of the data folder. Sandboxes, mounts and the nft table stay: the next engine finds them. No other
// method may run meanwhile or later, but Teardown.
func (e *Engine) Close() error {
	if e.stop != nil {
		e.stop()
		e.watcher.Wait()
	}
	if e.dns != nil {
		e.dns.stopAll()
	}
	return e.unlock()
}

// Teardown takes away what the engine made on the host for itself: table, mounts, runtime folder. The data folder stays.
// It is for a host that is no Runner any more, and for tests; all Sandboxes must be stopped.
func (e *Engine) Teardown() error {
	for _, s := range e.running() {
		return sandbox.Errorf(sandbox.ErrRunning, "the Sandbox %s still runs", s)
	}
	e.disks.mu.Lock()
	trash := e.disks.trash
	e.disks.mu.Unlock()
	for _, wg := range trash {
		wg.Wait()
	}
	errs := []error{e.Close(), e.firewall.remove(), unmountTree(e.mountDir()), unmountTree(e.gvisorRoot())}
	for point := range e.cgroups.points() {
		errs = append(errs, removeGroup(filepath.Join(point, e.cgroups.parent)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(e.cfg.RunDir)
}

func (e *Engine) running() []sandbox.ID {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []sandbox.ID
	for id, b := range e.boxes {
		if b.running() {
			out = append(out, id)
		}
	}
	return out
}

func (e *Engine) box(id sandbox.ID) *box {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.boxes[id]
}

func (e *Engine) setBox(id sandbox.ID, b *box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b == nil {
		delete(e.boxes, id)
		return
	}
	e.boxes[id] = b
}

// List is sandbox.Engine's.
func (e *Engine) List(context.Context) ([]sandbox.Status, error) {
	entries, err := os.ReadDir(filepath.Join(e.cfg.Dir, "sandboxes"))
	if err != nil {
		return nil, err
	}
	var out []sandbox.Status
	for _, d := range entries {
		name, ok := strings.CutSuffix(d.Name(), ".json")
		if !ok {
			continue
		}
		id := sandbox.ID(name)
		rec, found := e.readRecord(id)
		if !found {
			continue // removed meanwhile
		}
		st := sandbox.Status{ID: id, Spec: rec.Spec}
		if b := e.box(id); b != nil && b.running() {
			st.Running, st.Generation = true, b.boot.Generation
		}
		out = append(out, st)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out, nil
}

// Open is sandbox.Engine's.
func (e *Engine) Open(_ context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	if b := e.box(id); b != nil && b.running() {
		return b, nil
	}
	if exists(e.recordFile(id)) {
		return nil, sandbox.Errorf(sandbox.ErrNotRunning, "the Sandbox %s is not running", id)
	}
	return nil, sandbox.Errorf(sandbox.ErrNotFound, "there is no Sandbox %s on this host", id)
}
