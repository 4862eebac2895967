package variable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/audit"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/github"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store"
)

// MaxShared is how many Shared variables a Hub keeps.
const MaxShared = 1000

// Shared is a Shared variable as people see it. It belongs to no Repo: anyone signed in manages it (ADR 0009).
type Shared struct {
	ID        string
	Name      string
	Note      string
	Sensitive bool
	Revision  int64
	Status    Status // Set or Lost
	Value     string // of a Plain one; of a Sensitive one always ""
	Digest    string // of a Sensitive one that is set: see State
	SetAt     time.Time
	SetBy     string // login
	CreatedAt time.Time
	CreatedBy string // login

	valueID string
	valueAt time.Time
	plain   text
	sealed  []byte
}

// size is how many bytes its value has.
func (s Shared) size() int { return len(s.plain) + max(0, len(s.sealed)-seal.Overhead) }

// Format keeps its value out of everything that fmt makes.
func (s Shared) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "Shared variable %s (%s, revision %d)", s.Name, s.ID, s.Revision)
}

// Users are the Repos whose draft, current version or running Test build links a Shared variable: those that the person may
// use by name, the others by their number.
type Users struct {
	Repos  []access.Repo // by name
	Hidden int
	// AtBuild are those of them where it is available at build.
	AtBuild       []access.Repo
	HiddenAtBuild int
}

// Sentence says who uses it, "" when nobody does.
func (u Users) Sentence() string { return inWords(u.Repos, u.Hidden) }

// Consequence says what a new value means for them.
func (u Users) Consequence() string {
	if by := inWords(u.AtBuild, u.HiddenAtBuild); by != "" {
		return "Sessions get a new value at their next start or wake. It is available at build in the Environment of " + by +
			": there each Runner makes a new build with it the next time a Session boots, without a Test build and without a new version."
	}
	return "Sessions get a new value at their next start or wake."
}

func inWords(repos []access.Repo, hidden int) string {
	var names []string
	for _, r := range repos {
		names = append(names, r.Name)
	}
	switch {
	case hidden == 1:
		names = append(names, "1 Repo that you have no access to")
	case hidden > 1:
		names = append(names, fmt.Sprintf("%d Repos that you have no access to", hidden))
	}
	return list(names)
}

// TopicShared is the topic of store.DB.Changed that is woken at every change of a Shared variable.
const TopicShared = "shared-variables"

// TopicOf is the topic that is woken at every change of a Repo's Environment, also when a Shared variable that it links changes.
func TopicOf(repo github.RepoID) string { return "environment:" + repo.String() }

func scanShared(scan func(...any) error) (s Shared, err error) {
	var plain *string
	var lost time.Time
	err = scan(&s.ID, &s.Name, &s.Note, &s.Sensitive, &s.Revision, &s.valueID, store.At(&s.valueAt), &plain, &s.sealed, store.At(&lost),
		store.At(&s.SetAt), &s.SetBy, store.At(&s.CreatedAt), &s.CreatedBy)
	if plain != nil {
		s.plain, s.Value = text(*plain), *plain
	}
	s.Status = Set
	if !lost.IsZero() {
		s.Status = Lost
	}
	return s, err
}

// shared reads one by its name; a fault of code not-found when there is none.
func shared(tx *store.Tx, name string) (Shared, error) {
	s, err := scanShared(tx.Row(sharedNamedSQL, store.Text(name)).Scan)
	if errors.Is(err, store.ErrNotFound) {
		return Shared{}, fault.New(fault.NotFound, "There is no Shared variable %s.", name)
	}
	if err != nil {
		return Shared{}, fmt.Errorf("read a Shared variable: %w", err)
	}
	return s, nil
}

// digested fills in the digest.
func (v *Vault) digested(s Shared) Shared {
	if s.Sensitive && s.Status == Set {
		if plain, err := v.seal.Open(sharedPlace(s.ID), s.sealed); err == nil {
			s.Digest = v.seal.Digest(plain)
		}
	}
	return s
}

