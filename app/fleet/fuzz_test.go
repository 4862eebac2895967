package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// FuzzRequests gives a Runner's requests any content. Whatever comes: no panic, and no error but a refusal.
func FuzzRequests(f *testing.F) {
	for _, m := range []proto.Message{
		&wire.HelloRequest{Protocol: 1, Version: "\xff\x00", Capabilities: []string{"\x00"}, CpuLimit: -1},
		&wire.SyncRequest{Held: []*wire.Held{{Id: "a", Generation: 1, Fence: 1, IdleMs: -1 << 63}, {Id: "a", Generation: 1, Fence: 1, IdleMs: 1<<63 - 1}}},
		&wire.FetchRequest{Id: "a", Generation: 1, Fence: 1},
		&wire.ReportRequest{Id: "a", Fence: 1, Seq: 1, State: "x", Detail: []byte(`"\u0000"`)},
		&wire.AppendLogRequest{Id: "a", Fence: 1, Offset: 1<<63 - 1, Data: []byte("x"), Skipped: true},
		&wire.AppendLogRequest{Id: "a", Fence: 1, Offset: 1 << 62, Data: []byte("x"), Skipped: true},
		&wire.ExchangeRequest{Channel: "c", Assignment: "a", Fence: 1, InOffset: 1<<63 - 1, Out: []*wire.Piece{{Stream: 1, Offset: -1 << 63, Data: []byte("x")}, {Stream: -1}}, Ended: true, ExitJson: "{"},
	} {
		b, err := proto.Marshal(m)
		if err == nil {
			f.Add(b)
		}
	}
	db := storetest.New(f)
	fl := New(db, Options{})
	fl.Own(kind, quiet{})
	err := db.Write(context.Background(), func(tx *store.Tx) error {
		if _, err := tx.Exec(insertRunnerSQL, "r", "r1", hashToken("r"), "f", 1); err != nil {
			return err
		}
		_, err := fl.Assign(tx, Assignment{ID: "a", Runner: "r", Kind: kind, Subject: "s"})
		return err
	})
	if err == nil {
		_, err = fl.Hello(context.Background(), "r", hello(wire.Protocol))
	}
	if err == nil {
		_, err = fl.OpenChannel(context.Background(), "a", wire.ChannelSpec{})
	}
	if err != nil {
		f.Fatal(err)
	}
	fl.Stop() // nothing waits
	fl.channels.mu.Lock()
	for _, ch := range fl.channels.byID {
		ch.id = "c"
		fl.channels.byID["c"] = ch
	}
	fl.channels.mu.Unlock()
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(call string, err error) {
			for _, refusal := range []error{nil, ErrFenced, ErrUnknown, ErrStale, ErrHello, ErrInvalid} {
				if errors.Is(err, refusal) {
					return
				}
			}
			t.Errorf("%s: %v", call, err)
		}
		ctx := t.Context()
		if q := (&wire.HelloRequest{}); proto.Unmarshal(b, q) == nil {
			_, err := fl.Hello(ctx, "r", q)
			check("Hello", err)
		}
		if q := (&wire.SyncRequest{}); proto.Unmarshal(b, q) == nil {
			_, err := fl.Sync(ctx, "r", q)
			check("Sync", err)
		}
		if q := (&wire.FetchRequest{}); proto.Unmarshal(b, q) == nil {
			_, err := fl.Fetch(ctx, "r", q)
			check("Fetch", err)
		}
		if q := (&wire.ReportRequest{}); proto.Unmarshal(b, q) == nil {
			check("Report", fl.Report(ctx, "r", q))
		}
		if q := (&wire.AppendLogRequest{}); proto.Unmarshal(b, q) == nil {
			_, err := fl.AppendLog(ctx, "r", q)
			check("AppendLog", err)
			if err == nil {
				part, err := fl.ReadLog(ctx, "a", q.GetOffset(), 100)
				check("ReadLog", err)
				if part.Dropped < 0 || part.End < 0 {
					t.Errorf("%+v", part)
				}
			}
		}
		if q := (&wire.ExchangeRequest{}); proto.Unmarshal(b, q) == nil {
			_, err := fl.Exchange(ctx, "r", q)
			check("Exchange", err)
		}
	})
}

type quiet struct{}

func (quiet) Values(context.Context, *store.Tx, Assignment) ([]*wire.Value, string, error) {
	return nil, "", nil
}
func (quiet) Payload(context.Context, *store.Tx, Assignment) ([]byte, error) { return nil, nil }
func (quiet) Observe(context.Context, *store.Tx, Assignment, Report) error   { return nil }
func (quiet) Lost(context.Context, *store.Tx, Assignment) error              { return nil }

// FuzzMaskedReport: a report's detail that is JSON stays JSON, and no string of it holds the value.
func FuzzMaskedReport(f *testing.F) {
	f.Add(`{"a":"x secret-value y","a":"secret\u002dvalue"}`, "secret-value")
	f.Add(`["\\\"secret", {"secret-value\"":1e5}]`, `secret-value"`)
	f.Add(`"\ud800 secret-value"`, "\ufffd secret-value")
	f.Fuzz(func(t *testing.T, doc, value string) {
		set := new(redact.Set)
		if !json.Valid([]byte(doc)) || len(value) > 200 || set.Add("V", []byte(value)) != nil {
			return
		}
		masked, _, _ := hideJSON(set, []byte(doc))
		if !json.Valid(masked) {
			t.Fatalf("%q became %q", doc, masked)
		}
		if strings.ContainsRune(value, '*') {
			return
		}
		var walk func(v any)
		walk = func(v any) {
			switch v := v.(type) {
			case string:
				if strings.Contains(v, value) {
					t.Fatalf("%q is left in %q", value, v)
				}
			case []any:
				for _, e := range v {
					walk(e)
				}
			case map[string]any:
				for k, e := range v {
					walk(k)
					walk(e)
				}
			}
		}
		var all any
		if json.Unmarshal(masked, &all) == nil {
			walk(all)
		}
	})
}
