package runnerapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fleet"
	"github.com/claude-hub/claude-hub/handlers/runnerapi"
	"github.com/claude-hub/claude-hub/runner/hubclient"
	"github.com/claude-hub/claude-hub/runner/spool"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// BenchmarkLog takes a build's log of 200 MB from the Runner's spool over HTTP into the store, with the most heap in use
// meanwhile (issue 2: at least 20 MB/s and at most 64 MB on SQLite).
func BenchmarkLog(b *testing.B) {
	for _, database := range []struct {
		name string
		url  func(testing.TB) string
	}{{"sqlite", storetest.SQLite}, {"postgres", storetest.PostgreSQL}} {
		b.Run(database.name, func(b *testing.B) {
			db := storetest.Open(b, database.url(b))
			f := fleet.New(db, fleet.Options{LogLimit: 1 << 40})
			f.Own(kind, &owner{})
			server := httptest.NewServer(handler(f))
			defer server.Close()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			invite, _, err := f.NewRegistration(ctx, "b")
			if err != nil {
				b.Fatal(err)
			}
			id, token, err := hubclient.Register(ctx, nil, server.URL, invite, "r1")
			if err != nil {
				b.Fatal(err)
			}
			s, err := spool.Open(b.TempDir(), spool.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			client := hubclient.New(hubclient.Options{URL: server.URL, Token: token, Spool: s, Hello: func() *wire.HelloRequest { return &wire.HelloRequest{} }})
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = client.Run(ctx, held{}, func([]*wire.Item, []*wire.Channel) {}) // ends with cancel
			}()
			defer func() { cancel(); <-done }()
			const total, size = 200_000_000, 32 << 10
			line := "[  123/9000] CC src/module_7/file_00a1.c -O2 -o build/obj/0badcafe.o 17 ms\n"
			chunk := redacted(strings.Repeat(line, size/len(line)))
			b.SetBytes(total)
			var most uint64
			b.ResetTimer()
			for n := range b.N {
				var a fleet.Assignment
				err := db.Write(ctx, func(tx *store.Tx) (err error) {
					a, err = f.Assign(tx, fleet.Assignment{Runner: id, Kind: kind, Subject: fmt.Sprint(n)})
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
				st, err := s.Stream(a.ID, 1)
				if err != nil {
					b.Fatal(err)
				}
				w := st.Writer("p")
				for sent := int64(0); sent < total; sent += int64(chunk.Len()) {
					if err := w.Append(chunk, sent); err != nil {
						b.Fatal(err)
					}
					if sent>>20 != (sent+int64(chunk.Len()))>>20 {
						var m runtime.MemStats
						runtime.ReadMemStats(&m)
						most = max(most, m.HeapInuse)
					}
				}
				wait, stop := context.WithTimeout(ctx, 5*time.Minute)
				if err := client.Flush(wait); err != nil {
					b.Fatal(err)
				}
				stop()
			}
			b.ReportMetric(float64(most)/1e6, "MB-heap")
		})
	}
}

type held struct{}

func (held) Held() []*wire.Held { return nil }
func (held) Disk() *wire.Disk   { return nil }

func handler(f *fleet.Fleet) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(runnerapi.New(f, zerolog.Nop()))
	return mux
}
