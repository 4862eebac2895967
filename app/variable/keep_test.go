package variable_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/app/seal"
	"github.com/claude-hub/claude-hub/app/variable"
	"github.com/claude-hub/claude-hub/envspec"
	"github.com/claude-hub/claude-hub/store"
	"github.com/claude-hub/claude-hub/store/storetest"
)

const token = "tok-en/of+eight=more"

func TestValuesComeBackByteForByte(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		noise := make([]byte, envspec.MaxValue)
		random := rand.New(rand.NewPCG(1, 2))
		for i := range noise {
			noise[i] = byte(1 + random.IntN(255))
		}
		secrets := map[string][]byte{
			"PEM":   []byte("-----BEGIN KEY-----\nMIIE\n-----END KEY-----\n"),
			"JSON":  []byte(`{"a":"b\"c","d":[1, 2]}`),
			"ODD":   []byte("=#$'\"`\\ \t\r\n é 🚀 ${X}\n\n"),
			"NOISE": noise,
		}
		texts := map[string]string{"EMPTY": "", "TEXT": " two\nlines\n", "EMOJI": "🚀=#$\"'`\\", "LONG": strings.Repeat("ä", envspec.MaxValue/2)}
		var vars []envspec.Variable
		for name := range secrets {
			vars = append(vars, sensitive(name))
		}
		for name, value := range texts {
			vars = append(vars, plain(name, value))
		}
		got := r.keep(nil, of(vars...), secrets)
		for _, v := range got.Variables {
			if v.Value != "" || v.ValueID == "" {
				t.Errorf("%s is stored with a value of %d bytes and the id %q", v.Name, len(v.Value), v.ValueID)
			}
		}
		all, err := r.resolve(got)
		if err != nil || len(all) != len(vars) {
			t.Fatalf("%d values, %v", len(all), err)
		}
		for i, v := range all {
			want, isSecret := secrets[v.GetName()]
			if !isSecret {
				want = []byte(texts[v.GetName()])
			}
			if sha256.Sum256(v.GetValue()) != sha256.Sum256(want) || v.GetSensitive() != isSecret || v.GetBuild() == isSecret {
				t.Errorf("%s: %d bytes of %d, sensitive %v, build %v", v.GetName(), len(v.GetValue()), len(want), v.GetSensitive(), v.GetBuild())
			}
			if i > 0 && all[i-1].GetName() >= v.GetName() {
				t.Errorf("%s comes after %s", v.GetName(), all[i-1].GetName())
			}
		}
		filled := got
		if err := r.db.Read(t.Context(), func(tx *store.Tx) error { return r.Fill(tx, "here", &filled) }); err != nil {
			t.Fatal(err)
		}
		for i, v := range filled.Variables {
			if v.Value != texts[v.Name] || got.Variables[i].Value != "" {
				t.Errorf("filled, %s has %d bytes", v.Name, len(v.Value))
			}
		}
	})
}

func TestAPlainValueKeepsItsIDWhileItsTextIsTheSame(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		first := r.keep(nil, of(plain("A", "x"), plain("B", "y")), nil)
		again := r.keep(first.Variables, of(plain("A", "x"), plain("C", "y"), plain("B", "z")), nil)
		a, b, c := again.Variables[0].ValueID, again.Variables[2].ValueID, again.Variables[1].ValueID
		if a != first.Variables[0].ValueID || c != first.Variables[1].ValueID || b == a || b == c {
			t.Errorf("before %+v, after %+v", first.Variables, again.Variables)
		}
		back := r.keep(again.Variables, of(plain("B", "y")), nil)
		if back.Variables[0].ValueID != c {
			t.Error("the old text again has another id")
		}
		there, err := r.tryKeep("there", nil, of(plain("A", "x")), nil)
		if err != nil || there.Variables[0].ValueID == a {
			t.Errorf("another Environment has the same id: %v", err)
		}
	})
}

