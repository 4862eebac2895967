package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/image"
	"github.com/claude-hub/claude-hub/runner/sandbox"
)

// What a Session has on its disk beside its root filesystem (ADR 0006): the Workspace, the dependency folders that are bound
// over folders of it, and package caches. They outlive every Sandbox, and are folders of one Store, so that a folder can be moved
// from one to the other at once.
const (
	storeFolder       = "session"
	workspaceName     = "workspace"
	dependenciesName  = "dependencies"
	cacheName         = "cache"
	earlierFolder     = workspaceName // where the Workspace was before there was a Store
	WorkspaceFolder   = storeFolder + "/" + workspaceName
	WorkspaceGuest    = "/workspace"
	cacheFolder       = storeFolder + "/" + cacheName
	cacheGuest        = "/var/cache/claude-hub" // without a dot, see ADR 0006
	maxFoldersInWords = 12
)

// caches have tools keep what they download where it outlives the Sandbox. Each names what holds caches and nothing else: no
// settings, and no programs that are installed. Many more tools go by XDG_CACHE_HOME.
var caches = []string{
	"XDG_CACHE_HOME=" + cacheGuest,
	"npm_config_cache=" + cacheGuest + "/npm",
	"pnpm_config_store_dir=" + cacheGuest + "/pnpm-store", // from pnpm 11 on; as npm_config_store_dir, npm would warn of it each time
	"BUN_INSTALL_CACHE_DIR=" + cacheGuest + "/bun",
	"PIP_CACHE_DIR=" + cacheGuest + "/pip",
	"UV_CACHE_DIR=" + cacheGuest + "/uv",
	"UV_LINK_MODE=copy", // no file can be linked from one bound folder to another, which uv would warn of each time
	"GOCACHE=" + cacheGuest + "/go-build",
	"GOMODCACHE=" + cacheGuest + "/go-mod",
	"COMPOSER_CACHE_DIR=" + cacheGuest + "/composer",
	"NUGET_PACKAGES=" + cacheGuest + "/nuget",
}

// WithCaches is what an image's user has in Sandboxes with a Workspace: where to keep caches, unless the image says otherwise. What a
// login shell says, and Variables, go over it.
func WithCaches(img image.Config) image.Config {
	named := map[string]bool{}
	for _, e := range img.Env {
		n, _, _ := strings.Cut(e, "=")
		named[n] = true
	}
	img.Env = slices.Clone(img.Env)
	for _, e := range caches {
		if n, _, _ := strings.Cut(e, "="); !named[n] {
			img.Env = append(img.Env, e)
		}
	}
	return img
}

// SandboxSpec is the Spec of a Sandbox with a Workspace, for the image's user.
func (b *Builder) SandboxSpec(base Base, hostname string, disk sandbox.Disk, limits sandbox.Limits, env envspec.Spec) sandbox.Spec {
	user := base.Meta.User
	return withDocker(sandbox.Spec{
		Base: base.Base, Hostname: hostname, Disk: disk, Limits: limits, Store: &sandbox.Store{Folder: storeFolder, Own: dependenciesName},
		Binds: append([]sandbox.Bind{
			{Folder: WorkspaceFolder, Guest: WorkspaceGuest, UID: user.UID, GID: user.GID},
			{Folder: cacheFolder, Guest: cacheGuest, UID: user.UID, GID: user.GID},
		}, b.cfg.Binds...),
	}, env.Docker)
}

// PrepareFolders makes a mounted disk, which no Sandbox uses now, ready for the Workspace and what is beside it, and gives the
// Workspace's path, whether it is there or not. had says that dependency folders and caches were there before: what is lost or damaged of
// them is made anew at the boot, and comes back in a sentence for each.
func PrepareFolders(m sandbox.Mounted, had bool) (workspace string, lost []string, err error) {
	store := filepath.Join(m.Folder, storeFolder)
	if err := os.Mkdir(store, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", nil, err
	}
	workspace = filepath.Join(m.Folder, WorkspaceFolder)
	if _, err := os.Lstat(workspace); errors.Is(err, os.ErrNotExist) {
		err := os.Rename(filepath.Join(m.Folder, earlierFolder), workspace)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", nil, err
		}
	}
	for _, f := range []struct{ name, words string }{
		{dependenciesName, "the dependency folders on this Session's disk"}, {cacheName, "the package caches on this Session's disk"},
	} {
		path := filepath.Join(store, f.name)
		switch err := readable(path); {
		case err == nil:
		case errors.Is(err, os.ErrNotExist):
			if had {
				lost = append(lost, f.words+" were lost, and are made anew")
			}
		default:
			if rerr := makeWay(path); rerr != nil {
				return "", nil, errors.Join(err, rerr)
			}
			lost = append(lost, f.words+" were damaged, and are made anew")
		}
	}
	return workspace, lost, nil
}

