package build

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/runner/agent"
	"github.com/claude-hub/claude-hub/runner/claudecode"
	"github.com/claude-hub/claude-hub/runner/image"
)

// withClaudeCode has the build of Claude Code that the image needs on this host, where its Sandbox sees it, before the bootstrap. What
// can't be had is one line in the log: the build goes on without it, and Sandboxes on it try again.
func (b *Builder) withClaudeCode(ctx context.Context, j *Job, c *agent.Client) error {
	if b.cfg.ClaudeCode == nil {
		return nil
	}
	said, _, err := b.tell(ctx, c, "libc", claudecode.Detect, nil)
	if err != nil {
		return cause(ctx, err)
	}
	j.Marks.ClaudeCode = claudecode.Build(said)
	if j.Marks.ClaudeCode == "" {
		j.Log.Mark("Claude Code: left out, since the image has neither glibc nor musl")
		return nil
	}
	b.FetchClaudeCode(ctx, j.Log, j.Marks.ClaudeCode)
	return cause(ctx, ctx.Err())
}

// FetchClaudeCode gets what Sandboxes on a build with that Meta.ClaudeCode are to have, if it isn't there yet. They see it once it is.
// That it can't be had is one line in the log.
func (b *Builder) FetchClaudeCode(ctx context.Context, log *Log, name string) {
	s := b.cfg.ClaudeCode
	if s == nil || name == "" || s.Has(name) {
		return
	}
	log.Mark("Claude Code: fetching version %s for %s", s.Version(), name)
	if err := s.Get(ctx, name); err != nil && ctx.Err() == nil {
		log.Mark("Claude Code: version %s is left out for now: %v", s.Version(), err)
		b.cfg.Log.Warn().Err(err).Str("build", name).Msg("Claude Code can't be had")
	}
}

// linkClaudeCode puts Claude Code on PATH after the bootstrap, which may have brought its own.
func (b *Builder) linkClaudeCode(ctx context.Context, j *Job, c *agent.Client, img image.Image) error {
	if b.cfg.ClaudeCode == nil || j.Marks.ClaudeCode == "" {
		return nil
	}
	said, code, err := b.tell(ctx, c, "claude-code", claudecode.Link(j.Marks.ClaudeCode), b.Env(img.Config, nil))
	switch {
	case err != nil:
		return cause(ctx, err)
	case code != 0:
		j.Log.Mark("Claude Code: it could not be linked to /usr/local/bin/claude; run it as %s/%s/claude", claudecode.Guest, j.Marks.ClaudeCode)
	case strings.TrimSpace(said) == "own":
		j.Log.Mark("Claude Code: the image's own claude is left as it is")
	default:
		j.Log.Mark("Claude Code: version %s for %s is /usr/local/bin/claude", b.cfg.ClaudeCode.Version(), j.Marks.ClaudeCode)
	}
	return nil
}

// bootstrapPath lets a bootstrap call claude, after all that the image has.
func (b *Builder) bootstrapPath(j *Job, env []string) []string {
	if b.cfg.ClaudeCode == nil || j.Marks.ClaudeCode == "" {
		return env
	}
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	return append(slices.Clip(env), "PATH="+path+":"+claudecode.Guest+"/"+j.Marks.ClaudeCode)
}

// tell runs a short script of claude-hub's own as root, and gives what it printed.
func (b *Builder) tell(ctx context.Context, c *agent.Client, name, body string, env []string) (string, int, error) {
	w := &limited{}
	cmd := agent.Cmd{ID: fmt.Sprintf("%s-%d", name, time.Now().UnixNano()), User: "0", Env: env, Script: &agent.Script{Name: name, Body: []byte(body)}}
	exit, err := c.Run(ctx, cmd, w, nil)
	return w.String(), exit.Code, err
}
