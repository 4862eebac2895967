package githubtest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Delivery is one webhook on its way, or in the log.
type Delivery struct {
	ID           int64 // of this attempt
	GUID         string
	Event        string
	Action       string
	Installation int64
	Repository   int64
	Payload      []byte
	Redelivery   bool
	// In the log only: when it was sent, what was answered (0: nobody) and how long that took.
	At       time.Time
	Status   int
	Duration time.Duration

	app    *app
	header http.Header
	answer string
}

// Fate is what happens to a delivery on its way.
type Fate struct {
	Lose   bool          // GitHub can't reach the Hub: the log says so
	Copies int           // how often it arrives beside the first time
	Delay  time.Duration // it leaves that much later, and others overtake it
}

type hooks struct {
	s       *Server
	client  *http.Client
	rule    func(Delivery) Fate
	held    []*Delivery
	holding bool
	out     int // deliveries that wait or are on their way
	settled *sync.Cond
	log     []*Delivery // newest last
	work    chan struct{}
	queue   []*Delivery
}

func (h *hooks) init(s *Server) {
	h.s = s
	h.settled = sync.NewCond(&s.mu)
	h.work = make(chan struct{}, 1)
	timeout := 10 * time.Second
	if s.opts.GHES {
		timeout = 30 * time.Second
	}
	h.client = &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	s.Senders(1)
}

// Senders adds n to the deliveries that are on their way at once. GitHub sends many; here it is one at first, so that they
// arrive in order.
func (s *Server) Senders(n int) {
	for range n {
		s.idle.Add(1)
		go func() {
			defer s.idle.Done()
			s.hooks.loop()
		}()
	}
}

// Deliver says what happens to webhooks from now on; nil lets all of them arrive, one after another. With several senders
// rule is called by several goroutines.
func (s *Server) Deliver(rule func(Delivery) Fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks.rule = rule
}

// Hold keeps webhooks back until Release.
func (s *Server) Hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks.holding = true
}

// Release lets the kept webhooks go, in another order if order isn't nil.
func (s *Server) Release(order *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.hooks
	h.holding = false
	if order != nil {
		order.Shuffle(len(h.held), func(i, j int) { h.held[i], h.held[j] = h.held[j], h.held[i] })
	}
	h.queue = append(h.queue, h.held...)
	h.held = nil
	h.wake()
}

// Settle waits until no webhook waits or is on its way.
func (s *Server) Settle(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hooks.settled.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.hooks.out > 0 && ctx.Err() == nil {
		s.hooks.settled.Wait()
	}
	return ctx.Err()
}

// Delivered is the log of attempts, oldest first.
func (s *Server) Delivered() []Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Delivery
	for _, d := range s.hooks.log {
		out = append(out, *d)
	}
	return out
}

// Send posts an event of one's own making, as an App's webhook: payloads from elsewhere, unknown events.
func (s *Server) Send(appID int64, event string, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.apps[appID]
	if a == nil {
		wrong("there is no App %d", appID)
	}
	s.enqueue(&Delivery{GUID: guid(), Event: event, Payload: payload, app: a})
}

// Signed gives the headers that GitHub sends with an event, for tests that post it themselves.
func Signed(event, guid, secret string, payload []byte) http.Header {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(payload)
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "GitHub-Hookshot/0000000")
	h.Set("X-GitHub-Event", event)
	h.Set("X-GitHub-Delivery", guid)
	h.Set("X-GitHub-Hook-Installation-Target-Type", "integration")
	h.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	return h
}

func guid() string {
	x := random(16)
	return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:]
}

// always are the events that no App chooses; automatic are those that come with the permission checks.
var (
	always    = []string{"installation", "installation_repositories", "installation_target", "github_app_authorization", "ping"}
	automatic = []string{"check_run", "check_suite"}
	// needs is the permission without which GitHub doesn't send an event (facts/github.md §3).
	needs = map[string]string{
		"member": "members", "membership": "members", "organization": "members", "team": "members", "team_add": "members",
		"pull_request": "pull_requests", "push": "contents", "create": "contents", "delete": "contents",
		"repository": "metadata", "public": "metadata", "check_run": "checks", "check_suite": "checks",
	}
)

// emitTo tells every installation that has r. Called with the lock.
func (s *Server) emitTo(r *repository, by *account, event, action string, payload object) {
	for _, i := range sortedByID(s.installs) {
		if i.has(r) {
			s.emit(i, r, by, event, action, maps.Clone(payload))
		}
	}
}