func TestASensitiveValueIsKeptUntilItGetsANewOne(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		first := r.keep(nil, of(sensitive("A")), map[string][]byte{"A": []byte(token)})
		id := first.Variables[0].ValueID
		blob := r.blob(id)

		flagged := sensitive("A")
		flagged.Build, flagged.Note = true, "for the registry"
		renamed := sensitive("NEW_NAME")
		renamed.ValueID = id
		for what, v := range map[string]envspec.Variable{"as it was": sensitive("A"), "with flag and note": flagged, "renamed": renamed} {
			got := r.keep(first.Variables, of(v), nil)
			if got.Variables[0].ValueID != id || !bytes.Equal(r.blob(id), blob) {
				t.Errorf("%s: the value moved from %s to %s, or was written anew", what, id, got.Variables[0].ValueID)
			}
			if sent := r.wantValue(got, v.Name, token); sent.GetBuild() != v.Build {
				t.Errorf("%s: build %v", what, sent.GetBuild())
			}
		}
		changed := r.keep(first.Variables, of(sensitive("A")), map[string][]byte{"A": []byte(token)})
		if changed.Variables[0].ValueID == id {
			t.Error("a new value has the id of the old one")
		}
		if !bytes.Equal(r.blob(id), blob) {
			t.Error("the old value was written over")
		}
		// The draft's counts before the current version's.
		got := r.keep(slices.Concat(changed.Variables, first.Variables), of(sensitive("A")), nil)
		if got.Variables[0].ValueID != changed.Variables[0].ValueID {
			t.Error("the version's value came back")
		}
	})
}

func TestNoTwoVariablesHaveOneSensitiveValue(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		before := r.keep(nil, of(sensitive("A"), sensitive("B")), map[string][]byte{"A": []byte(token), "B": []byte(token)}).Variables
		a, b := before[0].ValueID, before[1].ValueID
		if a == b {
			t.Fatal("the same text for two has one id")
		}
		has := func(name, id string) envspec.Variable {
			v := sensitive(name)
			v.ValueID = id
			return v
		}
		const says = " would have the value of "
		_, err := r.tryKeep("here", before, of(has("A", a), has("B", a)), nil)
		refused(t, err, "variables.B", "B"+says+"A, and each Sensitive Variable has one of its own: give B a new value.")
		// An id comes before a name, in whichever order they stand.
		for _, vars := range [][]envspec.Variable{{has("NEW", a), sensitive("A")}, {sensitive("A"), has("NEW", a)}} {
			_, err = r.tryKeep("here", before, of(vars...), nil)
			refused(t, err, "variables.A", "A"+says+"NEW")
			got := r.keep(before, of(vars...), map[string][]byte{"A": []byte("a-value-of-its-own")})
			r.wantValue(got, "NEW", token)
			r.wantValue(got, "A", "a-value-of-its-own")
		}
		// Neither do two that a Spec from before this rule has with one id.
		_, err = r.tryKeep("here", []envspec.Variable{has("A", a), has("B", a)}, of(sensitive("A"), sensitive("B")), nil)
		refused(t, err, "variables.B", "B"+says+"A")

		swapped := r.keep(before, of(has("A", b), has("B", a)), nil)
		if swapped.Variables[0].ValueID != b || swapped.Variables[1].ValueID != a {
			t.Errorf("swapped: %+v", swapped.Variables)
		}
		renamed := r.keep(before, of(has("A", a), has("C", a)), map[string][]byte{"A": []byte("a-value-of-its-own")})
		if renamed.Variables[1].ValueID != a {
			t.Error("C doesn't have what A gave up")
		}
		r.wantValue(renamed, "A", "a-value-of-its-own")

		r = r.lose(2)
		// Of two that would take one lost value's place, the one that names it does.
		got := r.keep(before, of(sensitive("A"), has("NEW", a)), map[string][]byte{"A": []byte("entered-for-a"), "NEW": []byte("entered-for-new")})
		if got.Variables[1].ValueID != a || got.Variables[0].ValueID == a {
			t.Errorf("after the key was lost: %+v", got.Variables)
		}
		r.wantValue(got, "A", "entered-for-a")
		r.wantValue(got, "NEW", "entered-for-new")
	})
}

