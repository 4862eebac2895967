package github

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
)

// MaxPayload is GitHub's own limit for a webhook's payload.
const MaxPayload = 25 << 20

// Delivery is one webhook as it arrived, its signature verified. ID is the same for every attempt at the same event.
type Delivery struct {
	ID      string
	Event   string
	Payload []byte
}

// DeliveryError is why a delivery isn't taken, with the status to answer. A missing signature and a wrong one say the same.
type DeliveryError struct {
	Status  int
	Message string
}

func (e *DeliveryError) Error() string { return e.Message }

var (
	errSignature = &DeliveryError{http.StatusUnauthorized, "The signature is missing or wrong."}
	errPayload   = &DeliveryError{http.StatusRequestEntityTooLarge, "The payload is larger than 25 MiB."}
	errRead      = &DeliveryError{http.StatusBadRequest, "The payload didn't arrive whole."}
	errHeaders   = &DeliveryError{http.StatusBadRequest, "This is no delivery of GitHub: event, delivery id or content type is missing or wrong."}
)

// ReadDelivery reads and verifies a webhook: SHA-256 only, over the raw body, before anything looks at it, in constant time,
// against each of the secrets (two while one replaces the other). Without a secret, or with an empty one, nothing is accepted.
// The error is a *DeliveryError.
func ReadDelivery(w http.ResponseWriter, r *http.Request, secrets []Secret) (Delivery, error) {
	if r.ContentLength > MaxPayload {
		return Delivery{}, errPayload
	}
	sent, err := hex.DecodeString(strings.TrimPrefix(r.Header.Get("X-Hub-Signature-256"), "sha256="))
	if err != nil || len(sent) != sha256.Size || !strings.HasPrefix(r.Header.Get("X-Hub-Signature-256"), "sha256=") {
		return Delivery{}, errSignature
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxPayload))
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return Delivery{}, errPayload
	case err != nil:
		return Delivery{}, errRead
	case !signed(body, sent, secrets):
		return Delivery{}, errSignature
	}
	d := Delivery{ID: r.Header.Get("X-GitHub-Delivery"), Event: r.Header.Get("X-GitHub-Event"), Payload: body}
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !token(d.ID) || !token(d.Event) || strings.TrimSpace(kind) != "application/json" {
		return Delivery{}, errHeaders
	}
	return d, nil
}

// signed looks at every secret, also after one has matched.
func signed(body, sent []byte, secrets []Secret) bool {
	ok := false
	for _, s := range secrets {
		if s.Empty() {
			continue
		}
		mac := hmac.New(sha256.New, []byte(s.Reveal()))
		mac.Write(body)
		if hmac.Equal(mac.Sum(nil), sent) {
			ok = true
		}
	}
	return ok
}

// token says whether s is a short word as headers of deliveries are.
func token(s string) bool {
	if s == "" || len(s) > 100 {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
}
