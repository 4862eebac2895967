package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/runner/redact"
	"github.com/claude-hub/claude-hub/runner/wire"
	"github.com/claude-hub/claude-hub/store"
)

const (
	// relearn is after which time an Owner is asked again what an assignment's values are: another Hub may have served newer
	// ones. What this Hub serves is known before it is served.
	relearn = 5 * time.Second
	// guardRest is after which time without a use the forms of an assignment's values are forgotten. They are made again when needed.
	guardRest = 10 * time.Minute
	// guardOld bounds the values of one assignment that are known though its Owner no longer names them, in bytes.
	guardOld = 4 << 20
)

// guard is the second pass of redaction (facts/reliability.md §1.4 (8)): a Runner masks Sensitive values itself; what of them
// comes to the Hub nevertheless is masked here before it is stored or relayed, and told. For each assignment it knows the values
// that its Owner names now and those that this process served to its Runner before, until the assignment ends; all of it in memory.
// Assignments with the same values share their forms, which take much more memory than the values. While forms are there, the
// process's own log is masked with them too.
type guard struct {
	f      *Fleet
	caught atomic.Int64

	mu     sync.Mutex
	of     map[held]*watch
	forms  map[valueSum]*forms
	toldOf map[string]bool // Runners whose Hello held a value
}

type valueSum [sha256.Size]byte

// held is an assignment in a Runner's hand: what one Runner sends of another's changes nothing.
type held struct{ runner, id string }

// watch is what is known of an assignment. Guarded by guard.mu.
type watch struct {
	values  map[valueSum]*wire.Value
	forms   *forms // nil: to be made when needed
	asked   time.Time
	used    time.Time
	told    map[string]bool // Variables of which a hit was audited
	unwell  bool            // it was logged that the Owner has no answer
	logged  bool            // a hit was
	pending *sync.Mutex     // held by who asks the Owner
}

// forms is a Set that several assignments share. It never changes once it is made.
type forms struct {
	key  valueSum
	refs int // guarded by guard.mu
	make sync.Once
	made atomic.Bool
	set  redact.Set
}

func (g *guard) init(f *Fleet) {
	g.f, g.of, g.forms, g.toldOf = f, map[held]*watch{}, map[valueSum]*forms{}, map[string]bool{}
}

// Caught is how many times this process found a Sensitive value in what a Runner sent.
func (f *Fleet) Caught() int64 { return f.guard.caught.Load() }

// setOf is the Set for what runner sends of an assignment: an empty one when it has no such assignment. An error is the
// database's: what can't be checked is not taken.
func (g *guard) setOf(ctx context.Context, runner, id string) (*redact.Set, error) {
	now := g.f.now()
	g.mu.Lock()
	w := g.watch(runner, id)
	w.used = now
	known, pending := !w.asked.IsZero() && now.Sub(w.asked).Abs() < relearn, w.pending
	g.mu.Unlock()
	if !known {
		pending.Lock()
		err := g.ask(ctx, runner, id, now)
		pending.Unlock()
		switch {
		case errors.Is(err, ErrUnknown):
			g.drop(runner, id)
			return new(redact.Set), nil
		case err != nil:
			return nil, err
		}
	}
	return g.set(runner, id), nil
}

// watch is called with mu held.
func (g *guard) watch(runner, id string) *watch {
	w := g.of[held{runner, id}]
	if w == nil {
		w = &watch{values: map[valueSum]*wire.Value{}, told: map[string]bool{}, pending: new(sync.Mutex), used: g.f.now()}
		g.of[held{runner, id}] = w
	}
	return w
}

