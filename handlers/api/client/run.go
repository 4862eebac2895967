package client

import (
	"context"
	"net/http"

	"github.com/claude-hub/claude-hub/handlers/api/schema"
)

// RunLog is what a headless run printed, both its streams. It ends with the run.
func RunLog(repo int64, session, run string) Log {
	return Log{repoPath(repo, "sessions", session, "runs", run, "log")}
}

// Runs lists a Session's, newest first.
func (c *Client) Runs(ctx context.Context, repo int64, session string) (list []schema.Run, err error) {
	_, err = c.do(ctx, get(repoPath(repo, "sessions", session, "runs")), &list)
	return list, err
}

// StartRun starts one. A Session that sleeps is woken.
func (c *Client) StartRun(ctx context.Context, repo int64, session string, in schema.StartRun) (r schema.Run, err error) {
	_, err = c.do(ctx, post(repoPath(repo, "sessions", session, "runs"), in), &r)
	return r, err
}

// StopRun has a run's process ended. One that has ended is no error.
func (c *Client) StopRun(ctx context.Context, repo int64, session, run string) (r schema.Run, err error) {
	q := post(repoPath(repo, "sessions", session, "runs", run, "stop"), nil)
	q.repeatable = true
	_, err = c.do(ctx, q, &r)
	return r, err
}

// WaitRun returns the run once it has ended.
func (c *Client) WaitRun(ctx context.Context, repo int64, session, run string) (schema.Run, error) {
	w := Wait{For: pollTime}
	for {
		var r schema.Run
		a, err := c.do(ctx, w.on(get(repoPath(repo, "sessions", session, "runs", run))), &r)
		if err != nil {
			return r, err
		}
		w.Seen = a.header.Get("ETag")
		if a.status == http.StatusOK && r.Exit != nil {
			return r, nil
		}
	}
}
