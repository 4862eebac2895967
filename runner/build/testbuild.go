package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/clone"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/sandbox"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// CleanTest gives up all that a Test build has on the host, its snapshot excepted. m is how far it came.
func (b *Builder) CleanTest(ctx context.Context, id string, m Marks) error {
	return errors.Join(b.ground(ctx, m), b.discard(ctx, testBox(id)))
}

// ground gives up a build that an earlier process of the Runner left half-made, unless it is under way for others by now.
func (b *Builder) ground(ctx context.Context, m Marks) error {
	if m.Key == "" || m.Script != BootstrapID && m.Rested == "" {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock() // held, so that none takes off in between
	if b.flights[m.Key] != nil {
		return nil
	}
	return b.discard(ctx, boxOf(m.Key))
}

func testBox(id string) sandbox.ID { return sandbox.ID("t-" + id) }

// Test runs a Test build: a fresh bootstrap, its snapshot, a clone of the default branch, and the start script in a
// Sandbox from that snapshot. It ends with nil, or an error that Explain puts in words; with ErrShutdown everything is
// left for the next process of the Runner. The rest is for CleanTest, once the caller has stored how it ended.
func (b *Builder) Test(ctx context.Context, j *Job, repo wire.Repo) error {
	base, err := b.tested(ctx, j)
	if err != nil {
		return err
	}
	spec, err := Spec(j.Recipe)
	if err != nil {
		return err
	}
	user := base.Meta.User
	disk := b.disk(testBox(j.ID), b.cfg.SessionDisk)
	if !j.Marks.Cloned {
		j.Track.Begin(wire.PhaseClone)
		m, err := b.engine.Mount(ctx, disk)
		if err != nil {
			return cause(ctx, err)
		}
		folder, _, err := PrepareFolders(m, false)
		if err != nil {
			return err
		}
		// Whole or not, no Sandbox has seen it: the mark is made before one boots.
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
		res, err := b.Clone(ctx, j.Log, j.Track, CloneJob{Repo: repo, Token: j.Token, Folder: folder, UID: m.IDBase + user.UID, GID: m.IDBase + user.GID})
		if err != nil {
			return cause(ctx, err)
		}
		j.Marks.Cloned, j.Marks.Commit, j.Marks.Branch = true, res.Commit, res.Branch
		j.Track.End(wire.PhaseClone, fmt.Sprintf("%s at %s", res.Branch, short(res.Commit)), nil)
		if err := j.Save(); err != nil {
			return err
		}
	}
	return b.start(ctx, j, spec, base, disk)
}

// tested is the snapshot that this Test build made, now or before the Runner's process was killed.
func (b *Builder) tested(ctx context.Context, j *Job) (Base, error) {
	if j.Marks.Base != "" {
		base, found, err := b.Named(ctx, j.Marks.Base)
		if err != nil || found {
			return base, err
		}
		return Base{}, fmt.Errorf("the snapshot of this Test build is gone from the Runner; start the Test build again")
	}
	if f := j.Marks.Failed; f != nil {
		return Base{}, &Failed{*f} // and killed since
	}
	spec, err := Spec(j.Recipe)
	if err != nil {
		return Base{}, err
	}
	if key := j.Marks.Key; key != "" && key != b.Key(spec, j.Marks.ImageDigest, j.Values) {
		// Killed in a build with other values than those of now.
		j.Log.Mark("a value that is available at build was changed meanwhile, so the bootstrap starts afresh")
		if err := b.ground(ctx, *j.Marks); err != nil {
			return Base{}, err
		}
		*j.Marks = Marks{ImageDigest: j.Marks.ImageDigest}
		j.Track.Drop(wire.PhaseDocker)
		j.Track.Drop(wire.PhaseBootstrap)
		j.Track.Drop(wire.PhaseSnapshot)
	}
	if j.Marks.Key == "" {
		// The name of the snapshot holds the key, which is known once the image is resolved.
		if _, err := b.pull(ctx, j, spec); err != nil {
			return Base{}, err
		}
	}
	for {
		base, err := b.fly(ctx, j, j.Marks.Key)
		if errors.Is(err, errGrounded) && ctx.Err() == nil {
			continue // it was given up by all others just as this one came
		}
		if err != nil {
			return base, err
		}
		j.Marks.Base, j.Marks.Script, j.Marks.Boot, j.Marks.Rested, j.Marks.ClaudeCode, j.Marks.Login = base.Name, "", "", "", "", nil
		return base, j.Save()
	}
}

// CloneJob is one clone of a Workspace.
type CloneJob struct {
	Repo       wire.Repo
	Token      TokenFunc // needed where Repo.Token is set
	Branch     string
	WorkBranch string
	Folder     string
	UID, GID   int // on the host
}

// Clone clones a Workspace, with git's words in the log and its progress in the Track.
func (b *Builder) Clone(ctx context.Context, log *Log, track *Track, c CloneJob) (clone.Result, error) {
	o := clone.Options{
		Folder: c.Folder, URL: c.Repo.CloneURL, Branch: c.Branch, WorkBranch: c.WorkBranch, UID: c.UID, GID: c.GID,
		Local: b.cfg.LocalRepos, Depth: b.cfg.CloneDepth, Env: b.cfg.CloneEnv,
		Progress: func(text string, percent int) {
			track.Set(wire.Progress{Text: text, Done: int64(percent), Total: 100})
		},
		Log: log.Line,
	}
	log.Begin("clone@" + time.Now().UTC().Format(time.RFC3339Nano))
	log.Mark("clone: %s", c.Repo.Name)
	if c.Repo.HostCredentials {
		cred, err := clone.FromHost(ctx, c.Repo.CloneURL)
		if err != nil {
			return clone.Result{}, err
		}
		if cred != nil {
			log.Set().Add("clone", []byte(cred.Password)) //nolint:errcheck // too short a password is no value to look for
			o.Credentials = cred
		}
	}
	clones := clone.Clone
	if c.Repo.Token {
		clones = c.Token.clone
	}
	res, err := clones(ctx, o)
	if err != nil {
		return res, err
	}
	log.Mark("clone: %s at %s", res.Branch, res.Commit)
	for _, n := range res.Notes {
		n = log.Text(n)
		log.Mark("clone: %s", n)
		track.Note(n)
	}
	return res, nil
}

// StartID is the id of the start script at its agent in a Test build.
const StartID = "start"

func (b *Builder) start(ctx context.Context, j *Job, spec envspec.Spec, base Base, disk sandbox.Disk) error {
	empty := strings.TrimSpace(spec.Start) == ""
	if !empty {
		j.Track.Begin(wire.PhaseStart)
	}
	limits, _ := b.Limits(spec)
	s, c, err := b.bootForTest(ctx, j, b.SandboxSpec(base, "test", disk, limits, spec), spec)
	if err != nil {
		return err
	}
	if empty {
		j.Track.Skip(wire.PhaseStart, "no start script")
		return nil
	}
	env := append(b.Env(WithCaches(base.Meta.Image), base.Meta.Login), j.Values.Env(false)...)
	cmd := Script(StartID, "start", spec.Start, env, WorkspaceGuest, base.Meta.Image.User)
	exit, err := b.RunScript(ctx, s, j.Log, wire.PhaseStart, j.Marks.Boot, cmd)
	if err != nil {
		return cause(ctx, err)
	}
	if f := ExitFailure(wire.PhaseStart, exit, limits.Memory, j.Log.Tail()); f != nil {
		j.Track.Fail(wire.PhaseStart, "", &exit.Code)
		return f
	}
	note := ""
	if procs, err := c.Processes(ctx); err == nil {
		note = leftovers(j.Log.Set(), besideDocker(spec, procs), "still running")
	}
	j.Log.Mark("start script: done in %s", took(j.Track.Since(wire.PhaseStart)))
	j.Track.End(wire.PhaseStart, j.Log.Text(note), &exit.Code)
	return nil
}

// bootForTest boots the Sandbox of the start script, or finds the one in which it was started. A script that its
// Sandbox lost is started again in a fresh one on the same clone: it must stand that, as it does at each wake.
func (b *Builder) bootForTest(ctx context.Context, j *Job, spec sandbox.Spec, env envspec.Spec) (sandbox.Sandbox, *agent.Client, error) {
	box := testBox(j.ID)
	if err := b.Room(ctx, box, spec.Limits); err != nil {
		return nil, nil, err
	}
	again := "its Sandbox is gone"
	if j.Marks.Script == StartID && !j.Values.Covers(j.Marks.Handed) {
		again = "a Sensitive value that its Sandbox has was replaced"
		if err := b.engine.Stop(ctx, box, 0); err != nil { // it may print what nobody knows any more
			return nil, nil, cause(ctx, err)
		}
	}
	s, err := b.engine.Start(ctx, box, spec)
	if err != nil {
		return nil, nil, cause(ctx, err)
	}
	c, h, err := Ready(ctx, s)
	if err != nil {
		return nil, nil, cause(ctx, err)
	}
	if j.Marks.Script == StartID && j.Marks.Boot == h.BootID {
		return s, c, nil
	}
	for _, problem := range h.Problems {
		j.Log.Mark("boot: %s", problem)
	}
	if err := b.Bind(ctx, c, j.Log, j.Track, env, withImage(spec), j.Marks.Script != StartID); err != nil {
		return nil, nil, err
	}
	if env.Docker {
		if err := b.DockerUp(ctx, c, withImage(spec)); err != nil {
			return nil, nil, err
		}
	}
	if j.Marks.Script == StartID {
		j.Log.Mark("start script: %s, so it starts again in a fresh one", again)
	}
	if j.Track.Phase(wire.PhaseStart).State != "" {
		j.Log.Mark("start script: starting in %s as %s", WorkspaceGuest, userWords(withImage(spec).User))
	} else {
		j.Log.Mark("start script: none; the Sandbox boots with the Workspace")
	}
	j.Marks.Script, j.Marks.Boot, j.Marks.Handed = StartID, h.BootID, j.Values.Handed(false)
	return s, c, j.Save()
}

func withImage(s sandbox.Spec) image.Config {
	b, _ := withMeta(s.Base)
	return b.Meta.Image
}

func userWords(user string) string {
	if user == "" {
		return "root"
	}
	return user
}