// ask learns what the Owner names now, unless somebody else just did.
func (g *guard) ask(ctx context.Context, runner, id string, now time.Time) error {
	g.mu.Lock()
	asked := g.watch(runner, id).asked
	g.mu.Unlock()
	if !asked.IsZero() && !asked.Before(now) {
		return nil
	}
	var values []*wire.Value
	err := g.f.db.Read(ctx, func(tx *store.Tx) error {
		a, err := g.f.of(tx, runner, id)
		if err != nil {
			return err
		}
		o, err := g.f.owner(a.Kind)
		if err != nil {
			return ownerError{err}
		}
		err = guarded(func() (err error) {
			values, _, err = o.Values(tx.Context(), tx, a.Assignment)
			return err
		})
		if err != nil {
			return ownerError{err}
		}
		return nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.As(err, new(ownerError)) {
		g.mu.Lock()
		w := g.watch(runner, id)
		first := !w.unwell
		w.unwell = true
		g.mu.Unlock()
		if first {
			g.f.log.Warn().Err(err).Str("assignment", id).Msg("the values of an assignment could not be read: what its Runner sends is only checked for those known before")
		}
		return nil
	}
	if err != nil {
		return err
	}
	g.learn(runner, id, values)
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.watch(runner, id)
	w.asked, w.unwell = now, false
	return nil
}

// learn adds the Sensitive ones of values, all that the Owner names, to what is known of an assignment.
func (g *guard) learn(runner, id string, values []*wire.Value) {
	fresh := map[valueSum]*wire.Value{}
	for _, v := range values {
		if v.GetSensitive() && redact.Check(v.GetValue()) == nil {
			fresh[sumOf(v)] = v
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.watch(runner, id)
	w.used = g.f.now()
	changed := false
	for sum, v := range fresh {
		if w.values[sum] == nil {
			w.values[sum], changed = &wire.Value{Name: v.GetName(), Value: bytes.Clone(v.GetValue())}, true
		}
	}
	if !changed {
		return
	}
	old := 0
	for sum, v := range w.values {
		if fresh[sum] == nil {
			old += len(v.GetValue())
		}
	}
	if old > guardOld {
		maps.DeleteFunc(w.values, func(sum valueSum, _ *wire.Value) bool { return fresh[sum] == nil })
	}
	g.release(w)
}

func sumOf(v *wire.Value) valueSum {
	h := sha256.New()
	mix(h, v.GetName(), string(v.GetValue()))
	return valueSum(h.Sum(nil))
}

// set makes the forms of what is known, or finds them with another assignment that has the same values.
func (g *guard) set(runner, id string) *redact.Set {
	g.mu.Lock()
	w := g.watch(runner, id)
	if w.forms == nil {
		h := sha256.New()
		for _, sum := range slices.SortedFunc(maps.Keys(w.values), func(a, b valueSum) int { return bytes.Compare(a[:], b[:]) }) {
			h.Write(sum[:])
		}
		key := valueSum(h.Sum(nil))
		if g.forms[key] == nil {
			g.forms[key] = &forms{key: key}
			if len(w.values) > 0 {
				redact.Process.Join(&g.forms[key].set)
			}
		}
		w.forms = g.forms[key]
		w.forms.refs++
	}
	shared := w.forms
	var values map[valueSum]*wire.Value
	if !shared.made.Load() {
		values = maps.Clone(w.values)
	}
	g.mu.Unlock()
	shared.make.Do(func() {
		for _, v := range values {
			_ = shared.set.Add(v.GetName(), v.GetValue()) // was checked
		}
		shared.made.Store(true)
	})
	return &shared.set
}

// release is called with mu held.
func (g *guard) release(w *watch) {
	if w.forms == nil {
		return
	}
	if w.forms.refs--; w.forms.refs == 0 {
		redact.Process.Leave(&w.forms.set)
		delete(g.forms, w.forms.key)
	}
	w.forms = nil
}

// drop forgets an assignment.
func (g *guard) drop(runner, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := g.of[held{runner, id}]; w != nil {
		g.release(w)
		delete(g.of, held{runner, id})
	}
}

// close frees all forms. They are made again when needed.
func (g *guard) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.of {
		g.release(w)
	}
}

// rest frees what was not used for a while: the forms, and all of an assignment that has ended on another Hub.
func (g *guard) rest(ctx context.Context, now time.Time) error {
	g.mu.Lock()
	var unused []held
	for h, w := range g.of {
		if now.Sub(w.used) > guardRest {
			g.release(w)
			w.used = now
			unused = append(unused, h)
		}
	}
	g.mu.Unlock()
	for _, h := range unused {
		var a Assignment
		err := g.f.db.Read(ctx, func(tx *store.Tx) (err error) {
			a, err = g.f.Get(tx, h.id)
			return err
		})
		switch {
		case errors.Is(err, ErrUnknown), err == nil && !a.Removed.IsZero():
			g.drop(h.runner, h.id)
		case err != nil:
			return fmt.Errorf("look whether assignment %s is still there: %w", h.id, err)
		}
	}
	return nil
}

// tell counts hits, and audits and logs each Variable's first one in an assignment. where is what held it, in a word.
func (g *guard) tell(ctx context.Context, runner, id, where string, hits int, names []string) {
	if hits == 0 || len(names) == 0 {
		return
	}
	g.caught.Add(int64(hits))
	g.mu.Lock()
	w := g.watch(runner, id)
	var fresh []string
	for _, name := range names {
		if !w.told[name] {
			w.told[name] = true
			fresh = append(fresh, name)
		}
	}
	first := len(fresh) > 0 && !w.logged
	w.logged = w.logged || first
	g.mu.Unlock()
	if len(fresh) == 0 {
		return
	}
	if first {
		g.f.log.Error().Str("runner", runner).Str("assignment", id).Strs("variables", fresh).Str("in", where).
			Msg("a Runner sent a Sensitive value that it should have masked: it was masked here; update the Runner, and look into what it runs")
	}
	if err := g.audit(ctx, runner, id, where, fresh); err != nil {
		g.f.log.Error().Err(err).Str("assignment", id).Msg("that a Runner sent a Sensitive value could not be audited; tried again at the next one")
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, name := range fresh {
			delete(w.told, name)
		}
	}
}

func (g *guard) audit(ctx context.Context, runner, subject, where string, names []string) error {
	// The caller may be gone before this is written; that it happened matters nevertheless.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return g.f.db.Write(ctx, func(tx *store.Tx) error {
		r, err := scanRunner(tx.Row(runnerByID, runner).Scan)
		if err != nil {
			return fmt.Errorf("read Runner %s: %w", runner, err)
		}
		return audit.Record(tx, audit.Entry{Who: "system: second redaction", Action: "runner.sent-value", Subject: subject,
			Detail: map[string]any{"runner": r.Name, "variables": names, "in": where}})
	})
}

// hide masks in b, without changing its length, what of the Set's values stands in it. b itself stays as it is, and is the answer
// when there is nothing.
func hide(set *redact.Set, b []byte) (masked []byte, hits int, names []string) {
	spans, names := set.Find(b)
	if len(spans) == 0 {
		return b, 0, nil
	}
	masked = bytes.Clone(b)
	for _, s := range spans {
		fill(masked[s.From:s.To])
	}
	return masked, len(spans), names
}

// fill writes asterisks over b. Ends of lines stay, so that a log keeps its lines.
func fill(b []byte) {
	for i, c := range b {
		if c != '\n' {
			b[i] = '*'
		}
	}
}

const (
	// borderTail is how much of what came before is looked at again when more of a stream comes.
	borderTail = 8 << 10
	// borderHead is how much of what comes is looked at with it; more, while something found goes on at its end.
	borderHead = 8 << 10
)

// border finds what stands across the border between the tail of a stream and what comes after it now, in offsets from the
// border; what lies in the tail alone only if all is set, which it is when values were added since. What lies in fresh alone is not
// its matter.
func border(set *redact.Set, tail, fresh []byte, all bool) (spans []redact.Span, names []string) {
	if len(tail) == 0 {
		return nil, nil
	}
	for size := borderHead; ; size *= 2 {
		head := fresh[:min(size, len(fresh))]
		found, of := set.Find(append(bytes.Clone(tail), head...))
		end := len(tail) + len(head)
		if n := len(found); n > 0 && found[n-1].To == end && len(head) < len(fresh) && found[n-1].From < len(tail) {
			continue
		}
		for _, s := range found {
			if s.From < len(tail) && (s.To > len(tail) || all) {
				spans = append(spans, redact.Span{From: s.From - len(tail), To: s.To - len(tail)})
			}
		}
		if len(spans) == 0 {
			return nil, nil
		}
		return spans, of
	}
}

// after is the new tail of a stream whose tail was tail and which went on with fresh.
func after(tail, fresh []byte) []byte {
	if len(fresh) >= borderTail {
		return bytes.Clone(fresh[len(fresh)-borderTail:])
	}
	keep := tail[max(0, len(tail)+len(fresh)-borderTail):]
	return append(append(make([]byte, 0, len(keep)+len(fresh)), keep...), fresh...)
}

// hideJSON masks in the strings of a valid JSON document, keys included, what of the Set's values stands in them. All else stays
// byte for byte.
func hideJSON(set *redact.Set, doc []byte) (masked []byte, hits int, names []string) {
	if bytes.IndexByte(doc, '"') < 0 {
		return doc, 0, nil
	}
	seen := map[string]bool{}
	masked = make([]byte, 0, len(doc))
	for i := 0; i < len(doc); {
		if doc[i] != '"' {
			masked = append(masked, doc[i])
			i++
			continue
		}
		end := i + 1
		for end < len(doc) && doc[end] != '"' {
			if doc[end] == '\\' {
				end++
			}
			end++
		}
		end = min(end+1, len(doc))
		literal := doc[i:end]
		i = end
		var s string
		if err := json.Unmarshal(literal, &s); err != nil {
			masked = append(masked, literal...) // doc is not valid; its reader says so
			continue
		}
		spans, of := set.Find([]byte(s))
		if len(spans) == 0 {
			masked = append(masked, literal...)
			continue
		}
		hits += len(spans)
		for _, name := range of {
			seen[name] = true
		}
		clean, err := json.Marshal(set.Text(s))
		if err != nil { // never: a Text is a string
			clean = []byte(`"` + redact.Mask + `"`)
		}
		masked = append(masked, clean...)
	}
	if hits == 0 {
		return doc, 0, nil
	}
	return masked, hits, slices.Sorted(maps.Keys(seen))
}

// hideTexts masks in texts of a Runner's own what of the values of any of its assignments stands in them.
func (g *guard) hideTexts(ctx context.Context, runner string, texts []string) {
	g.mu.Lock()
	var ids []string
	for h, w := range g.of {
		if h.runner == runner && len(w.values) > 0 {
			ids = append(ids, h.id)
		}
	}
	told := g.toldOf[runner]
	g.mu.Unlock()
	hits := 0
	var names []string
	for _, id := range ids {
		set := g.set(runner, id)
		for i, t := range texts {
			spans, of := set.Find([]byte(t))
			if len(spans) > 0 {
				hits += len(spans)
				names = append(names, of...)
				texts[i] = set.Text(t).String()
			}
		}
	}
	if hits == 0 {
		return
	}
	g.caught.Add(int64(hits))
	if told {
		return
	}
	slices.Sort(names)
	names = slices.Compact(names)
	g.f.log.Error().Str("runner", runner).Strs("variables", names).Msg("a Runner's Hello held a Sensitive value: it was masked")
	if err := g.audit(ctx, runner, runner, "hello", names); err != nil {
		g.f.log.Error().Err(err).Str("runner", runner).Msg("that a Runner's Hello held a Sensitive value could not be audited")
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.toldOf[runner] = true
}
