package fleet

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/fault"
	canary "github.com/claude-hub/claude-hub/e2e/canary/forms"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const secret = "correct-horse/battery+staple"

func sensitive(pairs ...string) (all []*wire.Value) {
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, &wire.Value{Name: pairs[i], Value: []byte(pairs[i+1]), Id: pairs[i+1], Sensitive: true})
	}
	return all
}

// knows has the Owner name these Sensitive values from now on.
func (r *rig) knows(pairs ...string) {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	r.owner.values = sensitive(pairs...)
}

// audited is the details of the entries about what was sent.
func (r *rig) audited() (all []string) {
	r.t.Helper()
	err := r.db.Read(r.t.Context(), func(tx *store.Tx) (err error) {
		all, err = store.All(tx, store.Scan1[string], `SELECT detail FROM audit_log WHERE action = 'runner.sent-value' ORDER BY at, id`)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// masked is s with asterisks for each of the parts.
func masked(s string, parts ...string) string {
	for _, p := range parts {
		b := []byte(p)
		fill(b)
		s = strings.ReplaceAll(s, p, string(b))
	}
	return s
}

func TestASensitiveValueInALogIsMaskedWithItsLengthWhereverItIsCut(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, Options{})
		r.knows("KEY", secret)
		runner := r.runner("r1")
		log := "before " + secret + " between\n" + hex.EncodeToString([]byte(secret)) + " after\n"
		want := masked(log, secret, hex.EncodeToString([]byte(secret)))
		for cut := 0; cut <= len(log); cut += 3 {
			a := r.assign(runner, fmt.Sprint(cut), 0)
			r.append(runner, a, 0, log[:cut])
			if next := r.append(runner, a, int64(cut), log[cut:], "end"); next != int64(len(log)) {
				t.Fatalf("offsets moved: %d of %d", next, len(log))
			}
			if got, part := r.readAll(a.ID, 20); got != want || part.Dropped != 0 {
				t.Fatalf("cut at %d:\n%q, want\n%q", cut, got, want)
			}
		}
		a := r.assign(runner, "bytes", 0)
		for i := range len(log) {
			r.append(runner, a, int64(max(0, i-3)), log[max(0, i-3):i+1]) // each with some that came before
		}
		if got, _ := r.readAll(a.ID, 1000); got != want {
			t.Fatalf("byte by byte: %q", got)
		}
	})
}

func TestRandomLogsInRandomPiecesAreMaskedLikeTheWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	hidden := 0
	for round := range 150 {
		rng := rand.New(rand.NewPCG(uint64(round), 3))
		random := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = "ab \n"[rng.IntN(2+rng.IntN(3))]
			}
			return string(b)
		}
		values := []string{random(4) + "aabbab" + random(300), "bbaabbaabb", "abababab" + random(10)}
		r.knows("A", values[0], "B", values[1], "C", values[2])
		set := new(redact.Set)
		var log strings.Builder
		for i, v := range values {
			if err := set.Add(fmt.Sprint(i), []byte(v)); err != nil {
				t.Fatal(err)
			}
		}
		for log.Len() < 3000 {
			v := values[rng.IntN(3)]
			log.WriteString(random(rng.IntN(40)) + v[rng.IntN(3):] + v[:rng.IntN(len(v))])
		}
		whole := []byte(log.String())
		want, n, _ := hide(set, whole)
		hidden += n
		a := r.assign(runner, fmt.Sprint(round), 0)
		for at := 0; at < len(whole); {
			to := min(at+1+rng.IntN(700), len(whole))
			r.append(runner, a, int64(at), string(whole[at:to]))
			at = to
		}
		if got, _ := r.readAll(a.ID, 1<<20); got != string(want) {
			t.Fatalf("round %d:\n%q, want\n%q", round, got, want)
		}
	}
	if hidden < 300 {
		t.Errorf("only %d occurrences: the test tests little", hidden)
	}
}

