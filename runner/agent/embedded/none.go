//go:build !embed_agent

package embedded

var binary []byte
