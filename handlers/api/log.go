package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/handlers/request"
)

// logPart is how much of a log one answer carries.
const logPart = 1 << 20

func (a *api) testLog(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["test"]
	test, err := a.Environments.TestBuild(r.Context(), g, id)
	if err != nil {
		return err
	}
	return a.log(w, r, a.Environments.LogTopic(test), func(ctx context.Context, from int64) (fleet.LogPart, error) {
		return a.Environments.Follow(ctx, g, id, from, logPart)
	})
}

func (a *api) sessionLog(w http.ResponseWriter, r *http.Request, g access.Grant) error {
	id := mux.Vars(r)["session"]
	sn, err := a.Sessions.Get(r.Context(), g, id)
	if err != nil {
		return err
	}
	return a.log(w, r, a.Sessions.LogTopic(sn), func(ctx context.Context, from int64) (fleet.LogPart, error) {
		return a.Sessions.Log(ctx, g, id, from, logPart)
	})
}

// log answers the first stretch of bytes at or after ?from=, once there is one, the log has ended or ?wait= is over.
func (a *api) log(w http.ResponseWriter, r *http.Request, topic string, read func(context.Context, int64) (fleet.LogPart, error)) error {
	var from int64
	if s := r.URL.Query().Get("from"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return fault.Field("from", "“from” is a byte offset, 0 or more.")
		}
		from = n
	}
	timer := time.NewTimer(request.Wait(r))
	defer timer.Stop()
	over := request.Wait(r) == 0
	for {
		changed := a.Changes.Changed(topic)
		part, err := read(r.Context(), from)
		if err != nil {
			return err
		}
		if part.Next > from || part.Ended || over {
			writeLog(w, from, part)
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			over = true
		case <-a.Stopping:
			over = true
		case <-r.Context().Done():
			return nil
		}
	}
}

func writeLog(w http.ResponseWriter, from int64, part fleet.LogPart) {
	next, dropped := part.Next, part.Next-from
	var body []byte
	if len(part.Chunks) > 0 {
		c := part.Chunks[0]
		body, dropped, next = c.Data, c.Offset-from, c.Offset+int64(len(c.Data))
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set(schema.LogNext, strconv.FormatInt(next, 10))
	h.Set(schema.LogSize, strconv.FormatInt(part.End, 10))
	h.Set(schema.LogDropped, strconv.FormatInt(dropped, 10))
	h.Set(schema.LogEnded, strconv.FormatBool(part.Ended && next >= part.End))
	_, _ = w.Write(body)
}
