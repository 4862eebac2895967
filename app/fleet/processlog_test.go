package fleet

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

func TestTheLogOfTheProcessHidesWhatTheGuardKnows(t *testing.T) {
	t.Parallel()
	const first, second = "only-in-the-log-1/a+b=c", "only-in-the-log-2/a+b=c" // other tests share the process
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	a := r.assign(runner, "s", 0)
	logs := func(value string) (hidden bool) {
		t.Helper()
		var out bytes.Buffer
		log := zerolog.New(redact.LogWriter(redact.Process, &out))
		log.Error().Err(fmt.Errorf("no such host: %s", value)).Str("url", "https://x?key="+url.QueryEscape(value)).Bytes("raw", []byte(value)).
			Msg("logged on purpose: " + base64.StdEncoding.EncodeToString([]byte(value)))
		var entry map[string]string
		if err := json.Unmarshal(out.Bytes(), &entry); err != nil || !strings.HasPrefix(entry["message"], "logged on purpose: ") {
			t.Fatalf("%s: %v", out.String(), err)
		}
		return !strings.Contains(out.String(), "only-in-the-log") && !strings.Contains(out.String(), base64.StdEncoding.EncodeToString([]byte(value))) &&
			strings.Count(out.String(), redact.Mask) == 4
	}
	if logs(first) {
		t.Fatal("a value that nobody has opened is masked")
	}
	r.knows("KEY", first)
	r.append(runner, a, 0, "x")
	if !logs(first) {
		t.Error("what was opened for an assignment stands in the log")
	}
	r.knows("KEY", second)
	r.clock.add(relearn)
	r.append(runner, a, 1, "y")
	if !logs(first) || !logs(second) {
		t.Error("what was opened for an assignment before or since stands in the log")
	}
	r.clock.add(guardRest + time.Minute)
	r.reap()
	if logs(first) {
		t.Error("the log keeps what the guard has freed")
	}
	r.append(runner, a, 2, "z")
	if !logs(first) || !logs(second) {
		t.Error("after a rest, what is known stands in the log")
	}
	r.write(func(tx *store.Tx) error { return r.Forget(tx, a.ID) })
	if logs(first) || logs(second) {
		t.Error("the log keeps the values of an assignment that is gone")
	}
	b := r.assign(runner, "t", 0)
	r.append(runner, b, 0, "x")
	if !logs(second) {
		t.Error("what was opened for an assignment stands in the log")
	}
	r.Stop()
	if logs(second) {
		t.Error("the log keeps the values of a Fleet that has stopped")
	}
}