func TestASensitiveValueNeverBecomesPlain(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		before := r.keep(nil, of(sensitive("A"), plain("P", "public")), map[string][]byte{"A": []byte(token)}).Variables
		id, public := before[0].ValueID, before[1].ValueID
		_, err := r.tryKeep("here", before, of(plain("A", "")), nil)
		refused(t, err, "variables.A", "never becomes Plain: give it a new value")
		withID := plain("A", "")
		withID.ValueID = id
		_, err = r.tryKeep("here", before, of(withID), nil)
		refused(t, err, "variables.A", "never becomes Plain")
		withID.Name = "OTHER"
		_, err = r.tryKeep("here", before, of(withID), nil)
		refused(t, err, "variables.OTHER", "never becomes Plain")
		_, err = r.tryKeep("here", nil, of(withID), nil) // deleted in between
		refused(t, err, "variables.OTHER", "never becomes Plain")

		withID.Value = "a new one"
		got := r.keep(before, of(withID), nil)
		if got.Variables[0].ValueID == id {
			t.Error("the new Plain value has the Sensitive one's id")
		}
		r.wantValue(got, "OTHER", "a new one")

		taken := sensitive("A")
		taken.ValueID = public
		_, err = r.tryKeep("here", before, of(taken), nil)
		refused(t, err, "variables.A", "was Plain")
		if got := r.keep(before, of(sensitive("P")), nil); got.Variables[0].ValueID != "" {
			t.Error("a Plain value was taken over as Sensitive")
		}
		if got := r.keep(before, of(taken), map[string][]byte{"A": []byte("brand-new-value")}); got.Variables[0].ValueID == public {
			t.Error("a new value has the id of the Plain one")
		}
	})
}

func TestAValueOfAnotherEnvironmentIsRefused(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		there, err := r.tryKeep("there", nil, of(sensitive("A")), map[string][]byte{"A": []byte(token)})
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.tryKeep("here", nil, of(there.Variables...), nil)
		refused(t, err, "variables.A", "neither the draft nor the current version has")
		// Nor one of this Environment that is in none of the Specs it may be kept from.
		mine := r.keep(nil, of(sensitive("A")), map[string][]byte{"A": []byte(token)})
		_, err = r.tryKeep("here", nil, of(mine.Variables...), nil)
		refused(t, err, "variables.A", "neither the draft nor the current version has")
		if _, err := r.resolve(there); !fault.Is(err, fault.Refused) {
			t.Errorf("a Spec with another Environment's value resolves: %v", err)
		}
	})
}

func TestWhatCanBeNoValueIsRefusedWithItsReason(t *testing.T) {
	r := one(t)
	long := bytes.Repeat([]byte("x"), envspec.MaxValue+1)
	for _, c := range []struct {
		v     envspec.Variable
		given map[string][]byte
		field string
		says  string
	}{
		{sensitive("A"), map[string][]byte{"A": []byte("1234567")}, "variables.A", "at least 8 characters"},
		{sensitive("A"), map[string][]byte{"A": []byte("1 2 3 4\n5 6 7\n")}, "variables.A", "not counting spaces and line breaks"},
		{sensitive("A"), map[string][]byte{"A": {}}, "variables.A", "got an empty value"},
		{sensitive("A"), map[string][]byte{"A": []byte("12345678\x009")}, "variables.A", "NUL"},
		{sensitive("A"), map[string][]byte{"A": long}, "variables.A", "has 65537 bytes; at most 65536"},
		{plain("A", string(long)), nil, "variables.A", "has 65537 bytes; at most 65536"},
		{plain("A", "a\x00b"), nil, "variables.A", "NUL"},
		{plain("A", "\xff"), nil, "variables.A", "not UTF-8"},
		{plain("A", "x"), map[string][]byte{"A": []byte(token)}, "variables.A", "isn't Sensitive"},
		{link("A", "NOWHERE"), map[string][]byte{"A": []byte(token)}, "variables.A", "is a Link"},
		{link("A", "NOWHERE"), nil, "variables.A", "make it first, by “claude-hub shared create NOWHERE” or on the page of Shared variables"},
		{envspec.Variable{Name: "A", Sensitive: true, Value: token}, nil, "variables.A", "enter it apart"},
		{envspec.Variable{Name: "A", Link: "B", Sensitive: true}, nil, "variables.A", "says what it is"},
		{sensitive("A"), map[string][]byte{"B": []byte(token)}, "variables.B", "no Variable here"},
	} {
		_, err := r.tryKeep("here", nil, of(c.v), c.given)
		refused(t, err, c.field, c.says)
	}
	_, err := r.tryKeep("here", nil, of(plain("A", "x"), sensitive("A")), nil)
	refused(t, err, "variables.A", "there twice")
	if n := r.count(`SELECT count(*) FROM variable_values`); n != 0 {
		t.Errorf("%d values were stored", n)
	}
	// Several things wrong are said at once.
	_, err = r.tryKeep("here", nil, of(plain("A", "\x00"), sensitive("B")), map[string][]byte{"B": []byte("short")})
	refused(t, err, "variables.A", "NUL")
	refused(t, err, "variables.B", "at least 8")
}

