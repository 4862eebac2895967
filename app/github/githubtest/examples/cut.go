//go:build ignore

// Cut makes examples.json.gz from GitHub's own examples of webhooks:
//
//	npm pack @octokit/webhooks-examples@7.6.1 && tar xzf octokit-webhooks-examples-7.6.1.tgz
//	go run cut.go package/api.github.com/index.json
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// events are those that the App subscribes to or gets by itself, and two that it doesn't know.
var events = strings.Fields(`check_run check_suite github_app_authorization installation installation_repositories
	installation_target member membership merge_group organization ping public pull_request push repository team team_add
	create delete`)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run cut.go package/api.github.com/index.json")
		os.Exit(2)
	}
	b, err := os.ReadFile(os.Args[1])
	check(err)
	var all []struct {
		Name     string            `json:"name"`
		Examples []json.RawMessage `json:"examples"`
	}
	check(json.Unmarshal(b, &all))
	kept := map[string][]json.RawMessage{}
	for _, e := range all {
		if slices.Contains(events, e.Name) {
			kept[e.Name] = e.Examples
		}
	}
	out, err := json.Marshal(kept)
	check(err)
	var zipped bytes.Buffer
	z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	check(err)
	_, err = z.Write(out)
	check(err)
	check(z.Close())
	check(os.WriteFile("examples.json.gz", zipped.Bytes(), 0o644))
	fmt.Println(len(kept), "events,", len(out), "bytes,", zipped.Len(), "zipped")
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cut:", err)
		os.Exit(1)
	}
}
