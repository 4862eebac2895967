package cmd

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/claude-hub/claude-hub/handlers/api/client"
	"github.com/claude-hub/claude-hub/handlers/api/schema"
	"github.com/claude-hub/claude-hub/runner/wire"
)

// slowLog is a Hub with one Test build. Who waits for its log gets nothing before the end; who asks what there is gets it.
type slowLog struct {
	mu    sync.Mutex
	log   string
	asked int
	ended chan struct{}
}

func (h *slowLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/log") {
		if r.URL.Query().Get("wait") != "" {
			select {
			case <-h.ended:
			case <-r.Context().Done():
				return
			}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		from, err := strconv.Atoi(r.URL.Query().Get("from"))
		if err != nil || from > len(h.log) {
			http.Error(w, "no such offset", http.StatusBadRequest)
			return
		}
		to := min(from+7, len(h.log)) // parts are small
		for header, value := range map[string]int{schema.LogNext: to, schema.LogSize: len(h.log), schema.LogDropped: 0} {
			w.Header().Set(header, strconv.Itoa(value))
		}
		w.Header().Set(schema.LogEnded, strconv.FormatBool(h.asked > 2 && to == len(h.log)))
		io.WriteString(w, h.log[from:to]) //nolint:errcheck // the client says
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	t := schema.TestBuild{ID: "t", State: wire.StateRunning}
	t.Detail.Phases = []wire.Phase{{Name: wire.PhaseBootstrap, State: wire.PhaseRunning}}
	switch h.asked++; h.asked {
	case 1:
	case 2:
		h.log = "from the bootstrap\n"
		t.Detail.Phases = append(t.Detail.Phases, wire.Phase{Name: wire.PhaseClone, State: wire.PhaseRunning})
	case 3:
		h.log += "from the clone\n"
		t.Detail.Phases = append(t.Detail.Phases, wire.Phase{Name: wire.PhaseClone, State: wire.PhaseDone})
		t.State, t.Final = wire.StatePassed, true
		close(h.ended)
	}
	json.NewEncoder(w).Encode(t) //nolint:errcheck // the client says
}

func TestThePhaseOfATestBuildStandsBehindTheLogOfTheOneBefore(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&slowLog{ended: make(chan struct{})})
	defer server.Close()
	hub, err := client.New(server.URL, "token", nil)
	if err != nil {
		t.Fatal(err)
	}
	var both bytes.Buffer // phases and log are written by turns: one waits for what the other writes
	c := &cobra.Command{}
	c.SetContext(t.Context())
	c.SetOut(&both)
	c.SetErr(&both)
	end, err := followTest(c, hub, schema.Repo{ID: 1}, schema.TestBuild{ID: "t"}, true)
	if err != nil || end.State != wire.StatePassed {
		t.Fatalf("%+v, %v", end, err)
	}
	if want := "-- bootstrap\nfrom the bootstrap\n-- clone\nfrom the clone\n"; both.String() != want {
		t.Errorf("got\n%s\nwant\n%s", both.String(), want)
	}
}