func TestALongValueAKeyAndATokenAreMaskedAcrossPieces(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	rng := rand.New(rand.NewPCG(1, 1))
	noise := make([]byte, 40_000)
	for i := range noise {
		noise[i] = byte(rng.UintN(256))
	}
	long := base64.StdEncoding.EncodeToString(noise)
	r.knows("LONG", long)
	var key strings.Builder
	for i := range 60 {
		fmt.Fprintf(&key, "%s\n", base64.StdEncoding.EncodeToString(noise[i*48:i*48+48]))
	}
	pem := "-----BEGIN PRIVATE KEY" + "-----\n" + key.String() + "-----END PRIVATE KEY" + "-----"
	token := "ghs_" + strings.Repeat("aB3d", 12)
	for name, s := range map[string]string{"value": long, "key": pem, "token": token} {
		for _, cut := range []int{8, len(s) / 3, len(s) / 2, len(s) - 9} {
			if name == "token" && cut < len(s)/2 {
				continue // of which less than a token was stored
			}
			a := r.assign(runner, fmt.Sprint(name, cut), 0)
			r.append(runner, a, 0, "begins: "+s[:cut])
			r.append(runner, a, int64(8+cut), s[cut:]+"!\n")
			got, _ := r.readAll(a.ID, 1<<20)
			left := strings.NewReplacer("*", "", "\n", "").Replace(got)
			if left != "begins: !" || len(got) != len(s)+10 {
				t.Errorf("%s cut at %d of %d: %d bytes with %.200q", name, cut, len(s), len(got), left)
			}
		}
	}
}

func TestOldValuesStayMaskedAndNewOnesAreFromWhenTheyAreServed(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	a := r.assign(runner, "s", 0)
	serve := func(want string) {
		t.Helper()
		res, err := r.Values(t.Context(), runner, &wire.ValuesRequest{Id: a.ID, Generation: a.Generation, Fence: a.Fence})
		if err != nil || string(res.GetValues()[0].GetValue()) != want {
			t.Fatalf("%v %v", res, err)
		}
	}
	r.knows("KEY", "the-first-value")
	serve("the-first-value")
	log := "the-first-value the-second-value the-third-value "
	next := r.append(runner, a, 0, log)
	r.knows("KEY", "the-second-value")
	serve("the-second-value")
	next = r.append(runner, a, next, log) // what came just before is looked at again
	r.knows("KEY", "the-third-value")     // served by another Hub, if at all: this one asks after a while
	next = r.append(runner, a, next, log)
	r.clock.add(relearn)
	r.append(runner, a, next, log)
	want := masked(log+log+log+log, "the-first-value", "the-second-value", "the-third-value")
	if got, _ := r.readAll(a.ID, 1<<20); got != want {
		t.Errorf("%q", got)
	}
}

func TestAHubThatWasJustStartedKnowsTheValuesAndWhatCameBefore(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	r := newRig(t, db, Options{})
	runner := r.runner("r1")
	a := r.assign(runner, "s", 0)
	r.knows("KEY", secret)
	log := "x " + secret + " y " + secret
	r.append(runner, a, 0, log[:12])
	again := New(db, Options{})
	again.Own(kind, r.owner)
	if _, err := again.AppendLog(t.Context(), runner, &wire.AppendLogRequest{Id: a.ID, Fence: a.Fence, Offset: 12, Data: []byte(log[12:])}); err != nil {
		t.Fatal(err)
	}
	if got, _ := r.readAll(a.ID, 1<<20); got != masked(log, secret) {
		t.Errorf("%q", got)
	}
}

func TestWhereOneValueIsMissingARunnerGetsNoneAndTheOthersStayMasked(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	r := newRig(t, db, Options{})
	runner := r.runner("r1")
	a := r.assign(runner, "s", 0)
	r.knows("KEY", secret)
	r.owner.refused = "OTHER has no value"
	again := New(db, Options{}) // a Hub that served none of them
	again.Own(kind, r.owner)
	res, err := again.Values(t.Context(), runner, &wire.ValuesRequest{Id: a.ID, Generation: a.Generation, Fence: a.Fence})
	if err != nil || len(res.GetValues()) != 0 || res.GetRefused() != "OTHER has no value" {
		t.Errorf("%d values, refused %q, %v", len(res.GetValues()), res.GetRefused(), err)
	}
	if _, err := again.AppendLog(t.Context(), runner, &wire.AppendLogRequest{Id: a.ID, Fence: a.Fence, Data: []byte("x " + secret)}); err != nil {
		t.Fatal(err)
	}
	if got, _ := r.readAll(a.ID, 1<<20); got != masked("x "+secret, secret) {
		t.Errorf("%q", got)
	}
}