// KeptWhenArchived are the folders of a Session's disk that an archived Session keeps of it, though all else is given up: the Workspace,
// wherever a version of claude-hub had it.
func KeptWhenArchived() []string { return []string{WorkspaceFolder, earlierFolder} }

// makeWay takes away what is in a folder's place. A damaged folder is not deleted, which may need just what is damaged in it.
func makeWay(path string) error {
	if fi, err := os.Lstat(path); err == nil && !fi.IsDir() {
		return os.Remove(path)
	}
	return os.Rename(path, fmt.Sprintf("%s-damaged-%d", path, time.Now().UnixNano()))
}

// readable says whether a folder of the Store is one and can be listed. Its name is the host's, so there is no link to follow.
func readable(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return errors.New("it is no folder")
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Readdirnames(1); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// DependencyFolders is what the agent of a SandboxSpec's Sandbox is to bind for an Environment. cloned: nothing has run in the Workspace
// since it was cloned.
func DependencyFolders(spec envspec.Spec, img image.Config, cloned bool) agent.Folders {
	f := agent.Folders{Cloned: cloned, User: img.User, Guest: WorkspaceGuest, Workspace: workspaceName, Own: dependenciesName}
	for _, p := range spec.DependencyFolders() {
		f.Patterns = append(f.Patterns, agent.Pattern{Pattern: p.Pattern, Beside: p.Beside})
	}
	return f
}

// Bind has the agent bind the Workspace's dependency folders, before anything else runs in the Sandbox. It says what became of them
// in the log. Nothing of it stops a boot: what can't be bound stays in the Workspace, and is noted. cloned is as for DependencyFolders. The only error is that ctx ended.
func (b *Builder) Bind(ctx context.Context, c *agent.Client, log *Log, track *Track, spec envspec.Spec, img image.Config, cloned bool) error {
	got, err := c.Bind(ctx, DependencyFolders(spec, img, cloned))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	complain := func(format string, a ...any) {
		s := fmt.Sprintf(format, a...)
		log.Mark("boot: %s", s)
		track.Note(log.Text(s))
	}
	if err != nil {
		complain("dependency folders stay in the Workspace: %v", err)
		return nil
	}
	said := map[string][]string{}
	for _, x := range got.Folders {
		p := shown(x.Path)
		switch x.State {
		case agent.BoundAgain, agent.BoundNew, agent.BoundMoved:
			said["bound"] = append(said["bound"], p)
			if x.State == agent.BoundMoved {
				said[x.State] = append(said[x.State], p)
			}
		case agent.NotBound:
			complain("the dependency folder %s stays in the Workspace: %s", p, x.Err)
		case agent.LeftAlone, agent.Returned:
			said[x.State] = append(said[x.State], p)
		}
	}
	for _, s := range []struct{ state, words string }{
		{"bound", "dependency folders on the Session's disk: %s"},
		{agent.BoundMoved, "what these had in the Workspace was moved onto the disk: %s"},
		{agent.Returned, "what the disk had of these is in the Workspace again, since they are dependency folders no more: %s"},
		{agent.LeftAlone, "dependency folders that git keeps files in stay in the Workspace: %s"},
	} {
		if all := said[s.state]; len(all) > 0 {
			log.Mark("boot: "+s.words, inWords(all))
		}
	}
	for _, p := range got.Problems {
		complain("%s", p)
	}
	return nil
}

func inWords(all []string) string {
	if more := len(all) - maxFoldersInWords; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxFoldersInWords], ", "), more)
	}
	return strings.Join(all, ", ")
}

// shown is a path in a sentence: as it is unless it would be taken for something else.
func shown(path string) string {
	if q := strconv.Quote(path); q != `"`+path+`"` || strings.ContainsAny(path, ", ") {
		return q
	}
	return path
}
