package variable

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store"
)

// Keep stores what spec's Variables say now, for an Environment, and returns spec detached, with the id of each value.
//
// A Plain one's value is in spec; the same text again gets the same id. A Sensitive one's new value is in given, by name,
// and gets a new id. Without a new one it keeps the value that a Sensitive Variable in before has, under its ValueID where
// spec says one (so that a rename keeps it), else under its name; before are those it may keep from, such as the draft's,
// the current version's, and a restored one's, the first found counting. A Sensitive Variable that has no value anywhere is
// stored without; Missing names it. A new value for one whose own was lost takes its place and id. No two Variables have one
// Sensitive value: the second that would, or that has it by its name only, needs a new one.
//
// A Sensitive value never becomes Plain: a Variable that was Sensitive needs a value of its own to be Plain, and the other
// way round. Each thing wrong is a fault.Invalid with the field "variables.NAME". Without an encryption key a new Sensitive
// value is refused.
func (v *Vault) Keep(tx *store.Tx, environment string, before []envspec.Variable, spec envspec.Spec, given Given, who string) (envspec.Spec, error) {
	stored, err := rows(tx, environment, own(slices.Concat(before, spec.Variables)))
	if err != nil {
		return envspec.Spec{}, err
	}
	k := keeping{vault: v, tx: tx, environment: environment, before: before, given: given, stored: stored, who: who, seen: map[string]bool{}, holder: map[string]string{}}
	for _, x := range spec.Variables {
		k.claim(x)
	}
	out := envspec.Detach(spec)
	for i := range out.Variables {
		if err := k.one(&out.Variables[i], spec.Variables[i].Value); err != nil {
			return envspec.Spec{}, err
		}
	}
	for name := range given {
		if !k.seen[name] {
			k.wrong(name, fmt.Errorf("a value was given for %s, which is no Variable here", name))
		}
	}
	if len(k.problems) == 0 && k.total > envspec.MaxVariablesTotal {
		k.wrong("", fmt.Errorf("names and values of the Variables and Links have %d bytes together; at most %d are possible", k.total, envspec.MaxVariablesTotal))
	}
	if len(k.problems) > 0 {
		return envspec.Spec{}, k.fault()
	}
	return out, nil
}

type keeping struct {
	vault       *Vault
	tx          *store.Tx
	environment string
	before      []envspec.Variable
	given       Given
	stored      map[string]row
	who         string
	seen        map[string]bool
	holder      map[string]string // id of a Sensitive value → name of the Variable that has it from now on
	total       int
	problems    map[string]string // field → sentence
}

func (k *keeping) wrong(name string, err error) {
	if k.problems == nil {
		k.problems = map[string]string{}
	}
	field := "variables"
	if name != "" {
		field += "." + name
	}
	if _, said := k.problems[field]; !said {
		s := sentence(err.Error())
		if !strings.HasSuffix(s, "?") {
			s += "."
		}
		k.problems[field] = s
	}
}

func (k *keeping) fault() error {
	var fields, all []string
	for f := range k.problems {
		fields = append(fields, f)
	}
	slices.Sort(fields)
	for _, f := range fields {
		all = append(all, k.problems[f])
	}
	f := fault.New(fault.Invalid, "%s", strings.Join(all, "\n"))
	f.Fields = k.problems
	return f
}

// one gives x its ValueID. What is wrong with it goes to problems.
func (k *keeping) one(x *envspec.Variable, value string) error {
	if k.seen[x.Name] {
		k.wrong(x.Name, fmt.Errorf("the name %s is there twice: each Variable and Link needs a name of its own", x.Name))
		return nil
	}
	k.seen[x.Name] = true
	k.total += len(x.Name)
	given, isGiven := k.given[x.Name]
	switch {
	case x.Link != "":
		if isGiven {
			k.wrong(x.Name, fmt.Errorf("a value was given for %s, which is a Link: it has the value of the Shared variable %s", x.Name, x.Link))
			return nil
		}
		return k.link(x, value)
	case x.Sensitive && value != "":
		k.wrong(x.Name, fmt.Errorf("%s is Sensitive, so its value doesn't stand in the document: enter it apart", x.Name))
		return nil
	case x.Sensitive:
		return k.sensitive(x, given, isGiven)
	case isGiven:
		k.wrong(x.Name, fmt.Errorf("a value was given apart for %s, which isn't Sensitive", x.Name))
		return nil
	}
	return k.plain(x, value)
}