func TestTheTotalOfValuesIsBounded(t *testing.T) {
	r := one(t)
	var vars []envspec.Variable
	given := map[string][]byte{}
	for i := range envspec.MaxVariablesTotal / envspec.MaxValue {
		name := fmt.Sprint("V", i)
		vars, given[name] = append(vars, sensitive(name)), bytes.Repeat([]byte{'a' + byte(i), '-'}, envspec.MaxValue/2-1)
	}
	full := r.keep(nil, of(vars...), given)
	r.keep(full.Variables, full, nil) // also when they are only kept
	_, err := r.tryKeep("here", full.Variables, of(append(vars, plain("X", ""))...), nil)
	refused(t, err, "variables", "have 524289 bytes together; at most 524288")
}

// Linux gives no process more (E2BIG), whoever the values belong to.
func TestTheTotalCountsWhatLinksBring(t *testing.T) {
	r := one(t)
	big := strings.Repeat("a-", envspec.MaxValue/2)
	for name, secret := range map[string]bool{"PLAIN": false, "SECRET": true} {
		r.shared(name, big, secret)
	}
	r.shared("GROWS", "short-as-yet", true)
	vars := []envspec.Variable{link("G", "GROWS")}
	for i := range envspec.MaxVariablesTotal/envspec.MaxValue - 1 {
		vars = append(vars, link(fmt.Sprint("L", i), []string{"PLAIN", "SECRET"}[i%2]))
	}
	spec := r.keep(nil, of(vars...), nil)
	if _, err := r.resolve(spec); err != nil {
		t.Fatal(err)
	}
	_, err := r.tryKeep("here", nil, of(append(vars, link("M", "PLAIN"))...), nil)
	refused(t, err, "variables", "bytes together; at most 524288")
	if _, err := r.SetShared(t.Context(), r.ana, "GROWS", 1, true, []byte(big)); err != nil {
		t.Fatal(err)
	}
	const says = "This can't go on: names and values of its Variables and Links have 524303 bytes together; at most 524288 are possible."
	if _, err := r.resolve(spec); !fault.Is(err, fault.Refused) || !strings.HasPrefix(err.Error(), says) {
		t.Errorf("after one grew: %v", err)
	}
}

