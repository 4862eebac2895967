package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/secret"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// BootstrapID is the id of the bootstrap script at its agent.
const BootstrapID = "bootstrap"

// make goes from the image to the snapshot, in the Sandbox box, which is given up at the end.
func (b *Builder) make(ctx context.Context, j *Job, box sandbox.ID, name string) (Base, error) {
	if base, found, err := b.Named(ctx, name); err != nil || found {
		if found {
			// Killed between the snapshot and its mark.
			b.lookThrough(ctx, j, base.Layers[len(base.Layers)-1])
			err = errors.Join(b.finish(j, base), b.discard(ctx, box))
		}
		return base, err
	}
	spec, err := Spec(j.Recipe)
	if err != nil {
		return Base{}, err
	}
	limits, notes := b.Limits(spec)
	for _, n := range notes {
		j.Track.Note(n)
	}
	img, err := b.pull(ctx, j, spec)
	if err != nil {
		return Base{}, err
	}
	if err := b.hold(ctx, heldByBox+string(box), img.Digest); err != nil {
		return Base{}, err
	}
	if err := b.bootstrap(ctx, j, spec, img, limits, box); err != nil {
		return Base{}, err
	}
	return b.snapshot(ctx, j, img, box, name)
}

func (b *Builder) pull(ctx context.Context, j *Job, spec envspec.Spec) (image.Image, error) {
	pinned := j.Marks.ImageDigest
	if pinned == "" {
		pinned = j.Recipe.ImageDigest
	}
	if pinned != "" {
		if img, err := b.images.Get(pinned); err == nil {
			if j.Marks.ImageDigest == "" {
				j.Track.Begin(wire.PhaseImage)
				j.Track.End(wire.PhaseImage, "already on this Runner", nil)
			} else if p := j.Track.Phase(wire.PhaseImage); p.State == wire.PhaseRunning {
				j.Track.End(wire.PhaseImage, "", nil)
			}
			return img, b.resolved(j, spec, img)
		}
	}
	ref := spec.Image
	if pinned != "" {
		ref = pin(ref, pinned)
	}
	j.Track.Begin(wire.PhaseImage)
	j.Log.Mark("image: %s", ref)
	img, err := b.images.Pull(ctx, ref, func(p image.Progress) {
		j.Track.Set(wire.Progress{Text: p.String(), Done: p.Bytes, Total: p.TotalBytes})
	})
	if err != nil {
		return img, cause(ctx, err)
	}
	for _, n := range img.Notes {
		j.Track.Note(n)
	}
	j.Log.Mark("image: %s, %s unpacked", img.Digest, Bytes(img.Size))
	j.Track.End(wire.PhaseImage, "", nil)
	return img, b.resolved(j, spec, img)
}

// resolved fixes the image for the rest of this assignment, so that a moved tag can't change it half-way.
func (b *Builder) resolved(j *Job, spec envspec.Spec, img image.Image) error {
	j.Marks.ImageDigest = img.Digest
	j.Marks.Key = b.Key(spec, img.Digest, j.Values)
	return j.Save()
}

// Key is the build key of a Spec on an image, with the values its bootstrap receives, on this Runner: its platform, and the version of
// Claude Code that it is configured to give.
func (b *Builder) Key(spec envspec.Spec, digest string, values *secret.Values) string {
	return Key(spec, digest, b.cfg.ClaudeCode.Version(), values)
}

// Key is as Builder.Key, with any version of Claude Code; empty: none.
func Key(spec envspec.Spec, digest, claudeCode string, values *secret.Values) string {
	return string(envspec.BuildKey(envspec.BuildInput{Spec: spec, ImageDigest: digest, Platform: platform(), ClaudeCode: claudeCode, Values: values.BuildIDs()}))
}

// pin replaces the tag of a reference by a digest.
func pin(ref, digest string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		ref = ref[:i]
	}
	return ref + "@" + digest
}