func (k *keeping) link(x *envspec.Variable, value string) error {
	x.ValueID = ""
	if x.Sensitive || value != "" {
		k.wrong(x.Name, fmt.Errorf("%s is a Link: the Shared variable %s says what it is, and has its value", x.Name, x.Link))
		return nil
	}
	s, err := shared(k.tx, x.Link)
	k.total += s.size()
	if fault.Is(err, fault.NotFound) {
		near, err := nearest(k.tx, x.Link)
		if err != nil {
			return err
		}
		k.wrong(x.Name, fmt.Errorf("%s links the Shared variable %s, which doesn't exist%s", x.Name, x.Link, near))
		return nil
	}
	return err
}

func (k *keeping) plain(x *envspec.Variable, value string) error {
	if value == "" && k.wasSensitive(*x) {
		k.wrong(x.Name, fmt.Errorf("%s is Sensitive, and a Sensitive value never becomes Plain: give it a new value", x.Name))
		return nil
	}
	if err := checkPlain(x.Name, value); err != nil {
		k.wrong(x.Name, err)
		return nil
	}
	k.total += len(value)
	if len(k.problems) > 0 {
		return nil
	}
	id, err := keepPlain(k.tx, k.environment, value, k.who)
	x.ValueID = id
	return err
}

// wasSensitive says whether x, which is Plain now, was Sensitive where it comes from.
func (k *keeping) wasSensitive(x envspec.Variable) bool {
	if r, ok := k.stored[x.ValueID]; ok {
		return r.sensitive
	}
	for _, b := range k.before {
		if b.Name == x.Name {
			return b.Sensitive
		}
	}
	return false
}

func keepPlain(tx *store.Tx, environment, value, who string) (string, error) {
	sum := sha256.Sum256([]byte(value))
	digest := hex.EncodeToString(sum[:])
	var id, same string
	err := tx.Row(plainSQL, environment, digest).Scan(&id, &same)
	switch {
	case err == nil && same == value:
		return id, nil
	case err == nil:
		return "", errors.New("the value of a Plain Variable was changed in the database behind claude-hub's back")
	case !errors.Is(err, store.ErrNotFound):
		return "", fmt.Errorf("look for a Plain value: %w", err)
	}
	id = store.NewID()
	n, err := tx.Exec(insertPlainSQL, id, environment, value, digest, tx.Now(), who)
	if err != nil {
		return "", fmt.Errorf("save a Plain value: %w", err)
	}
	if n != 1 {
		return "", fault.New(fault.Conflict, "Somebody else saved this Environment at the same moment. Open it again.")
	}
	return id, nil
}

func (k *keeping) sensitive(x *envspec.Variable, given []byte, isGiven bool) error {
	kept, err := k.keeps(*x, isGiven)
	if err != nil && !isGiven {
		k.wrong(x.Name, err)
		return nil
	}
	x.ValueID = kept
	old := k.stored[kept]
	if !isGiven {
		k.total += max(0, len(old.sealed)-seal.Overhead)
		return nil
	}
	if err := checkSensitive(x.Name, given); err != nil {
		k.wrong(x.Name, err)
		return nil
	}
	k.total += len(given)
	if len(k.problems) > 0 {
		return nil
	}
	if old.lost {
		return k.vault.enter(k.tx, kept, given, k.who)
	}
	x.ValueID = store.NewID()
	sealed, key, err := k.vault.seal.Seal(k.tx, sealedPlace(x.ValueID), given)
	if err != nil {
		return sealing(err)
	}
	if _, err := k.tx.Exec(insertSealedSQL, x.ValueID, k.environment, sealed, key, k.tx.Now(), k.who); err != nil {
		return fmt.Errorf("save a Sensitive value: %w", err)
	}
	return nil
}