// Shared lists all Shared variables by name, and who uses each, by its id.
func (v *Vault) Shared(ctx context.Context, who access.Person) ([]Shared, map[string]Users, error) {
	if err := signedIn(who); err != nil {
		return nil, nil, err
	}
	repos, err := v.gate.Repos(ctx, who)
	if err != nil {
		return nil, nil, err
	}
	var all []Shared
	var links []link
	err = v.db.Read(ctx, func(tx *store.Tx) (err error) {
		if all, err = store.All(tx, scanShared, sharedSQL); err != nil {
			return fmt.Errorf("list Shared variables: %w", err)
		}
		links, err = store.All(tx, scanLink, allLinksSQL)
		if err != nil {
			return fmt.Errorf("list Links: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	of := map[string][]link{}
	for _, l := range links {
		of[l.shared] = append(of[l.shared], l)
	}
	users := make(map[string]Users, len(all))
	for i := range all {
		all[i] = v.digested(all[i])
		users[all[i].ID] = usersOf(of[all[i].ID], repos)
	}
	return all, users, nil
}

// SharedNamed reads one, and who uses it.
func (v *Vault) SharedNamed(ctx context.Context, who access.Person, name string) (Shared, Users, error) {
	if err := signedIn(who); err != nil {
		return Shared{}, Users{}, err
	}
	repos, err := v.gate.Repos(ctx, who)
	if err != nil {
		return Shared{}, Users{}, err
	}
	var s Shared
	var users Users
	err = v.db.Read(ctx, func(tx *store.Tx) (err error) {
		if s, err = shared(tx, name); err != nil {
			return err
		}
		users, err = linkedBy(tx, s.ID, repos)
		return err
	})
	return v.digested(s), users, err
}

// SharedNames lists their names, which is what somebody who makes a Link chooses from.
func (v *Vault) SharedNames(tx *store.Tx) ([]string, error) {
	return store.All(tx, store.Scan1[string], sharedNamesSQL)
}

func signedIn(who access.Person) error {
	if who.ID() == "" {
		return fault.New(fault.Unauthorized, "You are not signed in.")
	}
	return nil
}

// link says that a Repo links a Shared variable.
type link struct {
	shared string // id
	repo   github.RepoID
	build  bool
}

func scanLink(scan func(...any) error) (l link, err error) {
	return l, scan(&l.shared, &l.repo, &l.build)
}

func links(tx *store.Tx, id string) ([]link, error) {
	all, err := store.All(tx, scanLink, linkedSQL, id)
	if err != nil {
		return nil, fmt.Errorf("read who links a Shared variable: %w", err)
	}
	return all, nil
}

func linkedBy(tx *store.Tx, id string, repos []access.Repo) (Users, error) {
	all, err := links(tx, id)
	return usersOf(all, repos), err
}

// usersOf shows names of repos only, which are those that the person may use.
func usersOf(links []link, repos []access.Repo) (u Users) {
	u.Hidden = len(links)
	for _, l := range links {
		if l.build {
			u.HiddenAtBuild++
		}
	}
	for _, r := range repos { // in the order of names
		i := slices.IndexFunc(links, func(l link) bool { return l.repo == r.ID })
		if i < 0 {
			continue
		}
		u.Repos, u.Hidden = append(u.Repos, r), u.Hidden-1
		if links[i].build {
			u.AtBuild, u.HiddenAtBuild = append(u.AtBuild, r), u.HiddenAtBuild-1
		}
	}
	return u
}

// NewShared is what a Shared variable begins as.
type NewShared struct {
	Name      string
	Note      string
	Sensitive bool
	Value     []byte
}

// Format keeps its value out of everything that fmt makes.
func (n NewShared) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "new Shared variable %s", n.Name)
}

// CreateShared makes one. A name that is taken is a fault.Invalid with the field "name".
func (v *Vault) CreateShared(ctx context.Context, who access.Person, n NewShared) (Shared, error) {
	if err := errors.Join(signedIn(who), checkName(n.Name), checkNote(n.Note), checkSharedValue(n.Name, n.Sensitive, n.Value)); err != nil {
		return Shared{}, fault.Of(err)
	}
	var made Shared
	err := v.db.Write(ctx, func(tx *store.Tx) error {
		names, err := v.SharedNames(tx)
		if err != nil {
			return fmt.Errorf("list Shared variables: %w", err)
		}
		switch {
		case slices.Contains(names, n.Name):
			return taken(n.Name)
		case len(names) >= MaxShared:
			return fault.New(fault.Refused, "This Hub has %d Shared variables, and keeps no more. Delete one that nothing links first.", MaxShared)
		}
		id := store.NewID()
		plain, sealed, key, err := v.store(tx, id, n.Sensitive, n.Value)
		if err != nil {
			return err
		}
		added, err := tx.Exec(insertSharedSQL, id, n.Name, n.Note, n.Sensitive, store.NewID(), tx.Now(), plain, sealed, key, who.ID())
		if err != nil {
			return fmt.Errorf("save a Shared variable: %w", err)
		}
		if added != 1 {
			return taken(n.Name)
		}
		made, err = v.changed(tx, id, who, "create")
		return err
	})
	return made, err
}

func taken(name string) error {
	return fault.Field("name", "There is a Shared variable %s already.", name)
}

// store is the columns of a value: plain, sealed, and the id of the key.
func (v *Vault) store(tx *store.Tx, id string, sensitive bool, value []byte) (plain *string, sealed []byte, key *string, err error) {
	if !sensitive {
		s := string(value)
		return &s, nil, nil, nil
	}
	sealed, keyID, err := v.seal.Seal(tx, sharedPlace(id), value)
	if err != nil {
		return nil, nil, nil, sealing(err)
	}
	return nil, sealed, &keyID, nil
}

// SetShared gives it a new value, and with sensitive what it is from now on. The value has a new id: where an Environment
// uses it at build, its build key moves, and each Runner builds anew the next time a Session boots; without a Test build and
// without a new version. The one exception is a value that is entered in place of a lost one, which keeps its id.
func (v *Vault) SetShared(ctx context.Context, who access.Person, name string, revision int64, sensitive bool, value []byte) (Shared, error) {
	if err := errors.Join(signedIn(who), checkSharedValue(name, sensitive, value)); err != nil {
		return Shared{}, fault.Of(err)
	}
	return v.change(ctx, who, name, revision, "value", func(tx *store.Tx, s Shared) (int64, error) {
		id, at := store.NewID(), tx.Now()
		if s.Status == Lost && sensitive {
			id, at = s.valueID, s.valueAt
		} else if !sensitive && !s.Sensitive && s.Value == string(value) {
			return 1, nil // the same text
		}
		plain, sealed, key, err := v.store(tx, s.ID, sensitive, value)
		if err != nil {
			return 0, err
		}
		return tx.Exec(setSharedSQL, s.ID, s.Revision, sensitive, id, at, plain, sealed, key, tx.Now(), who.ID())
	})
}

// NoteShared changes its note, and nothing of its value.
func (v *Vault) NoteShared(ctx context.Context, who access.Person, name string, revision int64, note string) (Shared, error) {
	if err := errors.Join(signedIn(who), checkNote(note)); err != nil {
		return Shared{}, fault.Of(err)
	}
	return v.change(ctx, who, name, revision, "note", func(tx *store.Tx, s Shared) (int64, error) {
		return tx.Exec(noteSharedSQL, s.ID, s.Revision, note)
	})
}

// RenameShared changes its name, and nothing of its value. It is refused while something links it: Links name it by name, in
// versions too, which never change.
func (v *Vault) RenameShared(ctx context.Context, who access.Person, name string, revision int64, to string) (Shared, error) {
	if err := errors.Join(signedIn(who), checkName(to)); err != nil {
		return Shared{}, fault.Of(err)
	}
	repos, err := v.gate.Repos(ctx, who)
	if err != nil {
		return Shared{}, err
	}
	return v.change(ctx, who, name, revision, "rename", func(tx *store.Tx, s Shared) (int64, error) {
		if err := unused(tx, repos, s, "renamed"); err != nil {
			return 0, err
		}
		if _, err := shared(tx, to); !fault.Is(err, fault.NotFound) {
			if err == nil {
				err = taken(to)
			}
			return 0, err
		}
		return tx.Exec(renameSharedSQL, s.ID, s.Revision, to)
	})
}

// DeleteShared deletes it with its value. It is refused while something links it.
func (v *Vault) DeleteShared(ctx context.Context, who access.Person, name string, revision int64) error {
	if err := signedIn(who); err != nil {
		return err
	}
	repos, err := v.gate.Repos(ctx, who)
	if err != nil {
		return err
	}
	_, err = v.change(ctx, who, name, revision, "delete", func(tx *store.Tx, s Shared) (int64, error) {
		if err := unused(tx, repos, s, "deleted"); err != nil {
			return 0, err
		}
		return tx.Exec(deleteSharedSQL, s.ID, s.Revision)
	})
	return err
}

// unused refuses what can't be done while something links s. repos are those that the person may use.
func unused(tx *store.Tx, repos []access.Repo, s Shared, what string) error {
	users, err := linkedBy(tx, s.ID, repos)
	if err != nil {
		return err
	}
	if by := users.Sentence(); by != "" {
		return fault.New(fault.Refused, "The Shared variable %s can't be %s while a draft or an applied version links it: that of %s. "+
			"Take the Link out there first, and let Test builds that still use it end.", s.Name, what, by)
	}
	return nil
}

// change runs f on one at the revision that its caller had read.
func (v *Vault) change(ctx context.Context, who access.Person, name string, revision int64, action string, f func(*store.Tx, Shared) (int64, error)) (Shared, error) {
	var after Shared
	err := v.db.Write(ctx, func(tx *store.Tx) error {
		s, err := shared(tx, name)
		if err != nil {
			return err
		}
		if s.Revision != revision {
			return fault.New(fault.Conflict, "The Shared variable %s was changed meanwhile: it is at revision %d, you had read %d. Nothing of yours was saved; look at it and try again.",
				name, s.Revision, revision)
		}
		n, err := f(tx, s)
		if err != nil {
			return err
		}
		if n != 1 {
			return fault.New(fault.Conflict, "The Shared variable %s was changed by somebody else at the same moment. Look at it and try again.", name)
		}
		if action == "delete" {
			tx.Wake(TopicShared)
			return recordShared(tx, who, s, action)
		}
		after, err = v.changed(tx, s.ID, who, action)
		return err
	})
	return after, err
}

// changed reads what was written, and says so to those who wait and to the audit log.
func (v *Vault) changed(tx *store.Tx, id string, who access.Person, action string) (Shared, error) {
	s, err := scanShared(tx.Row(sharedByIDSQL, id).Scan)
	if err != nil {
		return Shared{}, fmt.Errorf("read a Shared variable: %w", err)
	}
	by, err := links(tx, id)
	if err != nil {
		return Shared{}, err
	}
	for _, l := range by {
		tx.Wake(TopicOf(l.repo))
	}
	tx.Wake(TopicShared)
	return v.digested(s), recordShared(tx, who, s, action)
}

func recordShared(tx *store.Tx, who access.Person, s Shared, action string) error {
	return audit.Record(tx, audit.Entry{Who: who.ID(), Action: "shared-variable." + action, Subject: s.ID, Detail: map[string]any{
		"name": s.Name, "sensitive": s.Sensitive, "revision": s.Revision,
	}})
}

// Hold records the Shared variables that spec links, for as long as holder (the id of a draft, of a current version, or of a
// Test build that has not ended) stands for it, in place of those it had: none of them can be renamed or deleted meanwhile.
func (v *Vault) Hold(tx *store.Tx, environment, holder string, spec envspec.Spec) error {
	if err := v.Release(tx, holder); err != nil {
		return err
	}
	for _, x := range spec.Variables {
		if x.Link == "" {
			continue
		}
		s, err := shared(tx, x.Link)
		if fault.Is(err, fault.NotFound) {
			return fault.Field("variables."+x.Name, "%s links the Shared variable %s, which doesn't exist any more.", x.Name, x.Link)
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(linkSQL, holder, s.ID, environment, x.Build); err != nil {
			return fmt.Errorf("save a Link: %w", err)
		}
	}
	return nil
}

// Release gives up what Hold recorded for holder.
func (v *Vault) Release(tx *store.Tx, holder string) error {
	if _, err := tx.Exec(unlinkSQL, holder); err != nil {
		return fmt.Errorf("delete Links: %w", err)
	}
	return nil
}

// Moved is a Link whose Shared variable has another value now.
type Moved struct {
	Name   string // the Link's own
	Shared string
	At     time.Time
	By     string // login
}

// MovedSince lists the Links of spec, available at build, whose Shared variable got a new value after a time, in the order
// of spec: builds made before it hold the old one.
func (v *Vault) MovedSince(tx *store.Tx, spec envspec.Spec, since time.Time) ([]Moved, error) {
	var moved []Moved
	for _, x := range spec.Variables {
		if x.Link == "" || !x.AtBuild() {
			continue
		}
		s, err := shared(tx, x.Link)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if s.valueAt.After(since) {
			moved = append(moved, Moved{Name: x.Name, Shared: s.Name, At: s.valueAt, By: s.SetBy})
		}
	}
	return moved, nil
}

func checkName(name string) error {
	if err := envspec.CheckName(name); err != nil {
		return fault.Field("name", "%s.", sentence(err.Error()))
	}
	return nil
}

func checkNote(note string) error {
	if err := envspec.CheckNote(note); err != nil {
		return fault.Field("note", "%s.", sentence(err.Error()))
	}
	return nil
}

func checkSharedValue(name string, sensitive bool, value []byte) error {
	err := checkPlain(name, string(value))
	if sensitive {
		err = checkSensitive(name, value)
	}
	if err != nil {
		return fault.Field("value", "%s.", sentence(err.Error()))
	}
	return nil
}

// nearest is a hint for somebody who mistyped the name of a Shared variable, to be put behind the sentence that says so.
func nearest(tx *store.Tx, name string) (string, error) {
	all, err := store.All(tx, store.Scan1[string], sharedNamesSQL)
	if err != nil {
		return "", fmt.Errorf("list Shared variables: %w", err)
	}
	const most = 3
	var near []string
	for far := 0; far <= max(1, len(name)/3) && len(near) < most; far++ {
		for _, n := range all {
			if len(near) < most && envspec.Distance(strings.ToUpper(n), strings.ToUpper(name)) == far {
				near = append(near, n)
			}
		}
	}
	if len(near) == 0 {
		return fmt.Sprintf("; make it first, by “claude-hub shared create %s” or on the page of Shared variables", name), nil
	}
	return ". Did you mean " + strings.Replace(list(near), " and ", " or ", 1) + "?", nil
}
