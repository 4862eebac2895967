package web

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"fmt"
)

// carrier seals what one page hands to the next through the browser: a .env file between its preview and the choice. So no
// value is stored before it is saved, and none of a Sensitive row comes back to the browser in the clear. What is sealed
// opens in the process that sealed it, for the same person and Repo, and nowhere else: its key is made anew at each start.
type carrier struct{ aead cipher.AEAD }

func newCarrier() (carrier, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails since Go 1.24
	block, err := aes.NewCipher(key)
	if err != nil {
		return carrier{}, fmt.Errorf("make the cipher for forms: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return carrier{}, fmt.Errorf("make the cipher for forms: %w", err)
	}
	return carrier{aead}, nil
}

// wrap seals text for whom the page is for.
func (c carrier) wrap(whom string, text []byte) string {
	return base64.RawStdEncoding.EncodeToString(c.aead.Seal(nil, nil, text, []byte(whom)))
}

// unwrap opens it again, or says that it can't.
func (c carrier) unwrap(whom, sealed string) ([]byte, bool) {
	b, err := base64.RawStdEncoding.DecodeString(sealed)
	if err != nil {
		return nil, false
	}
	text, err := c.aead.Open(nil, nil, b, []byte(whom))
	return text, err == nil
}
