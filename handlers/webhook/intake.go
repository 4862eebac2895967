package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/store"
)

const (
	// arrival is how long a delivery may take to arrive and to be stored: GitHub itself gives up after so long.
	arrival = 10 * time.Second

	batchRows  = 200
	batchBytes = 16 << 20
)

// intake is what is between arrival and answer.
type intake struct {
	s     *Service
	large chan struct{}

	mu      sync.Mutex
	waiting []*arrived
	running bool
}

// arrived is a delivery whose sender waits for the answer.
type arrived struct {
	guid, event, action, subject string
	body                         []byte
	fresh                        bool
	stored                       chan error
}

func (in *intake) init(s *Service) {
	in.s, in.large = s, make(chan struct{}, largeBodies)
}

// ServeHTTP answers 202 as soon as a delivery is stored, and for what needs no storing.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, text, outcome := s.take(w, r)
	if outcome != "" {
		s.o.Observe(outcome)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}

func (s *Service) take(w http.ResponseWriter, r *http.Request) (status int, text string, outcome Outcome) {
	if r.Method != http.MethodPost {
		return http.StatusMethodNotAllowed, "GitHub posts its webhooks here. There is nothing else.", ""
	}
	ctx, cancel := context.WithTimeout(r.Context(), arrival)
	defer cancel()
	b := &body{ReadCloser: r.Body, ctx: ctx, places: s.intake.large, conn: http.NewResponseController(w), end: time.Now().Add(arrival)}
	_ = b.conn.SetReadDeadline(b.end)
	defer b.leave()
	r.Body = b
	secrets, err := s.o.Setup.WebhookSecrets(ctx)
	if err != nil && !github.NoApp.Is(err) { // without an App nothing is signed by it
		s.log.Error().Err(err).Msg("a delivery can't be verified")
		return http.StatusServiceUnavailable, "The Hub can't verify deliveries now. It asks GitHub for this one again.", Refused
	}
	d, err := github.ReadDelivery(w, r, secrets)
	if b.crowd {
		return http.StatusServiceUnavailable, "Too many large payloads arrive at once. The Hub asks GitHub for this one again.", Refused
	}
	var refused *github.DeliveryError
	if errors.As(err, &refused) {
		s.log.Warn().Int("status", refused.Status).Msg("a delivery was refused: " + refused.Message)
		return refused.Status, refused.Message, Refused
	}
	if err != nil {
		s.log.Error().Err(err).Msg("a delivery can't be read")
		return http.StatusInternalServerError, "The delivery can't be read.", Refused
	}
	if err := s.o.Setup.Heard(ctx, d.Event); err != nil {
		s.log.Warn().Err(err).Msg("that GitHub reached this Hub can't be noted")
	}
	if d.Event == ping {
		return http.StatusOK, "claude-hub is here.", Ignored
	}
	e, err := d.Decode()
	if err != nil {
		s.log.Warn().Err(err).Str("guid", d.ID).Str("event", d.Event).Msg("a delivery was refused: its payload is no such event")
		return http.StatusBadRequest, "The payload is no event of GitHub that claude-hub can read.", Refused
	}
	known, ok := s.table.find(e)
	if !ok {
		return http.StatusAccepted, "Nothing follows from this event.", Ignored
	}
	a := &arrived{guid: d.ID, event: e.Name, action: store.Text(e.Action), body: s.zip.EncodeAll(d.Payload, nil), stored: make(chan error, 1)}
	if known.subject != nil {
		a.subject = known.subject(e)
	}
	if err := s.intake.store(ctx, a); err != nil {
		s.log.Error().Err(err).Str("guid", d.ID).Msg("a delivery can't be stored")
		return http.StatusServiceUnavailable, "The Hub can't store deliveries now. It asks GitHub for this one again.", Refused
	}
	if !a.fresh {
		return http.StatusAccepted, "Known already.", Duplicate
	}
	return http.StatusAccepted, "Taken.", Received
}

// store waits until a is in the database. What arrives while a transaction runs goes into the next one together: waiting
// for the disk, not the rows, is what takes long.
func (in *intake) store(ctx context.Context, a *arrived) error {
	in.mu.Lock()
	in.waiting = append(in.waiting, a)
	if !in.running {
		in.running = true
		go in.run()
	}
	in.mu.Unlock()
	select {
	case err := <-a.stored:
		return err
	case <-ctx.Done(): // it may be stored nevertheless, and is then known when GitHub sends it again
		return context.Cause(ctx)
	}
}

func (in *intake) run() {
	for {
		in.mu.Lock()
		batch := in.next()
		in.running = len(batch) > 0
		in.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), arrival)
		err := in.s.db.Write(ctx, func(tx *store.Tx) error { return insert(tx, batch) })
		cancel()
		for _, a := range batch {
			a.stored <- err
		}
	}
}

// next takes from what waits as much as one transaction should hold. Called with the lock.
func (in *intake) next() []*arrived {
	n, bytes := 0, 0
	for n < len(in.waiting) && n < batchRows && (n == 0 || bytes+len(in.waiting[n].body) <= batchBytes) {
		bytes += len(in.waiting[n].body)
		n++
	}
	batch := in.waiting[:n:n]
	in.waiting = in.waiting[n:]
	if len(in.waiting) == 0 {
		in.waiting = nil
	}
	return batch
}

func insert(tx *store.Tx, batch []*arrived) error {
	for _, a := range batch {
		n, err := tx.Exec(insertSQL, a.guid, a.event, a.action, a.subject, a.body, tx.Now().UnixMilli())
		if err != nil {
			return fmt.Errorf("store delivery %s: %w", a.guid, err)
		}
		if a.fresh = n > 0; a.fresh {
			tx.Wake(topic)
		}
	}
	return nil
}
