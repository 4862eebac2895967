package storm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/runner/wire/wireconnect"
)

// quick is a Runner that passes every Test build at once, over the real protocol: what is tried here is the Hub. It notes how
// often it was given each, and outlives the Hub as a Runner does.
type quick struct {
	rpc wireconnect.RunnerServiceClient

	mu    sync.Mutex
	given map[string]bool // assignments that it was to run
	seq   int64
}

func newQuick(t *testing.T, url, registration, name string) *quick {
	t.Helper()
	_, token, err := hubclient.Register(t.Context(), nil, url, registration, name)
	if err != nil {
		t.Fatal(err)
	}
	auth := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			req.Header().Set("Authorization", "Bearer "+token)
			return next(ctx, req)
		}
	})
	q := &quick{rpc: wireconnect.NewRunnerServiceClient(hubclient.NewHTTP(), url, connect.WithInterceptors(auth)), given: map[string]bool{}, seq: time.Now().UnixMilli()}
	if err := q.hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { q.run(ctx) })
	t.Cleanup(func() { stop(); done.Wait() })
	return q
}

func (q *quick) hello(ctx context.Context) error {
	_, err := q.rpc.Hello(ctx, &wire.HelloRequest{
		Protocol: wire.Protocol, Version: "storm", Platform: "linux/amd64", Engine: "none", CpuLimit: 4, MemoryLimit: 8 << 30, Instance: "1",
	})
	return err
}

func (q *quick) run(ctx context.Context) {
	revision := ""
	for ctx.Err() == nil {
		answer, err := q.rpc.Sync(ctx, &wire.SyncRequest{Revision: revision, WaitMs: 5000})
		if err != nil { // the Hub was killed; a new one wants to know who this is
			revision = ""
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			_ = q.hello(ctx) // tried again with the next turn
			continue
		}
		revision = answer.GetRevision()
		for _, item := range answer.GetItems() {
			if q.act(ctx, item) != nil { // the next list has it still
				revision = ""
			}
		}
	}
}

func (q *quick) act(ctx context.Context, item *wire.Item) error {
	switch item.GetWant() {
	case wire.WantRun:
		q.mu.Lock()
		q.given[item.GetId()] = true
		q.mu.Unlock()
		key := sha256.Sum256([]byte(item.GetId()))
		hash := hex.EncodeToString(key[:])
		return q.report(ctx, item, wire.StatePassed, wire.TestBuildDetail{ImageDigest: "sha256:" + hash, BuildKey: hash})
	case wire.WantStop:
		return q.report(ctx, item, wire.StateCancelled, wire.TestBuildDetail{})
	}
	return q.report(ctx, item, wire.StateRemoved, wire.TestBuildDetail{})
}

func (q *quick) report(ctx context.Context, item *wire.Item, state string, detail any) error {
	b, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	q.mu.Lock()
	q.seq++
	seq := q.seq
	q.mu.Unlock()
	_, err = q.rpc.Report(ctx, &wire.ReportRequest{
		Id: item.GetId(), Fence: item.GetFence(), Generation: item.GetGeneration(), Seq: seq, State: state, Detail: b,
	})
	return err
}

// ran is how many Test builds it was given.
func (q *quick) ran() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.given)
}