func TestARunnerGetsNoValuesForWhatShouldNotRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	a := r.assign(runner, "s", 0)
	r.knows("KEY", secret)
	ask := func() (int, error) {
		now := r.get(a.ID)
		res, err := r.Values(t.Context(), runner, &wire.ValuesRequest{Id: a.ID, Generation: now.Generation, Fence: now.Fence})
		return len(res.GetValues()), err
	}
	if n, err := ask(); n != 1 || err != nil {
		t.Fatalf("while it runs: %d, %v", n, err)
	}
	for _, want := range []Want{Stop, Remove} {
		r.write(func(tx *store.Tx) error {
			_, err := r.Change(tx, a.ID, want, time.Time{})
			return err
		})
		if n, err := ask(); n != 0 || !errors.Is(err, ErrStale) {
			t.Errorf("while the Hub wants %v: %d values, %v", want, n, err)
		}
	}
	if err := r.report(runner, r.get(a.ID), 1, wire.StateRemoved); err != nil {
		t.Fatal(err)
	}
	if n, err := ask(); n != 0 || err == nil {
		t.Errorf("once it was removed: %d values, %v", n, err)
	}
}

func TestWhatARunnerSentIsToldOnceAndWithoutTheValue(t *testing.T) {
	t.Parallel()
	var log syncBuffer
	r := newRig(t, storetest.New(t), Options{Log: zerolog.New(&log)})
	runner := r.runner("r1")
	a := r.assign(runner, "s", 0)
	r.knows("KEY", secret, "OTHER", "quite another value")
	next := r.append(runner, a, 0, "nothing of it\n")
	if all := r.audited(); len(all) != 0 || r.Caught() != 0 {
		t.Fatalf("%q %d", all, r.Caught())
	}
	for range 3 {
		next = r.append(runner, a, next, "it is "+secret+"\n")
	}
	r.append(runner, a, next, "quite another value\n")
	want := []string{`{"in":"log","runner":"r1","variables":["KEY"]}`, `{"in":"log","runner":"r1","variables":["OTHER"]}`}
	if got := r.audited(); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("%q, want %q", got, want)
	}
	if r.Caught() != 4 {
		t.Errorf("%d were counted", r.Caught())
	}
	if lines := log.String(); strings.Count(lines, "\n") != 1 || !strings.Contains(lines, "KEY") || strings.Contains(lines, secret) {
		t.Errorf("%s", lines)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestValuesInAReportAreMaskedInItsStringsOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	a := r.assign(runner, "s", 0)
	r.knows("KEY", `quo"te\back`, "N", "1234567890")
	for i, c := range []struct{ in, want string }{
		{`{"n": 1234567890, "a":"x"}`, `{"n": 1234567890, "a":"x"}`},
		{`{"failure":{"message":"is quo\"te\\back!"},"failure":{"message":"quo\u0022te\\back"}}`, `{"failure":{"message":"is ***!"},"failure":{"message":"***"}}`},
		{`{"quo\"te\\back":["1234567890", "\\\"", "é\n"], "b":""}`, `{"***":["***", "\\\"", "é\n"], "b":""}`},
		{`"1234567890"`, `"***"`},
	} {
		q := &wire.ReportRequest{Id: a.ID, Fence: a.Fence, Generation: a.Generation, Seq: int64(i + 1), State: "is-1234567890", Detail: []byte(c.in)}
		if err := r.Report(t.Context(), runner, q); err != nil {
			t.Fatal(err)
		}
		got := r.get(a.ID)
		if string(got.Detail) != c.want || got.State != "is-***" {
			t.Errorf("%s became %s in state %s", c.in, got.Detail, got.State)
		}
		if !json.Valid(got.Detail) {
			t.Errorf("%s is no JSON", got.Detail)
		}
	}
	if all := r.audited(); len(all) != 2 {
		t.Errorf("%q", all)
	}
}

