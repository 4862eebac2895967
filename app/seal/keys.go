package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

const (
	keySize = 32
	idSize  = 8
	// leastDistinct is how many different bytes a key must have. Of random keys one in 10^50 has fewer; a key that was
	// typed, or padded, often has.
	leastDistinct = 8

	format1 = 0x01 // format1 | key id [8] | nonce [12] | ciphertext and tag [16]

	// Overhead is by how many bytes a sealed value is longer than what was sealed.
	Overhead = 1 + idSize + 12 + 16

	idInfo     = "hub key id v1"
	dataInfo   = "hub data v1"
	digestInfo = "hub digest v1"
)

// Given is a key as it stands in the config. It prints as where it stands, never as what it is.
type Given struct {
	Text string
	From string // where it stands, for errors: "hub.encryption_keys, entry 2"
}

// Format keeps the key out of everything that fmt makes.
func (g Given) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "[the encryption key of %s]", g.From) }

// LogValue keeps the key out of logs.
func (g Given) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(g)) }

// MarshalText keeps the key out of JSON and the like.
func (g Given) MarshalText() ([]byte, error) { return []byte(fmt.Sprint(g)), nil }

// Keys is an ordered list of encryption keys: the first one seals, each opens what it sealed. The zero value has none.
// It prints as the ids of its keys. Any number of goroutines may use it.
type Keys struct{ r *ring } // behind a pointer, at which fmt stops even in a struct whose fields it can't call methods of

type ring struct {
	ids  []string
	byID map[string]*key
}

type key struct {
	id     [idSize]byte
	aead   cipher.AEAD
	digest []byte
}

// NewKey makes a random key, in base64.
func NewKey() string {
	var b [keySize]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.StdEncoding.EncodeToString(b[:])
}

// ParseKeys reads keys of 32 bytes in base64 or hex. The errors say which key is wrong and how, and quote none.
func ParseKeys(given ...Given) (Keys, error) {
	r := &ring{byID: map[string]*key{}}
	from := map[string]string{}
	for i, g := range given {
		if g.From == "" {
			g.From = fmt.Sprintf("place %d", i+1)
		}
		secret, err := decode(g.Text)
		if err != nil {
			return Keys{}, fmt.Errorf("the encryption key of %s %w; claude-hub keygen makes one", g.From, err)
		}
		id, k, err := derive(secret)
		if err != nil {
			return Keys{}, fmt.Errorf("the encryption key of %s can't be used: %w", g.From, err)
		}
		if first, twice := from[id]; twice {
			return Keys{}, fmt.Errorf("the encryption keys of %s and %s are the same (id %s); take one out", first, g.From, id)
		}
		from[id], r.byID[id] = g.From, k
		r.ids = append(r.ids, id)
	}
	return Keys{r}, nil
}

func decode(text string) ([]byte, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, errors.New("is empty")
	}
	b, err := hex.DecodeString(text)
	if err != nil {
		plain := strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(text), "=")
		if b, err = base64.RawStdEncoding.Strict().DecodeString(plain); err != nil {
			return nil, fmt.Errorf("is neither base64 nor hex of %d bytes", keySize)
		}
	}
	if len(b) != keySize {
		return nil, fmt.Errorf("has %d bytes, it must have %d, in base64 or hex", len(b), keySize)
	}
	distinct := map[byte]bool{}
	for _, c := range b {
		distinct[c] = true
	}
	if len(distinct) < leastDistinct {
		return nil, errors.New("is not random")
	}
	return b, nil
}

func derive(secret []byte) (string, *key, error) {
	id, err := hkdf.Key(sha256.New, secret, nil, idInfo, idSize)
	if err != nil {
		return "", nil, err
	}
	data, err := hkdf.Key(sha256.New, secret, nil, dataInfo, keySize)
	if err != nil {
		return "", nil, err
	}
	block, err := aes.NewCipher(data)
	if err != nil {
		return "", nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return "", nil, err
	}
	digest, err := hkdf.Key(sha256.New, secret, nil, digestInfo, keySize)
	if err != nil {
		return "", nil, err
	}
	return hex.EncodeToString(id), &key{[idSize]byte(id), aead, digest}, nil
}

// Primary is the id of the key that seals, "" when there is none. An id is 16 hex digits and says nothing of its key.
func (k Keys) Primary() string {
	if k.r == nil || len(k.r.ids) == 0 {
		return ""
	}
	return k.r.ids[0]
}