func TestWithoutAKeyASensitiveValueIsRefusedWithTheRemedy(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		r := newRig(t, db, seal.Keys{})
		_, err := r.tryKeep("here", nil, of(sensitive("A")), map[string][]byte{"A": []byte(token)})
		const says = "No encryption key is configured, so no Sensitive value can be kept: make one with claude-hub keygen, " +
			"put it into hub.encryption_keys or the file of hub.encryption_key_file, and restart the Hub."
		if !fault.Is(err, fault.Refused) || err.Error() != says {
			t.Errorf("got %v", err)
		}
		_, err = r.CreateShared(t.Context(), r.ana, variable.NewShared{Name: "A", Sensitive: true, Value: []byte(token)})
		if !fault.Is(err, fault.Refused) || err.Error() != says {
			t.Errorf("shared: %v", err)
		}
		got := r.keep(nil, of(plain("P", "x"), sensitive("LATER")), nil)
		if m := r.missing(got); !slices.Equal(m, []string{"LATER"}) {
			t.Errorf("missing: %q", m)
		}
	})
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		if _, err := r.CreateShared(t.Context(), r.ana, variable.NewShared{Name: "HUB_WIDE", Sensitive: true, Value: []byte(token)}); err != nil {
			t.Fatal(err)
		}
		spec := r.keep(nil, of(sensitive("Z"), sensitive("A"), plain("P", ""), link("L", "HUB_WIDE"), sensitive("HAS")), map[string][]byte{"HAS": []byte(token)})
		if m := r.missing(spec); !slices.Equal(m, []string{"A", "Z"}) {
			t.Errorf("got %q", m)
		}
		_, err := r.resolve(spec)
		if !fault.Is(err, fault.Refused) || err.Error() != "This can't go on: the Variables A and Z have no value. Enter one for each first." {
			t.Errorf("got %v", err)
		}
		r = r.lose(2)
		if m := r.missing(spec); !slices.Equal(m, []string{"A", "HAS", "L (linked from the Shared variable HUB_WIDE)", "Z"}) {
			t.Errorf("after the key was lost: %q", m)
		}
	})
}

// ADR 0009, "A lost key".
func TestAValueInPlaceOfALostOneKeepsItsID(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		v := sensitive("A")
		v.Build, v.Note = true, "note"
		spec := r.keep(nil, of(v, sensitive("B"), plain("P", "stays")), map[string][]byte{"A": []byte(token), "B": []byte(token)})
		first := r.wantValue(spec, "A", token).GetEnteredMs()
		r = r.lose(2)
		a, b := spec.Variables[0], spec.Variables[1]
		st := r.states(spec)
		if st[0].Status != variable.Lost || st[0].Digest != "" || st[1].Status != variable.Lost || st[2].Status != variable.Set {
			t.Fatalf("%+v", st)
		}
		// It stays as it is through saving.
		if got := r.keep(spec.Variables, spec, nil); got.Variables[0].ValueID != a.ValueID || !got.Variables[0].Build || got.Variables[0].Note != "note" {
			t.Errorf("saved again: %+v", got.Variables)
		}
		enter := func(name, value string) (n int, err error) {
			err = r.db.Write(t.Context(), func(tx *store.Tx) (err error) {
				n, err = r.Enter(tx, "here", spec.Variables, name, []byte(value), r.ana.ID())
				return err
			})
			return n, err
		}
		_, err := enter("A", "short")
		refused(t, err, "variables.A", "at least 8")
		if n, err := enter("A", "the-new-value"); n != 1 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		if n, err := enter("A", "another-value"); n != 0 || err != nil {
			t.Errorf("what isn't lost was replaced: %d, %v", n, err)
		}
		// A save with a new value takes the lost one's place too.
		got := r.keep(spec.Variables, spec, map[string][]byte{"B": []byte("also-a-new-value")})
		if got.Variables[0].ValueID != a.ValueID || got.Variables[1].ValueID != b.ValueID {
			t.Errorf("ids moved: %+v", got.Variables)
		}
		if sent := r.wantValue(spec, "A", "the-new-value"); sent.GetId() != a.ValueID || !sent.GetBuild() {
			t.Errorf("sent: id %s, build %v", sent.GetId(), sent.GetBuild())
		} else if sent.GetEnteredMs() <= first {
			t.Errorf("entered at %d, the lost one at %d: a Runner that was restarted takes the one for the other", sent.GetEnteredMs(), first)
		}
		r.wantValue(spec, "B", "also-a-new-value")
	})
}