func TestTerminalOutputIsMaskedWhereTheClientHasNotTakenIt(t *testing.T) {
	t.Parallel()
	l := newLine(t, Options{})
	l.knows("KEY", secret)
	piece := "$ " + secret[:10]
	l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, 0, piece), out(2, 0, "err "+secret)}})
	l.client(ClientMove{}) // looks, and does not say that it took it
	l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, 4, piece[4:]+secret[10:]+"\r\n")}})
	all := "$ " + secret + "\r\n"
	st := l.client(ClientMove{})
	if len(st.Out) != 2 || string(st.Out[0].GetData()) != masked(all, secret) || string(st.Out[1].GetData()) != masked("err "+secret, secret) {
		t.Fatalf("%q", st.Out)
	}
	at := int64(len(all))
	l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, at, secret[:20])}})
	l.client(ClientMove{Out1: at + 20})
	exit := fmt.Sprintf(`{"code":125,"failed":"%s is not a command"}`, secret)
	l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, at+20, secret[20:])}, Ended: true, ExitJson: exit})
	st = l.client(ClientMove{Out1: at + 20, Out2: 1 << 20})
	if len(st.Out) != 1 || string(st.Out[0].GetData()) != masked(secret[20:], secret[20:]) {
		t.Errorf("what is in reach: %q", st.Out)
	}
	st = l.client(ClientMove{Out1: at + int64(len(secret)), Out2: 1 << 20})
	if !st.Ended || st.Exit.Failed != "*** is not a command" {
		t.Errorf("%+v", st)
	}
	if all := l.audited(); len(all) != 1 || !strings.Contains(all[0], `"exec or terminal"`) {
		t.Errorf("%q", all)
	}
}

func TestAHelloHoldsNoValue(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	a := r.assign(runner, "s", 0)
	r.knows("KEY", secret)
	r.append(runner, a, 0, "x")
	h := hello(wire.Protocol)
	h.Missing, h.Engine = []string{"no " + secret}, secret
	if _, err := r.Hello(t.Context(), runner, h); err != nil {
		t.Fatal(err)
	}
	all, err := r.Runners(t.Context())
	if err != nil || len(all) != 1 || all[0].Engine != "***" || fmt.Sprint(all[0].Missing) != "[no ***]" {
		t.Errorf("%+v %v", all, err)
	}
	if got := r.audited(); len(got) != 1 || !strings.Contains(got[0], `"hello"`) {
		t.Errorf("%q", got)
	}
	if h.GetEngine() != secret {
		t.Error("the request was changed")
	}
}

func TestAnotherRunnerLearnsAndChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner, other := r.runner("r1"), r.runner("r2")
	a := r.assign(runner, "s", 0)
	r.knows("KEY", "the-first-value")
	r.append(runner, a, 0, "x")
	r.knows("KEY", "the-second-value")
	for range 2 {
		_, err := r.AppendLog(t.Context(), other, &wire.AppendLogRequest{Id: a.ID, Fence: 1, Data: []byte("the-first-value")})
		if !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
	}
	r.append(runner, a, 1, "the-first-value")
	if got, _ := r.readAll(a.ID, 100); got != "x"+strings.Repeat("*", 15) {
		t.Errorf("%q", got)
	}
	if n := len(r.guard.of); n != 1 {
		t.Errorf("%d assignments are known", n)
	}
}

func TestAnOwnerThatFailsDoesNotHoldUpLogs(t *testing.T) {
	t.Parallel()
	var log syncBuffer
	r := newRig(t, storetest.New(t), Options{Log: zerolog.New(&log)})
	runner := r.runner("r1")
	a := r.assign(runner, "s", 0)
	r.owner.mu.Lock()
	r.owner.unwell = errOwner
	r.owner.mu.Unlock()
	next := r.append(runner, a, 0, "some ")
	next = r.append(runner, a, next, "more ")
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), errOwner.Error()) {
		t.Errorf("%s", log.String())
	}
	r.owner.mu.Lock()
	r.owner.unwell, r.owner.values = nil, sensitive("KEY", secret)
	r.owner.mu.Unlock()
	r.append(runner, a, next, secret)
	if got, _ := r.readAll(a.ID, 100); got != "some more "+strings.Repeat("*", len(secret)) {
		t.Errorf("%q", got)
	}
}

