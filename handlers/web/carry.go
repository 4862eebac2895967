package web

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"

	"github.com/claude-hub/claude-hub/app/fault"
)

// carried is for what one page hands to the next through the browser: a .env file between its preview and the choice. Sealed,
// so that no value is stored before it is saved, and no page has a Sensitive one in the clear. The key comes of the cookie of
// the browser that sent it: so it opens there on any Hub, also after a restart, and for nobody who has but the page.
func (w *Web) carried(r *http.Request) (cipher.AEAD, error) {
	c, err := r.Cookie(w.cookie())
	if err != nil || c.Value == "" {
		return nil, fault.New(fault.Unauthorized, "You are not signed in.")
	}
	key, err := hkdf.Key(sha256.New, []byte(c.Value), nil, "claude-hub: what a page carries", 32)
	if err != nil {
		return nil, fmt.Errorf("make the key of a form: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make the cipher of a form: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("make the cipher of a form: %w", err)
	}
	return aead, nil
}

// carry seals text for a purpose.
func (w *Web) carry(r *http.Request, purpose string, text []byte) (string, error) {
	aead, err := w.carried(r)
	if err != nil {
		return "", err
	}
	return base64.RawStdEncoding.EncodeToString(aead.Seal(nil, nil, text, []byte(purpose))), nil
}

// uncarry opens it again; ok is false when it was not sealed for that purpose and browser.
func (w *Web) uncarry(r *http.Request, purpose, sealed string) (text []byte, ok bool, err error) {
	aead, err := w.carried(r)
	if err != nil {
		return nil, false, err
	}
	b, err := base64.RawStdEncoding.DecodeString(sealed)
	if err != nil {
		return nil, false, nil
	}
	text, err = aead.Open(nil, nil, b, []byte(purpose))
	return text, err == nil, nil
}
