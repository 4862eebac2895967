package seal_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/claude-hub/claude-hub/app/seal"
)

// fixed is a key that is the same in every run, different for each n.
func fixed(n byte) string {
	b := make([]byte, 32)
	for i := range b {
		b[i] = n ^ byte(i*7)
	}
	return base64.StdEncoding.EncodeToString(b)
}

func keysOf(t testing.TB, texts ...string) seal.Keys {
	t.Helper()
	given := make([]seal.Given, len(texts))
	for i, text := range texts {
		given[i].Text = text
	}
	k, err := seal.ParseKeys(given...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var here = seal.Place{Table: "variables", Column: "value", Row: "v1"}

func TestAValueOpensWhereItWasSealedAndNowhereElse(t *testing.T) {
	t.Parallel()
	k := keysOf(t, fixed(1))
	for _, plain := range [][]byte{{}, {0}, []byte("hunter2hunter2"), bytes.Repeat([]byte("é\n$\x00"), 16<<10)} {
		sealed, id, err := k.Seal(here, plain)
		if err != nil {
			t.Fatal(err)
		}
		if id != k.Primary() {
			t.Fatalf("sealed under %s, want the first key %s", id, k.Primary())
		}
		if len(sealed) != len(plain)+seal.Overhead {
			t.Errorf("%d bytes became %d", len(plain), len(sealed))
		}
		got, err := k.Open(here, sealed)
		if err != nil || got == nil || !bytes.Equal(got, plain) {
			t.Fatalf("opened %d bytes of %d: %v", len(got), len(plain), err)
		}
		for _, elsewhere := range []seal.Place{
			{Table: "shared_variables", Column: "value", Row: "v1"}, {Table: "variables", Column: "note", Row: "v1"},
			{Table: "variables", Column: "value", Row: "v2"}, {Table: "variable", Column: "svalue", Row: "v1"}, {Table: "variables", Column: "valuev", Row: "1"},
		} {
			if got, err := k.Open(elsewhere, sealed); got != nil || !errors.As(err, new(*seal.DamagedError)) {
				t.Errorf("moved to %s: got %d bytes, %v; want DamagedError", elsewhere, len(got), err)
			}
		}
	}
}

func TestEveryChangedByteIsNoticed(t *testing.T) {
	t.Parallel()
	k := keysOf(t, fixed(1), fixed(2))
	sealed, _, err := k.Seal(here, []byte("value"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range sealed {
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := bytes.Clone(sealed)
			bad[i] ^= flip
			got, err := k.Open(here, bad)
			if got != nil || !errors.As(err, new(*seal.DamagedError)) && !errors.As(err, new(*seal.UnknownKeyError)) {
				t.Fatalf("byte %d changed: got %q, %v", i, got, err)
			}
		}
	}
	for n := range sealed {
		if got, err := k.Open(here, sealed[:n]); got != nil || err == nil {
			t.Fatalf("cut to %d bytes: got %q, %v", n, got, err)
		}
	}
	if got, err := k.Open(here, nil); got != nil || !errors.As(err, new(*seal.DamagedError)) {
		t.Fatalf("nothing at all: got %q, %v; want DamagedError", got, err)
	}
}

// A value relabelled as another key's must not open even where that key is known.
func TestAValueIsBoundToItsKeysID(t *testing.T) {
	t.Parallel()
	k := keysOf(t, fixed(1), fixed(2))
	sealed, _, err := k.Seal(here, []byte("value"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := hex.DecodeString(k.IDs()[1])
	if err != nil {
		t.Fatal(err)
	}
	copy(sealed[1:], other)
	if got, err := k.Open(here, sealed); got != nil || !errors.As(err, new(*seal.DamagedError)) {
		t.Fatalf("got %q, %v; want DamagedError", got, err)
	}
}

func TestTheFirstKeySealsAndEachOpens(t *testing.T) {
	t.Parallel()
	old, both, other := keysOf(t, fixed(1)), keysOf(t, fixed(2), fixed(1)), keysOf(t, fixed(3))
	sealed, id, err := old.Seal(here, []byte("value"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := both.Open(here, sealed); err != nil || string(got) != "value" {
		t.Fatalf("got %q, %v", got, err)
	}
	var unknown *seal.UnknownKeyError
	if got, err := other.Open(here, sealed); got != nil || !errors.As(err, &unknown) || unknown.ID != id {
		t.Fatalf("with another key: got %q, %v; want UnknownKeyError with %s", got, err, id)
	}
	if _, err := (seal.Keys{}).Open(here, sealed); !errors.As(err, &unknown) {
		t.Fatalf("without keys: %v", err)
	}
	if _, to, err := both.Seal(here, nil); err != nil || to != both.IDs()[0] || to == id {
		t.Fatalf("sealed under %s: %v", to, err)
	}
	if _, _, err := (seal.Keys{}).Seal(here, []byte("value")); !errors.Is(err, seal.ErrNoKey) || !strings.Contains(err.Error(), "keygen") {
		t.Fatalf("without keys: %v", err)
	}
	again, _, err := old.Seal(here, []byte("value"))
	if err != nil || bytes.Equal(again, sealed) {
		t.Fatalf("the same value sealed twice is the same bytes (%v)", err)
	}
}

// The bytes of this test are what databases hold: if it fails, stored values can't be opened any more.
func TestTheFormatStaysAsItIs(t *testing.T) {
	t.Parallel()
	const id = "f705698ed434b151"
	k := keysOf(t, fixed(1))
	if k.Primary() != id {
		t.Fatalf("the key's id is %s, want %s", k.Primary(), id)
	}
	stored, err := hex.DecodeString(storedValue)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.Open(here, stored); err != nil || string(got) != "an old value" {
		t.Fatalf("got %q, %v", got, err)
	}
	if want := "01" + id; storedValue[:len(want)] != want || len(stored) != 1+8+12+len("an old value")+16 {
		t.Fatal("the format is 0x01, key id, nonce, ciphertext and tag")
	}
}

const storedValue = "01f705698ed434b151f00314765019b073ed855775e64638dffd6ebff796c8219a1ece04bb929a22fdd044aba0bf55612b"

func TestKeysAreBase64OrHexOf32Bytes(t *testing.T) {
	t.Parallel()
	std := fixed(9)
	raw, err := base64.StdEncoding.DecodeString(std)
	if err != nil {
		t.Fatal(err)
	}
	want := keysOf(t, std).Primary()
	for _, same := range []string{
		" " + std + "\n", strings.TrimRight(std, "="), base64.URLEncoding.EncodeToString(raw), hex.EncodeToString(raw), strings.ToUpper(hex.EncodeToString(raw)),
	} {
		if got := keysOf(t, same).Primary(); got != want {
			t.Errorf("%q has id %s, want %s", same, got, want)
		}
	}
	if a, b := keysOf(t, seal.NewKey()).Primary(), keysOf(t, seal.NewKey()).Primary(); a == b {
		t.Errorf("two new keys have the same id %s", a)
	}
	for says, text := range map[string]string{
		"is empty":                         "  ",
		"is neither base64 nor hex":        "correct horse battery staple, twice",
		"has 31 bytes, it must have 32":    base64.StdEncoding.EncodeToString(raw[:31]),
		"has 16 bytes, it must have 32":    hex.EncodeToString(raw[:16]),
		"has 33 bytes, it must have 32, i": hex.EncodeToString(append(bytes.Clone(raw), 5)),
		"is not random":                    strings.Repeat("ab", 32),
	} {
		_, err := seal.ParseKeys(seal.Given{Text: std}, seal.Given{Text: text, From: "/etc/keys:3"})
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "/etc/keys:3") || !strings.Contains(err.Error(), "keygen") {
			t.Errorf("want %q, got %v", says, err)
		}
		if bad := strings.TrimSpace(text); bad != "" && strings.Contains(fmt.Sprint(err), bad) {
			t.Errorf("the error quotes the key: %v", err)
		}
	}
	_, err = seal.ParseKeys(seal.Given{Text: std}, seal.Given{Text: hex.EncodeToString(raw), From: "b"})
	if err == nil || !strings.Contains(err.Error(), "place 1 and b are the same") {
		t.Errorf("the same key twice: %v", err)
	}
}

func TestNothingPrintsAKey(t *testing.T) {
	t.Parallel()
	text := fixed(5)
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	given := seal.Given{Text: text, From: "hub.encryption_keys, entry 1"}
	keys := keysOf(t, text)
	hidden := struct {
		given seal.Given
		keys  seal.Keys
	}{seal.Given{From: "x"}, keys} // fmt can't call the methods of what stands in such fields
	shown := struct {
		G seal.Given
		K seal.Keys
		S *seal.Service
	}{given, keys, seal.New(nil, keys, nil)}
	var out bytes.Buffer
	for _, v := range []any{given, &given, keys, &keys, hidden, &hidden, shown, &shown, *shown.S, shown.S, []seal.Given{given}, map[string]seal.Keys{"a": keys}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		if b, err := json.Marshal(v); err == nil {
			out.Write(b)
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		log := zerolog.New(&out)
		log.Info().Interface("v", v).Any("w", v).Msg("x")
	}
	if !strings.Contains(out.String(), keys.Primary()) || !strings.Contains(out.String(), "entry 1") {
		t.Fatal("neither ids nor places are printed, so this test looks at nothing")
	}
	for _, form := range []string{text, text[:12], hex.EncodeToString(raw)[:16], strings.ToUpper(hex.EncodeToString(raw))[:16],
		string(raw[:8]), strings.Trim(fmt.Sprint(raw[:4]), "[]"), fmt.Sprintf("%x", text)[:16]} {
		if strings.Contains(out.String(), form) {
			t.Errorf("%q is printed", form)
		}
	}
}

func FuzzOpen(f *testing.F) {
	k := keysOf(f, fixed(1))
	sealed, _, err := k.Seal(here, []byte("value"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte{})
	f.Add(sealed[:9])
	f.Fuzz(func(t *testing.T, b []byte) {
		if plain, err := k.Open(here, b); err == nil && string(plain) != "value" || err != nil && plain != nil {
			t.Fatalf("%x opened to %q, %v", b, plain, err)
		}
	})
}

func TestADigestComparesValuesAndIsKeyed(t *testing.T) {
	t.Parallel()
	k, other := keysOf(t, fixed(1), fixed(2)), keysOf(t, fixed(2), fixed(1))
	a, again, b := k.Digest([]byte("value one")), k.Digest([]byte("value one")), k.Digest([]byte("value two"))
	if len(a) != 8 || a != again || a == b || a == other.Digest([]byte("value one")) || strings.Trim(a, "0123456789abcdef") != "" {
		t.Errorf("got %s, %s, %s", a, again, b)
	}
	if d := (seal.Keys{}).Digest([]byte("value one")); d != "" {
		t.Errorf("without a key: %q", d)
	}
}