func TestValuesAreForgottenWhenTheAssignmentEndsAndFormsAreShared(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	r.knows("KEY", secret)
	var all []Assignment
	for i := range 5 {
		a := r.assign(runner, fmt.Sprint(i), 0)
		r.append(runner, a, 0, secret)
		all = append(all, a)
	}
	counts := func(assignments, sets int) {
		t.Helper()
		r.guard.mu.Lock()
		defer r.guard.mu.Unlock()
		if len(r.guard.of) != assignments || len(r.guard.forms) != sets {
			t.Fatalf("%d assignments and %d sets are known, want %d and %d", len(r.guard.of), len(r.guard.forms), assignments, sets)
		}
	}
	counts(5, 1)
	r.owner.mu.Lock()
	asked := r.owner.asked
	r.owner.mu.Unlock()
	for i := range 10 {
		r.append(runner, all[0], int64(len(secret)+i), ".")
	}
	if r.owner.asked != asked {
		t.Error("values are opened again for each piece")
	}
	r.write(func(tx *store.Tx) error {
		_, err := r.Change(tx, all[1].ID, Remove, time.Time{})
		return err
	})
	removed := r.get(all[1].ID)
	if err := r.report(runner, removed, 1, wire.StateRemoved); err != nil {
		t.Fatal(err)
	}
	r.write(func(tx *store.Tx) error { return r.Forget(tx, all[2].ID) })
	counts(3, 1)
	r.knows("KEY", "the-second-value")
	r.clock.add(relearn)
	r.append(runner, all[0], int64(len(secret)+10), ".")
	counts(3, 2)
	r.write(func(tx *store.Tx) error { // by another Hub
		_, err := tx.Exec(`DELETE FROM assignments WHERE id = $1`, all[3].ID)
		return err
	})
	r.clock.add(guardRest + time.Minute)
	r.reap()
	counts(2, 0)
	end := int64(len(secret) + 11)
	r.append(runner, all[0], end, secret) // served before, and still known
	if got, _ := r.readAll(all[0].ID, 1000); got[end:] != strings.Repeat("*", len(secret)) {
		t.Errorf("%q", got)
	}
}

func TestOneOfManyWhoAppendAtOnceAsksTheOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.New(t), Options{})
	runner := r.runner("r1")
	a := r.assign(runner, "s", 0)
	r.knows("KEY", secret)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			_, err := r.AppendLog(t.Context(), runner, &wire.AppendLogRequest{Id: a.ID, Fence: 1, Data: []byte("x " + secret)})
			if err != nil && !fault.Is(err, fault.Refused) {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if got, _ := r.readAll(a.ID, 1000); got != masked("x "+secret, secret) || r.owner.asked != 1 {
		t.Errorf("%q; the Owner was asked %d times", got, r.owner.asked)
	}
}

func TestEachFormOfTheCanaryIsMaskedFromARunnerThatMasksNothing(t *testing.T) {
	t.Parallel()
	const value = "k-first/line+b=c&d<e>\"f\"'g' h%20\nsecond \\b $HOME é😀 ~#;|x\nend [a] line {b}*?!^ z"
	l := newLine(t, Options{})
	l.knows("CANARY", value)
	next, taken := int64(0), int64(0)
	for i, f := range canary.Table {
		rng := rand.New(rand.NewPCG(5, uint64(i)))
		for _, p := range f.Print(value) {
			text := p.Text + "\n"
			start := next
			for at := 0; at < len(text); {
				to := min(at+1+rng.IntN(90), len(text))
				next = l.append(l.a.Runner, l.a, next, text[at:to])
				l.serve(&wire.ExchangeRequest{Out: []*wire.Piece{out(1, start+int64(at), text[at:to])}})
				at = to
			}
			log, _ := l.readAll(l.a.ID, 1<<20)
			st := l.client(ClientMove{Out1: taken})
			got := map[string]string{"log": log[start:], "terminal": string(st.Out[0].GetData())}
			taken = next
			l.client(ClientMove{Out1: taken})
			detail, err := json.Marshal(map[string]string{"message": p.Text})
			if err != nil {
				t.Fatal(err)
			}
			q := &wire.ReportRequest{Id: l.a.ID, Fence: l.a.Fence, Generation: l.a.Generation, Seq: next, State: "running", Detail: detail}
			if err := l.Report(t.Context(), l.a.Runner, q); err != nil {
				t.Fatal(err)
			}
			got["report"] = string(l.get(l.a.ID).Detail)
			for where, s := range got {
				if where != "report" && len(s) != len(text) {
					t.Errorf("%s in the %s: the length changed from %d to %d", f.Name, where, len(text), len(s))
				}
				if strings.Contains(squeeze(s), squeeze(p.Secret())) || !strings.Contains(s, "***") {
					t.Errorf("%s in the %s is %q", f.Name, where, s)
				}
			}
		}
	}
}

// squeeze leaves out white space and what colours a text.
func squeeze(s string) string {
	return strings.Join(strings.Fields(regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(s, "")), "")
}
