package fleet

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

// Limits is the most that one Sandbox on a Runner gets. Zero: unknown.
type Limits struct {
	CPU    float64 // CPUs
	Memory int64   // bytes
}

// Runner is a daemon on a host, as people see it.
type Runner struct {
	ID, Name          string
	Platform, Version string // of its newest Hello; empty before the first
	Engine            string
	Capabilities      []string
	Protocol          int32
	Online            bool      // was in contact within the last lease
	LastContact       time.Time // zero: never
	Registered        time.Time
	Limits            Limits
	Load              map[Kind]int // assignments that want Run; only from Runners and Pick
	Missing           []string     // what its host lacks, in words
	Disk              *Disk        // nil: not told to this Hub since it started
	Update            string       // set when the Hub can't work with this Runner: what to do about it

	hello, revoked bool
}

// Disk is what a Runner's host has of room.
type Disk struct {
	Builds     int   // kept
	BuildBytes int64 // what they take
	Free       int64 // bytes of the file system with the Runner's data folder
}

// Busy is how much it holds: Pick prefers the one that holds least.
func (r Runner) Busy() int { return r.load() }

func (r Runner) load() (n int) {
	for _, k := range r.Load {
		n += k
	}
	return n
}

const (
	registrationLife = time.Hour
	// authLife bounds how long a revoked token still works on another Hub; shorter than a Sync.
	authLife = 5 * time.Second
)