// emit tells one installation, if it is to be told. Called with the lock.
func (s *Server) emit(i *installation, r *repository, by *account, event, action string, payload object) {
	if !slices.Contains(always, event) {
		wanted := slices.Contains(i.app.events, event) || slices.Contains(automatic, event) && i.grants["checks"] == "write"
		if !wanted || i.suspended || needs[event] != "" && !enough(i.grants[needs[event]], "read") {
			return
		}
	}
	payload["sender"] = s.simpleUser(by)
	if event == "installation" {
		payload["installation"] = s.installJSON(i)
	} else {
		payload["installation"] = object{"id": i.ID, "node_id": node("I", i.ID)}
	}
	if r != nil {
		payload["repository"] = s.repoJSON("repository", r, "")
	}
	if i.account.Type == "Organization" {
		payload["organization"] = object{"id": i.account.ID, "login": i.account.Login, "node_id": node("O", i.account.ID)}
	}
	s.post(i.app, i, event, action, payload)
}

func (s *Server) emitInstalled(i *installation, by *account, action string, repos []*repository) {
	selection := "selected"
	if i.all {
		selection = "all"
	}
	added, removed := []any{}, s.partial(repos)
	if action == "added" {
		added, removed = removed, added
	}
	s.emit(i, nil, by, "installation_repositories", action, object{
		"repositories_added": added, "repositories_removed": removed, "repository_selection": selection, "requester": nil,
	})
}

// post puts an event on its way to the App's webhook. Called with the lock.
func (s *Server) post(a *app, i *installation, event, action string, payload object) {
	if action != "" {
		payload["action"] = action
	}
	b, err := json.Marshal(payload)
	if err != nil {
		wrong("%v", err)
	}
	d := &Delivery{GUID: guid(), Event: event, Action: action, Payload: b, app: a}
	if i != nil {
		d.Installation = i.ID
	}
	if r, ok := payload["repository"].(object); ok {
		d.Repository, _ = r["id"].(int64)
	}
	s.enqueue(d)
}

func (s *Server) enqueue(d *Delivery) {
	if !d.app.hookActive {
		return
	}
	h := &s.hooks
	h.out++
	if h.holding {
		h.held = append(h.held, d)
		return
	}
	h.queue = append(h.queue, d)
	h.wake()
}

func (h *hooks) wake() {
	select {
	case h.work <- struct{}{}:
	default:
	}
}

// loop sends what is queued, in order; what is delayed leaves the order.
func (h *hooks) loop() {
	s := h.s
	for {
		s.mu.Lock()
		var d *Delivery
		if len(h.queue) > 0 {
			d, h.queue = h.queue[0], h.queue[1:]
		}
		if len(h.queue) > 0 {
			h.wake() // another sender
		}
		rule := h.rule
		s.mu.Unlock()
		if d == nil {
			select {
			case <-h.work:
				continue
			case <-s.ctx.Done():
				return
			}
		}
		var f Fate
		if rule != nil {
			f = rule(*d)
		}
		if f.Delay > 0 {
			s.idle.Add(1)
			go func() {
				defer s.idle.Done()
				t := time.NewTimer(f.Delay)
				defer t.Stop()
				select {
				case <-t.C:
					h.deliver(d, f)
				case <-s.ctx.Done():
				}
			}()
			continue
		}
		h.deliver(d, f)
		if s.ctx.Err() != nil {
			return
		}
	}
}