// IDs are the keys' ids, in their order.
func (k Keys) IDs() []string {
	if k.r == nil {
		return nil
	}
	return append([]string(nil), k.r.ids...)
}

func (k Keys) key(id string) *key {
	if k.r == nil {
		return nil
	}
	return k.r.byID[id]
}

// Format keeps the keys out of everything that fmt makes.
func (k Keys) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "[encryption keys: %s]", orNone(strings.Join(k.IDs(), ", ")))
}

// LogValue keeps the keys out of logs.
func (k Keys) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(k)) }

// MarshalText keeps the keys out of JSON and the like.
func (k Keys) MarshalText() ([]byte, error) { return []byte(fmt.Sprint(k)), nil }

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// Place is where a sealed value stands. It opens nowhere else.
type Place struct{ Table, Column, Row string }

func (p Place) String() string { return p.Table + "." + p.Column + " of " + p.Row }

// bound is what a sealed value is bound to: each part with its length before it, so that no two places look the same.
func (p Place) bound(id string) []byte {
	var b []byte
	for _, part := range []string{p.Table, p.Column, p.Row, id} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}

// Seal encrypts plain for one place under the first key, and says which one that is, for the row's key column. The same
// value is sealed differently each time. Without a key it fails with ErrNoKey. What is to be stored goes through
// Service.Seal, which also refuses a retired key.
func (k Keys) Seal(place Place, plain []byte) (sealed []byte, keyID string, err error) {
	id := k.Primary()
	if id == "" {
		return nil, "", ErrNoKey
	}
	if place.Table == "" || place.Column == "" || place.Row == "" {
		return nil, "", fmt.Errorf("a value is sealed for a table, a column and a row; got %q", place)
	}
	first := k.r.byID[id]
	sealed = make([]byte, 0, 1+idSize+first.aead.Overhead()+len(plain))
	sealed = append(sealed, format1)
	sealed = append(sealed, first.id[:]...)
	return first.aead.Seal(sealed, nil, plain, place.bound(id)), id, nil
}

// Open decrypts what was sealed for place. It fails with *UnknownKeyError when its key is not among the keys, and with
// *DamagedError when it is not, byte for byte, what was sealed for that place; nothing sealed (nil) is damaged too. There
// is no value, not an empty one, where it fails.
func (k Keys) Open(place Place, sealed []byte) ([]byte, error) {
	if len(sealed) < 1+idSize || sealed[0] != format1 {
		return nil, &DamagedError{Place: place}
	}
	id := hex.EncodeToString(sealed[1 : 1+idSize])
	with := k.key(id)
	if with == nil {
		return nil, &UnknownKeyError{ID: id, Place: place}
	}
	plain, err := with.aead.Open([]byte{}, nil, sealed[1+idSize:], place.bound(id))
	if err != nil {
		return nil, &DamagedError{Place: place, KeyID: id}
	}
	return plain, nil
}

// digestSize bytes let people see that two values are the same, or not, and leave a guesser who knows the digest with one
// value in four billion that fits by chance.
const digestSize = 4

// Digest is 8 hex digits by which two values can be compared without being read. It is keyed by the first key, so it can't
// be worked out, nor tried with guesses, from the database; and it changes for all values when that key does. Without a key
// it is "".
func (k Keys) Digest(plain []byte) string {
	first := k.key(k.Primary())
	if first == nil {
		return ""
	}
	mac := hmac.New(sha256.New, first.digest)
	mac.Write(plain)
	return hex.EncodeToString(mac.Sum(nil)[:digestSize])
}

// ErrNoKey is what sealing without a key answers.
var ErrNoKey = errors.New("no encryption key is configured, so no Sensitive value can be kept: make one with " +
	"claude-hub keygen, put it into hub.encryption_keys or the file of hub.encryption_key_file, and restart the Hub")

// UnknownKeyError: the value is sealed under a key that is not configured here.
type UnknownKeyError struct {
	ID    string
	Place Place
}

func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("the value in %s is sealed under encryption key %s, which is not configured here", e.Place, e.ID)
}

// DamagedError: the value is not what was sealed for its place.
type DamagedError struct {
	Place Place
	KeyID string // "" when not even that can be read
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the value in %s is damaged, or was copied there from another place: it must be entered again", e.Place)
}
