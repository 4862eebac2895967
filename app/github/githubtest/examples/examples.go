// Package examples has GitHub's own examples of the webhooks that the App gets, for tests.
//
// They are cut from the npm package @octokit/webhooks-examples 7.6.1 (MIT License, copyright Gregor Martynus and Octokit
// contributors) by cut.go. No pull request of a fork, member.removed, organization.member_removed, repository.deleted or
// installation_target is among them, many name no installation, and some have dates in old forms.
package examples

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"slices"
	"strings"
	"sync"
)

//go:embed examples.json.gz
var zipped []byte

// Example is one webhook.
type Example struct {
	Event   string
	Payload json.RawMessage
}

// All are the examples, by event.
var All = sync.OnceValue(func() []Example {
	z, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		panic("examples.json.gz: " + err.Error())
	}
	var m map[string][]json.RawMessage
	if err := json.NewDecoder(z).Decode(&m); err != nil {
		panic("examples.json.gz: " + err.Error())
	}
	var all []Example
	for event, payloads := range m {
		for _, p := range payloads {
			all = append(all, Example{event, p})
		}
	}
	slices.SortStableFunc(all, func(a, b Example) int { return strings.Compare(a.Event, b.Event) })
	return all
})