// claim has x, which names a value by its id and is left with it, come before those that would have it by their name only.
func (k *keeping) claim(x envspec.Variable) {
	if x.Link != "" || !x.Sensitive || x.ValueID == "" || k.holder[x.ValueID] != "" {
		return
	}
	if _, isGiven := k.given[x.Name]; isGiven && !k.stored[x.ValueID].lost {
		return // it gets an id of its own
	}
	if id, err := k.had(x); err == nil {
		k.holder[id] = x.Name
	}
}

// keeps is the id of the value that x has without a new one, "" for none. Each value is one Variable's: what is
// entered in place of a lost one would be another's too.
func (k *keeping) keeps(x envspec.Variable, isGiven bool) (string, error) {
	id, err := k.had(x)
	if err != nil || id == "" {
		return "", err
	}
	if by := k.holder[id]; by != "" && by != x.Name {
		return "", fmt.Errorf("%s would have the value of %s, and each Sensitive Variable has one of its own: give %s a new value", x.Name, by, x.Name)
	}
	if !isGiven || k.stored[id].lost {
		k.holder[id] = x.Name
	}
	return id, nil
}

// had is the id of the value that x comes with, "" for none.
func (k *keeping) had(x envspec.Variable) (string, error) {
	if x.ValueID == "" {
		for _, b := range k.before {
			if r, ok := k.stored[b.ValueID]; ok && b.Name == x.Name && b.Sensitive && r.sensitive {
				return b.ValueID, nil
			}
		}
		return "", nil
	}
	r, ok := k.stored[x.ValueID]
	switch {
	case ok && !r.sensitive:
		return "", fmt.Errorf("%s was Plain, and what everyone could read is not Sensitive any more: give it a new value", x.Name)
	case !ok || !slices.ContainsFunc(k.before, func(b envspec.Variable) bool { return b.Sensitive && b.ValueID == x.ValueID }):
		return "", fmt.Errorf("%s names a value that neither the draft nor the current version has: leave value_id out, or give it a new value", x.Name)
	}
	return x.ValueID, nil
}

// enter puts value in the place of a lost one.
func (v *Vault) enter(tx *store.Tx, id string, value []byte, who string) error {
	sealed, key, err := v.seal.Seal(tx, sealedPlace(id), value)
	if err != nil {
		return sealing(err)
	}
	n, err := tx.Exec(enterSQL, id, sealed, key, tx.Now(), who)
	if err != nil {
		return fmt.Errorf("save a Sensitive value: %w", err)
	}
	if n != 1 {
		return fault.New(fault.Conflict, "Somebody else entered this value at the same moment. Open the Environment again.")
	}
	return nil
}

// Enter puts value in the place of each lost one that the Variable called name has in vars, for all that name it: it keeps
// its id, so it applies at once, also at build, and no version and no key comes of it (ADR 0009, "A lost key"). vars may be
// of several Specs of the Environment, such as its draft and its current version. It answers how many were lost; none is no
// error, and nothing is stored then.
func (v *Vault) Enter(tx *store.Tx, environment string, vars []envspec.Variable, name string, value []byte, who string) (int, error) {
	stored, err := rows(tx, environment, own(vars))
	if err != nil {
		return 0, err
	}
	var lost []string
	for _, x := range vars {
		if x.Name == name && x.Link == "" && stored[x.ValueID].lost && !slices.Contains(lost, x.ValueID) {
			lost = append(lost, x.ValueID)
		}
	}
	if len(lost) == 0 {
		return 0, nil
	}
	if err := checkSensitive(name, value); err != nil {
		return 0, fault.Field("variables."+name, "%s.", sentence(err.Error()))
	}
	for _, id := range lost {
		if err := v.enter(tx, id, value, who); err != nil {
			return 0, err
		}
	}
	return len(lost), nil
}

// Forget deletes a Sensitive value of an Environment for good. That no Spec names it any more is for the caller to know.
func (v *Vault) Forget(tx *store.Tx, environment, id string) error {
	if _, err := tx.Exec(forgetSQL, environment, id); err != nil {
		return fmt.Errorf("delete a Sensitive value: %w", err)
	}
	return nil
}