var runnerName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$`)

func newToken(prefix string) string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return prefix + base64.RawURLEncoding.EncodeToString(b)
}

func hashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// NewRegistration makes a token that registers one Runner within an hour. Only its hash is stored. who is audited.
func (f *Fleet) NewRegistration(ctx context.Context, who string) (token string, expires time.Time, err error) {
	token = newToken("chreg_")
	err = f.db.Write(ctx, func(tx *store.Tx) error {
		expires = tx.Now().Add(registrationLife)
		if _, err := tx.Exec(purgeRegistrationsSQL, tx.Now().Add(-24*time.Hour).UnixMilli()); err != nil {
			return fmt.Errorf("purge expired registrations: %w", err)
		}
		id := store.NewID()
		if _, err := tx.Exec(insertRegistrationSQL, id, hashToken(token), who, tx.Now().UnixMilli(), expires.UnixMilli()); err != nil {
			return fmt.Errorf("make a registration: %w", err)
		}
		return audit.Record(tx, audit.Entry{Who: who, Action: "runner.invite", Subject: id})
	})
	return token, expires, err
}

// Register trades a registration token, once, for a Runner's identity. Only the runner token's hash is stored.
// Unknown, expired and used tokens are faults of code refused; a bad or taken name is invalid. A name whose earlier
// Runner never said Hello (its answer was lost) is given to the new one.
func (f *Fleet) Register(ctx context.Context, token, name string) (runnerID, runnerToken string, err error) {
	if !runnerName.MatchString(name) {
		return "", "", fault.Field("name", "A Runner's name has 1 to 64 letters, digits, dots, dashes and underscores, and begins and ends with a letter or digit.")
	}
	runnerToken = newToken("chrun_")
	err = f.db.Write(ctx, func(tx *store.Tx) error {
		var registration, by string
		var expires, used int64
		err := tx.Row(registrationSQL, hashToken(token)).Scan(&registration, &by, &expires, &used)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return fault.New(fault.Refused, "This registration token is unknown. Make a new one on the Hub's page of Runners and use it whole.")
		case err != nil:
			return fmt.Errorf("read registration: %w", err)
		case used != 0:
			return fault.New(fault.Refused, "This registration token was used already. Each one registers a single Runner: make a new one.")
		case tx.Now().UnixMilli() >= expires:
			return fault.New(fault.Refused, "This registration token expired at %s. Make a new one.", at(expires).Format(time.RFC3339))
		}
		var holder string
		var hello int64
		switch err := tx.Row(nameTakenSQL, name).Scan(&holder, &hello); {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return fmt.Errorf("look for a Runner named %s: %w", name, err)
		case hello != 0:
			return nameTaken(name)
		default:
			if _, err := tx.Exec(revokeSQL, holder, tx.Now().UnixMilli(), "system: replaced before its first contact"); err != nil {
				return fmt.Errorf("replace Runner %s: %w", holder, err)
			}
		}
		runnerID = store.NewID()
		_, err = tx.Exec(insertRunnerSQL, runnerID, name, hashToken(runnerToken), by, tx.Now().UnixMilli())
		if store.IsUnique(err) { // another Runner, at the same time
			return nameTaken(name)
		}
		if err != nil {
			return fmt.Errorf("register Runner %s: %w", name, err)
		}
		if _, err := tx.Exec(useRegistrationSQL, registration, tx.Now().UnixMilli(), runnerID); err != nil {
			return fmt.Errorf("use registration: %w", err)
		}
		tx.Wake(TopicRunners)
		return audit.Record(tx, audit.Entry{Who: by, Action: "runner.register", Subject: runnerID, Detail: map[string]any{"name": name}})
	})
	if err != nil {
		return "", "", err
	}
	return runnerID, runnerToken, nil
}

func nameTaken(name string) error {
	return fault.Field("name", "A Runner named %s exists already. Choose another name, or revoke that Runner first.", name)
}

// TopicRunners is the topic of store.DB.Changed that is woken when a Runner registers, says Hello or is revoked.
const TopicRunners = "runners"

// Authenticate tells whose runnerToken it is, or answers ErrRevoked. Answers are kept for some seconds.
func (f *Fleet) Authenticate(ctx context.Context, runnerToken string) (Runner, error) {
	hash := hashToken(runnerToken)
	if r, ok := f.auth.get(hash); ok {
		return r, nil
	}
	var r Runner
	epoch := f.auth.epochNow()
	err := f.db.Read(ctx, func(tx *store.Tx) (err error) {
		r, err = scanRunner(tx.Row(runnerByHash, hash).Scan)
		return err
	})
	if errors.Is(err, store.ErrNotFound) || err == nil && r.revoked {
		return Runner{}, ErrRevoked
	}
	if err != nil {
		return Runner{}, fmt.Errorf("authenticate a Runner: %w", err)
	}
	f.auth.put(hash, r, epoch)
	return r, nil
}

// Revoke ends a Runner's identity: its calls are refused from the next one on, at the latest one Sync later on other
// Hubs. Its assignments are lost after a lease. An id that is unknown or revoked already is a fault of code not-found.
func (f *Fleet) Revoke(ctx context.Context, id, who string) error {
	err := f.db.Write(ctx, func(tx *store.Tx) error {
		n, err := tx.Exec(revokeSQL, store.Text(id), tx.Now().UnixMilli(), who)
		if err != nil {
			return fmt.Errorf("revoke Runner %s: %w", id, err)
		}
		if n == 0 {
			return fault.New(fault.NotFound, "There is no such Runner, or it was revoked already.")
		}
		tx.After(f.auth.clear)
		tx.Wake(runnerTopic(id))
		tx.Wake(TopicRunners)
		return audit.Record(tx, audit.Entry{Who: who, Action: "runner.revoke", Subject: id})
	})
	return err
}

// Hello stores what a Runner says of itself and answers whether this Hub can work with it.
func (f *Fleet) Hello(ctx context.Context, runner string, q *wire.HelloRequest) (*wire.HelloResponse, error) {
	own := []string{q.GetVersion(), q.GetPlatform(), q.GetEngine(), q.GetInstance()}
	able, lacking := slices.Clone(q.GetCapabilities()), slices.Clone(q.GetMissing())
	for _, t := range [][]string{own, able, lacking} {
		f.guard.hideTexts(ctx, runner, t)
	}
	capabilities, err := json.Marshal(texts(able))
	if err != nil {
		return nil, fmt.Errorf("encode capabilities: %w", err)
	}
	missing, err := json.Marshal(texts(lacking))
	if err != nil {
		return nil, fmt.Errorf("encode what is missing: %w", err)
	}
	var r Runner
	err = f.db.Write(ctx, func(tx *store.Tx) error {
		n, err := tx.Exec(helloSQL, runner, q.GetProtocol(), text(own[0]), text(own[1]), text(own[2]),
			string(capabilities), string(missing), q.GetCpuLimit(), q.GetMemoryLimit(), text(own[3]), tx.Now().UnixMilli())
		if err != nil {
			return fmt.Errorf("store Hello of Runner %s: %w", runner, err)
		}
		if n == 0 {
			return ErrRevoked
		}
		tx.Wake(TopicRunners)
		r, err = scanRunner(tx.Row(runnerByID, runner).Scan)
		return err
	})
	if err != nil {
		return nil, err
	}
	f.contacts.touch(runner, f.now())
	return &wire.HelloResponse{RunnerId: r.ID, Name: r.Name, Update: f.updateFor(r), LogLimit: f.o.LogLimit}, nil
}

// updateFor says what to do when this Hub and r don't speak a common protocol, else nothing.
func (f *Fleet) updateFor(r Runner) string {
	switch {
	case !r.hello:
		return ""
	case r.Protocol < f.o.MinProtocol:
		return fmt.Sprintf("Runner %s runs claude-hub %s, which is too old for this Hub (protocol %d, the Hub speaks %s). Install claude-hub %s on the Runner's host and start it again.",
			r.Name, orUnknown(r.Version), r.Protocol, f.spoken(), f.o.Version)
	case r.Protocol > f.o.MaxProtocol:
		return fmt.Sprintf("Runner %s runs claude-hub %s, which is newer than this Hub (protocol %d, the Hub speaks %s). Update the Hub, or install claude-hub %s on the Runner's host.",
			r.Name, orUnknown(r.Version), r.Protocol, f.spoken(), f.o.Version)
	}
	return ""
}

func (f *Fleet) spoken() string {
	if f.o.MinProtocol == f.o.MaxProtocol {
		return fmt.Sprint(f.o.MaxProtocol)
	}
	return fmt.Sprintf("%d to %d", f.o.MinProtocol, f.o.MaxProtocol)
}

// Runners lists all Runners that are not revoked, by name.
func (f *Fleet) Runners(ctx context.Context) (all []Runner, err error) {
	err = f.db.Read(ctx, func(tx *store.Tx) error {
		all, err = f.runners(tx)
		return err
	})
	return all, err
}

func (f *Fleet) runners(tx *store.Tx) ([]Runner, error) {
	all, err := store.All(tx, scanRunner, runnersSQL)
	if err != nil {
		return nil, fmt.Errorf("list Runners: %w", err)
	}
	type load struct {
		runner string
		kind   Kind
		n      int
	}
	loads, err := store.All(tx, func(scan func(...any) error) (l load, err error) { return l, scan(&l.runner, &l.kind, &l.n) }, loadSQL)
	if err != nil {
		return nil, fmt.Errorf("count what Runners hold: %w", err)
	}
	byID := make(map[string]*Runner, len(all))
	for i := range all {
		byID[all[i].ID] = &all[i]
		f.judge(&all[i], tx.Now())
	}
	for _, l := range loads {
		if r := byID[l.runner]; r != nil {
			r.Load[l.kind] = l.n
		}
	}
	return all, nil
}

// judge fills in what depends on the time and on what only this process knows.
func (f *Fleet) judge(r *Runner, now time.Time) {
	if seen := f.contacts.last(r.ID); seen.After(r.LastContact) {
		r.LastContact = seen
	}
	r.Online = r.hello && now.Sub(r.LastContact) < f.o.Lease
	r.Update = f.updateFor(*r)
	r.Disk = f.contacts.disk(r.ID)
	r.Load = map[Kind]int{}
}

// Filter says which Runners Pick may choose. Zero fields allow all.
type Filter struct {
	Runner   string // an id or a name: this one only
	Platform string // "linux/amd64"
	// Only, if set, says in words why a Runner will not do, or "" if it will.
	Only func(Runner) string
}

// Pick answers the online Runner that holds least. When none fits, it is a fault of code unavailable (not-found for an
// unknown Filter.Runner) that says of each Runner why it doesn't.
func (f *Fleet) Pick(tx *store.Tx, want Filter) (Runner, error) {
	all, err := f.runners(tx)
	if err != nil {
		return Runner{}, err
	}
	if len(all) == 0 {
		return Runner{}, fault.New(fault.Unavailable, "No Runner is registered. Register one with “claude-hub runner register” on a Linux host.")
	}
	var best *Runner
	var why []string
	named := false
	for i := range all {
		r := &all[i]
		if want.Runner != "" && r.ID != want.Runner && r.Name != want.Runner {
			continue
		}
		named = true
		if reason := f.unfit(*r, want); reason != "" {
			why = append(why, fmt.Sprintf("%s %s", r.Name, reason))
			continue
		}
		if best == nil || r.load() < best.load() {
			best = r
		}
	}
	switch {
	case !named:
		return Runner{}, fault.New(fault.NotFound, "There is no such Runner. Choose another one.")
	case best == nil:
		return Runner{}, fault.New(fault.Unavailable, "No Runner can take this now: %s.", strings.Join(why, "; "))
	}
	return *best, nil
}

// Unfit says why Pick would not choose a Runner of Runners, in words that go on after its name, or "" if it could.
func (f *Fleet) Unfit(r Runner, want Filter) string { return f.unfit(r, want) }

func (f *Fleet) unfit(r Runner, want Filter) string {
	switch {
	case !r.hello:
		return "is registered but has never been in contact"
	case !r.Online:
		return "is offline since " + r.LastContact.Format("2006-01-02 15:04:05 MST")
	case r.Update != "":
		return "must be updated first (" + strings.TrimSuffix(r.Update, ".") + ")"
	case want.Platform != "" && r.Platform != want.Platform:
		return fmt.Sprintf("is %s, not %s", r.Platform, want.Platform)
	case want.Only != nil:
		return want.Only(r)
	}
	return ""
}

// valuesProtocol is the first that has Values: a Runner before it would run a Spec's scripts without their Variables.
const valuesProtocol = 2

// CantTakeValues says why r can't be given the values of Variables, in words that go on after its name, or "" if it can: a
// Filter.Only for what has some.
func (f *Fleet) CantTakeValues(r Runner) string {
	if r.Protocol >= valuesProtocol {
		return ""
	}
	return fmt.Sprintf("runs claude-hub %s, which is too old for an Environment with Variables: install claude-hub %s on its host and start it again", orUnknown(r.Version), f.o.Version)
}

// TakesValues is a fault of code refused when a Runner can't be given the values of Variables.
func (f *Fleet) TakesValues(tx *store.Tx, runner string) error {
	r, err := scanRunner(tx.Row(runnerByID, runner).Scan)
	if err != nil {
		return fmt.Errorf("read Runner %s: %w", runner, err)
	}
	if why := f.CantTakeValues(r); why != "" {
		return fault.New(fault.Refused, "Runner %s %s.", r.Name, why)
	}
	return nil
}

// tokenProtocol is the first that has CloneToken: a Runner before it would clone without one.
const tokenProtocol = 3

// CantTakeTokens says why r can't clone a Repo of the GitHub App, as CantTakeValues does.
func (f *Fleet) CantTakeTokens(r Runner) string {
	if r.Protocol >= tokenProtocol {
		return ""
	}
	return fmt.Sprintf("runs claude-hub %s, which is too old to clone with tokens of the GitHub App: install claude-hub %s on its host and start it again", orUnknown(r.Version), f.o.Version)
}

// TakesTokens is a fault of code refused when a Runner can't clone a Repo of the GitHub App.
func (f *Fleet) TakesTokens(tx *store.Tx, runner string) error {
	r, err := scanRunner(tx.Row(runnerByID, runner).Scan)
	if err != nil {
		return fmt.Errorf("read Runner %s: %w", runner, err)
	}
	if why := f.CantTakeTokens(r); why != "" {
		return fault.New(fault.Refused, "Runner %s %s.", r.Name, why)
	}
	return nil
}

// Able is a fault of code refused when a Runner didn't say that it has a capability: it is too old to do what, in words.
func (f *Fleet) Able(tx *store.Tx, runner, capability, what string) error {
	r, err := scanRunner(tx.Row(runnerByID, runner).Scan)
	if err != nil {
		return fmt.Errorf("read Runner %s: %w", runner, err)
	}
	if slices.Contains(r.Capabilities, capability) {
		return nil
	}
	return fault.New(fault.Refused, "Runner %s runs claude-hub %s, which is too old to %s: install claude-hub %s on its host and start it again.",
		r.Name, orUnknown(r.Version), what, f.o.Version)
}

// Platform is what a Runner said it runs on ("linux/amd64"), revoked ones included.
func (f *Fleet) Platform(tx *store.Tx, runner string) (string, error) {
	r, err := scanRunner(tx.Row(runnerByID, runner).Scan)
	if err != nil {
		return "", fmt.Errorf("read Runner %s: %w", runner, err)
	}
	return r.Platform, nil
}

// Revoked tells whether a Runner was revoked: nothing it holds will ever be reported again.
func (f *Fleet) Revoked(tx *store.Tx, runner string) (bool, error) {
	r, err := scanRunner(tx.Row(runnerByID, runner).Scan)
	if err != nil {
		return false, fmt.Errorf("read Runner %s: %w", runner, err)
	}
	return r.revoked, nil
}

// Ready answers nil when the Runner with this id or name is online and can take work, else a fault that says why not.
func (f *Fleet) Ready(ctx context.Context, runner string) error {
	if runner == "" {
		return fault.New(fault.NotFound, "No Runner was chosen. Choose one.")
	}
	return f.db.Read(ctx, func(tx *store.Tx) error {
		_, err := f.Pick(tx, Filter{Runner: runner})
		return err
	})
}

func scanRunner(scan func(...any) error) (r Runner, err error) {
	var capabilities, missing string
	var hello, contact, created, revoked int64
	if err := scan(&r.ID, &r.Name, &r.Platform, &r.Version, &r.Protocol, &r.Engine, &capabilities, &missing,
		&r.Limits.CPU, &r.Limits.Memory, &hello, &contact, &created, &revoked); err != nil {
		return Runner{}, err
	}
	if err := errors.Join(json.Unmarshal([]byte(capabilities), &r.Capabilities), json.Unmarshal([]byte(missing), &r.Missing)); err != nil {
		return Runner{}, fmt.Errorf("decode Runner %s: %w", r.ID, err)
	}
	r.LastContact, r.Registered = at(contact), at(created)
	r.hello, r.revoked = hello != 0, revoked != 0
	return r, nil
}

// text is s from a Runner, short and storable.
func text(s string) string { return store.Text(s[:min(len(s), 1000)]) }

func texts(all []string) []string {
	out := make([]string, 0, len(all))
	for _, s := range all[:min(len(all), 100)] {
		out = append(out, text(s))
	}
	return out
}

func orUnknown(s string) string {
	if s == "" {
		return "of an unknown version"
	}
	return s
}

// authCache remembers tokens for authLife. epoch keeps a read that began before a revocation from being remembered.
type authCache struct {
	mu    sync.Mutex
	epoch int
	known map[string]authEntry
}

type authEntry struct {
	runner Runner
	until  time.Time
}

func (c *authCache) init() { c.known = map[string]authEntry{} }

func (c *authCache) get(hash string) (Runner, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.known[hash]
	return e.runner, ok && time.Now().Before(e.until)
}

func (c *authCache) epochNow() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}

func (c *authCache) put(hash string, r Runner, epoch int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch {
		return
	}
	now := time.Now()
	if len(c.known) > 1000 {
		for h, e := range c.known {
			if now.After(e.until) {
				delete(c.known, h)
			}
		}
	}
	c.known[hash] = authEntry{r, now.Add(authLife)}
}

func (c *authCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	clear(c.known)
}
