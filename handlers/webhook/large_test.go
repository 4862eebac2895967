package webhook_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/claude-hub/claude-hub/app/github/githubtest"
	"github.com/claude-hub/claude-hub/handlers/webhook"
	"github.com/claude-hub/claude-hub/store/storetest"
)

// Nobody needs GitHub's key to send a large body slowly, over and over.
func TestSlowSendersOfLargeBodiesDoNotKeepOthersOut(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), webhook.Options{})
	for range 12 {
		go func() {
			for t.Context().Err() == nil {
				drip(t, h.url)
			}
		}()
	}
	eventually(t, "slow senders have all places", func() bool { return h.LargeBodies() == 4 })
	large := `{"action":"synchronize","repository":{"id":7},"pull_request":{"number":1},"x":"` + strings.Repeat("x", 3<<20) + `"}`
	for i := range 2 {
		h.taken(t, "pull_request", fmt.Sprint("honest-", i), large)
	}
}

// drip sends as much as is read without a place, and then next to nothing, until it is answered.
func drip(t *testing.T, url string) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return // the test has ended
	}
	defer conn.Close()
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		_, _ = io.Copy(io.Discard, conn)
	}()
	_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: hub\r\nContent-Type: application/json\r\nX-Hub-Signature-256: sha256=%064d\r\nContent-Length: %d\r\n\r\n%s",
		0, 20<<20, strings.Repeat(" ", 1<<20))
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.Context().Done():
			return
		case <-tick.C:
			_, _ = conn.Write([]byte(" "))
		}
	}
}

// What is large takes longer than a slow one is waited for, and is taken.
func TestALargeBodyMayTakeItsTime(t *testing.T) {
	t.Parallel()
	h := newHub(t, storetest.New(t), webhook.Options{})
	payload := `{"action":"synchronize","repository":{"id":7},"pull_request":{"number":1},"x":"` + strings.Repeat("x", 4<<20) + `"}`
	read, write := io.Pipe()
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for rest := payload; rest != ""; <-tick.C {
			n := min(256<<10, len(rest))
			if _, err := io.WriteString(write, rest[:n]); err != nil {
				return // it was answered before its end
			}
			rest = rest[n:]
		}
		write.Close()
	}()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url, read)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = githubtest.Signed("pull_request", "g", secret, []byte(payload))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Errorf("a body of 4 MiB at 2.5 MiB a second is answered %d, want 202", resp.StatusCode)
	}
}