func (b *Builder) bootstrap(ctx context.Context, j *Job, spec envspec.Spec, img image.Image, limits sandbox.Limits, box sandbox.ID) error {
	if j.Marks.Rested != "" && j.Marks.Rested == hostBoot() {
		return nil
	}
	empty := strings.TrimSpace(spec.Bootstrap) == ""
	first := wire.PhaseBootstrap
	if spec.Docker {
		first = wire.PhaseDocker
	}
	j.Track.Begin(first)
	s, c, err := b.bootForBuild(ctx, j, withDocker(sandbox.Spec{
		Base: sandbox.Base{Name: img.Digest, Layers: img.Layers}, Hostname: "build", Disk: b.disk(box, b.cfg.BuildDisk),
		// Bound in Sandboxes with a Workspace, so that each would have to make it, and copy the folders above it onto its disk.
		Binds: append([]sandbox.Bind{{Folder: cacheName, Guest: cacheGuest}}, b.cfg.Binds...), Limits: limits,
	}, spec.Docker), box, first)
	if err != nil {
		return err
	}
	if spec.Docker {
		if err := b.docker(ctx, j, s, c, img, limits); err != nil {
			return err
		}
		j.Track.Begin(wire.PhaseBootstrap)
	}
	if err := b.withClaudeCode(ctx, j, c); err != nil {
		return err
	}
	if empty {
		if err := b.dropImages(ctx, j, c); err != nil {
			return err
		}
		if err := b.settle(ctx, j, c, img); err != nil {
			return err
		}
		if err := b.linkClaudeCode(ctx, j, c, img); err != nil {
			return err
		}
		if err := b.probe(ctx, j, spec, c, img); err != nil {
			return err
		}
		j.Track.Skip(wire.PhaseBootstrap, "no bootstrap script")
		return b.rested(j)
	}
	done, flushed := b.flush(ctx, b.disk(box, b.cfg.BuildDisk))
	defer flushed()
	env := append(b.bootstrapPath(j, b.Env(img.Config, nil, "DEBIAN_FRONTEND=noninteractive", "HOME=/root")), j.Values.Env(true)...)
	exit, err := b.RunScript(ctx, s, j.Log, wire.PhaseBootstrap, j.Marks.Boot, Script(BootstrapID, "bootstrap", spec.Bootstrap, env, "/", "0"))
	if err != nil {
		return cause(ctx, err)
	}
	if f := ExitFailure(wire.PhaseBootstrap, exit, limits.Memory, j.Log.Tail()); f != nil {
		j.Track.Fail(wire.PhaseBootstrap, "", &exit.Code)
		return f
	}
	done()
	if err := b.dropImages(ctx, j, c); err != nil {
		return err
	}
	if err := b.settle(ctx, j, c, img); err != nil {
		return err
	}
	note, err := b.stopLeftovers(ctx, j.Log.Set(), c)
	if err != nil {
		return cause(ctx, err)
	}
	if note != "" {
		j.Log.Mark("bootstrap: %s", note)
	}
	if err := b.linkClaudeCode(ctx, j, c, img); err != nil {
		return err
	}
	if err := b.probe(ctx, j, spec, c, img); err != nil {
		return err
	}
	j.Log.Mark("bootstrap: done in %s", took(j.Track.Since(wire.PhaseBootstrap)))
	j.Track.End(wire.PhaseBootstrap, j.Log.Text(note), &exit.Code)
	return b.rested(j)
}

// bootForBuild boots the build's Sandbox, or goes on with the one in which the bootstrap was started. One without it,
// or another boot of it, holds nobody knows what, and one with a value that nobody knows any more prints it: it is thrown away.
// first is the phase that begins in it.
func (b *Builder) bootForBuild(ctx context.Context, j *Job, spec sandbox.Spec, box sandbox.ID, first string) (sandbox.Sandbox, *agent.Client, error) {
	if j.Marks.Script == BootstrapID {
		s, err := b.engine.Open(ctx, box)
		if err == nil {
			c, h, err := Ready(ctx, s)
			if err == nil && h.BootID == j.Marks.Boot && j.Values.Covers(j.Marks.Handed) {
				return s, c, nil
			}
		}
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		j.Log.Mark("bootstrap: its Sandbox is gone, so the half-made root filesystem was thrown away and the bootstrap starts afresh")
		j.Marks.Script, j.Marks.Boot, j.Marks.Rested, j.Marks.ClaudeCode, j.Marks.Login = "", "", "", "", nil
		j.Track.Drop(wire.PhaseDocker)
		j.Track.Drop(wire.PhaseBootstrap)
		j.Track.Begin(first)
	}
	if err := b.discard(ctx, box); err != nil {
		return nil, nil, err
	}
	if err := b.Room(ctx, box, spec.Limits); err != nil {
		return nil, nil, err
	}
	s, err := b.engine.Start(ctx, box, spec)
	if err != nil {
		return nil, nil, cause(ctx, err)
	}
	c, h, err := Ready(ctx, s)
	if err != nil {
		return nil, nil, cause(ctx, err)
	}
	j.Log.Mark("bootstrap: as root, %s and %s of memory", envspec.CPUs(spec.Limits.CPU), Bytes(spec.Limits.Memory))
	j.Marks.Script, j.Marks.Boot, j.Marks.Handed = BootstrapID, h.BootID, j.Values.Handed(true)
	return s, c, j.Save()
}