func (h *hooks) deliver(d *Delivery, f Fate) {
	h.attempt(d, f.Lose)
	for range f.Copies {
		again := *d
		h.send(&again, false) // the copy is no attempt of its own: something on the way made it
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.out--; h.out == 0 {
		h.settled.Broadcast()
	}
}

func (h *hooks) attempt(d *Delivery, lost bool) {
	h.send(d, lost)
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	d.ID = h.s.id()
	h.log = append(h.log, d)
}

func (h *hooks) send(d *Delivery, lost bool) {
	s := h.s
	s.mu.Lock()
	url, secret, id := d.app.hookURL, d.app.WebhookSecret, d.app.ID
	d.At = s.now()
	s.mu.Unlock()
	d.header = Signed(d.Event, d.GUID, secret, d.Payload)
	d.header.Set("X-GitHub-Hook-ID", strconv.FormatInt(id, 10))
	d.header.Set("X-GitHub-Hook-Installation-Target-ID", strconv.FormatInt(id, 10))
	if s.opts.GHES {
		d.header.Set("X-GitHub-Enterprise-Host", strings.TrimPrefix(s.urls.Web, "http://"))
	}
	if lost {
		d.Status, d.answer = 0, "failed to connect to host"
		return
	}
	begun := time.Now()
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, url, bytes.NewReader(d.Payload))
	if err != nil {
		d.Status, d.answer = 0, err.Error()
		return
	}
	req.Header = d.header.Clone()
	resp, err := h.client.Do(req)
	d.Duration = time.Since(begun)
	if err != nil {
		d.Status, d.answer = 0, "failed to connect to host"
		return
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	d.Status, d.answer = resp.StatusCode, string(b)
}

func (s *Server) deliveryJSON(d *Delivery, whole bool) object {
	status := "OK"
	if d.Status == 0 {
		status = d.answer
	} else if d.Status >= 400 {
		status = "Invalid HTTP Response: " + strconv.Itoa(d.Status)
	}
	num := func(n int64) any {
		if n == 0 {
			return nil
		}
		return n
	}
	over := object{
		"id": d.ID, "guid": d.GUID, "delivered_at": stamp(d.At), "redelivery": d.Redelivery, "duration": d.Duration.Seconds(),
		"status": status, "status_code": d.Status, "event": d.Event, "action": nil, "installation_id": num(d.Installation),
		"repository_id": num(d.Repository), "throttled_at": nil,
	}
	if d.Action != "" {
		over["action"] = d.Action
	}
	if !whole {
		return shape("hook-delivery-item", over)
	}
	headers := object{}
	for k := range d.header {
		headers[k] = d.header.Get(k)
	}
	over["url"] = d.app.hookURL
	over["request"] = object{"headers": headers, "payload": json.RawMessage(d.Payload)}
	over["response"] = object{"headers": object{}, "payload": d.answer}
	return shape("hook-delivery", over)
}

// kept is how long GitHub remembers deliveries.
const kept = 72 * time.Hour

func (c *call) listDeliveries() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	a := c.app()
	if a == nil {
		return
	}
	q := c.r.URL.Query()
	per, _ := strconv.Atoi(q.Get("per_page"))
	if per = min(per, 100); per <= 0 {
		per = 30
	}
	before, _ := strconv.ParseInt(strings.TrimPrefix(q.Get("cursor"), "v1_"), 10, 64)
	out := []any{}
	more := int64(0)
	for _, d := range slices.Backward(c.s.hooks.log) {
		switch {
		case d.app != a || before > 0 && d.ID >= before || c.s.now().Sub(d.At) > kept:
			continue
		case q.Get("status") == "success" && (d.Status == 0 || d.Status >= 400),
			q.Get("status") == "failure" && d.Status > 0 && d.Status < 400:
			continue
		case len(out) == per:
			if more == 0 {
				more = d.ID + 1
			}
			continue
		}
		out = append(out, c.s.deliveryJSON(d, false))
	}
	if more > 0 {
		q.Set("cursor", fmt.Sprintf("v1_%d", more))
		c.w.header.Set("Link", fmt.Sprintf(`<%s%s?%s>; rel="next"`, c.s.urls.API, c.r.URL.Path, q.Encode()))
	}
	c.reply(http.StatusOK, out)
}

// delivery is the App's own one that the path names. Called with the lock.
func (c *call) delivery() *Delivery {
	a := c.app()
	if a == nil {
		return nil
	}
	id, _ := strconv.ParseInt(c.vars["delivery"], 10, 64)
	for _, d := range c.s.hooks.log {
		if d.ID == id && d.app == a {
			return d
		}
	}
	c.fail(http.StatusNotFound, "Not Found")
	return nil
}

func (c *call) getDelivery() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if d := c.delivery(); d != nil {
		c.reply(http.StatusOK, c.s.deliveryJSON(d, true))
	}
}

// redeliver sends it once more, under the same guid.
func (c *call) redeliver() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	d := c.delivery()
	if d == nil {
		return
	}
	again := *d
	again.ID, again.Redelivery = 0, true
	c.s.enqueue(&again)
	c.reply(http.StatusAccepted, object{})
}