func TestAStateShowsADigestAndNoValue(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		if _, err := r.CreateShared(t.Context(), r.ana, variable.NewShared{Name: "S", Sensitive: true, Value: []byte(token)}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.CreateShared(t.Context(), r.ana, variable.NewShared{Name: "OPEN", Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		spec := r.keep(nil, of(sensitive("A"), sensitive("B"), sensitive("NONE"), link("L", "S"), link("O", "OPEN"), plain("P", "x")),
			map[string][]byte{"A": []byte(token), "B": []byte(token + "!")})
		st := r.states(spec)
		if st[0].Digest == "" || st[0].Digest == st[1].Digest || st[0].Digest != st[3].Digest || !st[3].Sensitive || st[4].Sensitive {
			t.Errorf("%+v", st)
		}
		if st[0].SetBy != "ana" || st[0].SetAt.IsZero() || st[2].Status != variable.Missing || st[2].SetBy != "" || st[4].Digest != "" || st[5].Digest != "" {
			t.Errorf("%+v", st)
		}
		for _, v := range []any{st, variable.Given{"A": []byte(token)}} {
			for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
				if out := fmt.Sprintf(format, v); strings.Contains(out, token) || strings.Contains(out, fmt.Sprintf("%x", token)) {
					t.Errorf("%s of %T prints the value", format, v)
				}
			}
		}
	})
}

// A value must not get anywhere by a mistake: not by an error, not by the audit log, and not in the clear into the database.
func TestNoValueIsInAnErrorOrInTheAuditLogOrReadableInTheDatabase(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		const canary = "c4nary-VALUE-0123456789"
		shared, err := r.CreateShared(t.Context(), r.ana, variable.NewShared{Name: "S", Sensitive: true, Value: []byte(canary)})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(fmt.Sprintf("%+v %#v", shared, shared), canary) || shared.Value != "" {
			t.Error("a Shared variable shows its value")
		}
		if _, err := r.SetShared(t.Context(), r.ana, "S", 1, true, []byte(canary+"2")); err != nil {
			t.Fatal(err)
		}
		spec := r.keep(nil, of(sensitive("A"), plain("P", "x")), map[string][]byte{"A": []byte(canary)})
		var errs []error
		note := func(_ envspec.Spec, err error) { errs = append(errs, err) }
		note(r.tryKeep("here", nil, of(envspec.Variable{Name: "A", Sensitive: true, Value: canary}), nil))
		note(r.tryKeep("here", nil, of(plain("A", canary+"\x00")), nil))
		note(r.tryKeep("here", nil, of(plain("A", "x")), map[string][]byte{"A": []byte(canary)}))
		note(r.tryKeep("here", nil, of(sensitive("A")), map[string][]byte{"A": append([]byte(canary), 0)}))
		note(r.tryKeep("here", spec.Variables, of(plain("A", "")), nil))
		_, err = r.SetShared(t.Context(), r.ana, "S", 1, true, []byte(canary))
		errs = append(errs, err)
		_, err = r.SetShared(t.Context(), r.ana, "S", 2, true, append([]byte(canary), 0))
		errs = append(errs, err)
		other := variable.New(r.db, seal.New(r.db, keys(t, 9), seal.Columns()), r.gate)
		errs = append(errs, r.db.Read(t.Context(), func(tx *store.Tx) error {
			_, err := other.Resolve(tx, "here", spec, "No")
			return err
		}))
		for i, err := range errs {
			if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, fault.Of(err).Fields), canary) {
				t.Errorf("error %d is missing or has the value: %v", i, err)
			}
		}
		if err := errs[len(errs)-1]; !strings.Contains(err.Error(), "can't decrypt the value of A") {
			t.Errorf("got %v", err)
		}
		r.write(func(tx *store.Tx) error {
			details, err := store.All(tx, store.Scan1[string], `SELECT detail FROM audit_log WHERE action LIKE 'shared-variable.%'`)
			if err != nil {
				return err
			}
			if len(details) != 2 || strings.Contains(fmt.Sprint(details), canary) {
				t.Errorf("audit: %q", details)
			}
			for _, table := range []string{"variable_values", "shared_variables"} {
				blobs, err := store.All(tx, store.Scan1[[]byte], `SELECT sealed FROM `+table+` WHERE sealed IS NOT NULL`)
				if err != nil {
					return err
				}
				for _, b := range blobs {
					if bytes.Contains(b, []byte("c4nary")) {
						t.Errorf("%s has it in the clear", table)
					}
				}
				if len(blobs) == 0 {
					t.Errorf("%s has nothing sealed, so this test sees nothing", table)
				}
			}
			return nil
		})
	})
}