// rested marks that the bootstrap is done and nothing runs. The mark holds until the host boots again: before the
// snapshot, nothing of the root filesystem is durable.
func (b *Builder) rested(j *Job) error {
	j.Marks.Rested = hostBoot()
	return j.Save()
}

func hostBoot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// settle finds the ids of the image's user as the bootstrap left the account files: the clone and the start script are
// made as that user. It also refuses an image in which no script can run, before anything stands on it.
func (b *Builder) settle(ctx context.Context, j *Job, c *agent.Client, img image.Image) error {
	files := map[string]*limited{"/etc/passwd": {}, "/etc/group": {}}
	for path, w := range files {
		// Only what every shell has built in.
		body := "[ -r " + path + " ] || exit 0\nwhile IFS= read -r l || [ -n \"$l\" ]; do printf '%s\\n' \"$l\"; done <" + path + "\n"
		cmd := agent.Cmd{ID: fmt.Sprintf("accounts%s-%d", path, time.Now().UnixNano()), Script: &agent.Script{Name: "accounts", Body: []byte(body)}}
		if _, err := c.Run(ctx, cmd, w, nil); err != nil {
			return cause(ctx, err)
		}
	}
	user, err := resolveUser(files["/etc/passwd"].String(), files["/etc/group"].String(), img.Config.User)
	if err != nil {
		return err
	}
	j.Marks.User = user
	return nil
}

// limited keeps the beginning of what a Sandbox prints.
type limited struct{ strings.Builder }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > accountFileMax {
		return 0, errors.New("an account file of the image is too large")
	}
	return l.Builder.Write(p)
}

// stopLeftovers ends what the bootstrap left running, so that the snapshot is of a root filesystem at rest.
func (b *Builder) stopLeftovers(ctx context.Context, set *redact.Set, c *agent.Client) (string, error) {
	procs, err := c.Processes(ctx)
	if err != nil {
		return "", err
	}
	if len(procs) == 0 {
		return "", nil
	}
	return leftovers(set, procs, "stopped"), c.KillAll(ctx, leftoverGrace)
}

func (b *Builder) snapshot(ctx context.Context, j *Job, img image.Image, box sandbox.ID, name string) (Base, error) {
	j.Track.Begin(wire.PhaseSnapshot)
	if err := b.engine.Stop(ctx, box, 0); err != nil {
		return Base{}, cause(ctx, err)
	}
	meta := Meta{
		Key: j.Marks.Key, Environment: j.Recipe.Environment, ImageDigest: img.Digest, Image: img.Config, User: j.Marks.User, Created: time.Now().UnixMilli(),
		ClaudeCode: j.Marks.ClaudeCode, Login: j.Marks.Login,
	}
	raw, err := json.Marshal(meta)
	if err != nil {
		return Base{}, err
	}
	if err := b.hold(ctx, heldByBuild+name, img.Digest); err != nil {
		return Base{}, err
	}
	s, err := b.engine.Snapshot(ctx, box, name, raw)
	if err != nil {
		return Base{}, errors.Join(cause(ctx, err), b.release(ctx, heldByBuild+name))
	}
	base, ok := withMeta(s)
	if !ok {
		return Base{}, errors.New("the engine lost what was kept with the snapshot")
	}
	b.lookThrough(ctx, j, s.Layers[len(s.Layers)-1])
	return base, errors.Join(b.finish(j, base), b.release(ctx, heldByBox+string(box)))
}

// finish marks the snapshot as done.
func (b *Builder) finish(j *Job, base Base) error {
	j.Marks.Base, j.Marks.Script, j.Marks.Boot, j.Marks.Rested, j.Marks.ClaudeCode, j.Marks.Login = base.Name, "", "", "", "", nil
	j.Marks.Key, j.Marks.ImageDigest = base.Meta.Key, base.Meta.ImageDigest
	j.Log.Mark("snapshot: kept as build %s", short(base.Meta.Key))
	j.Track.End(wire.PhaseSnapshot, "", nil)
	b.Use(base.Name, j.Recipe.Environment)
	return j.Save()
}

// cause prefers why ctx ended to the error that its end led to.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func short(key string) string { return key[:min(12, len(key))] }

func took(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	if d < 2*time.Minute {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
}
