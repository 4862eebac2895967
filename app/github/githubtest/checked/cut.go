//go:build ignore

// Cut makes openapi.json and ../skeletons.json from GitHub's own description of its REST API:
//
//	npm pack @octokit/openapi@23.0.2 && tar xzf octokit-openapi-23.0.2.tgz
//	go run cut.go package/generated/api.github.com.json
//
// To widen the subset, add to operations and run it again.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
)

// operations are all that the Hub asks of GitHub. A method that is missing here is one that the product never uses: the
// checker makes a test that uses it fail.
var operations = map[string]string{
	"/app":                               "get",
	"/app/hook/config":                   "get patch",
	"/app/hook/deliveries":               "get",
	"/app/hook/deliveries/{delivery_id}": "get",
	"/app/hook/deliveries/{delivery_id}/attempts":                 "post",
	"/app/installations":                                          "get",
	"/app/installations/{installation_id}":                        "get",
	"/app/installations/{installation_id}/access_tokens":          "post",
	"/app-manifests/{code}/conversions":                           "post",
	"/applications/{client_id}/grant":                             "delete",
	"/applications/{client_id}/token":                             "post delete",
	"/installation/repositories":                                  "get",
	"/installation/token":                                         "delete",
	"/meta":                                                       "get",
	"/orgs/{org}/installation":                                    "get",
	"/rate_limit":                                                 "get",
	"/repos/{owner}/{repo}":                                       "get",
	"/repos/{owner}/{repo}/branches/{branch}":                     "get",
	"/repos/{owner}/{repo}/check-runs":                            "post",
	"/repos/{owner}/{repo}/check-runs/{check_run_id}":             "get patch",
	"/repos/{owner}/{repo}/check-runs/{check_run_id}/annotations": "get",
	"/repos/{owner}/{repo}/collaborators/{username}/permission":   "get",
	"/repos/{owner}/{repo}/commits/{commit_sha}/pulls":            "get",
	"/repos/{owner}/{repo}/commits/{ref}":                         "get",
	"/repos/{owner}/{repo}/commits/{ref}/check-runs":              "get",
	"/repos/{owner}/{repo}/compare/{basehead}":                    "get",
	"/repos/{owner}/{repo}/contents/{path}":                       "get",
	"/repos/{owner}/{repo}/git/blobs/{file_sha}":                  "get",
	"/repos/{owner}/{repo}/git/commits/{commit_sha}":              "get",
	"/repos/{owner}/{repo}/git/trees/{tree_sha}":                  "get",
	"/repos/{owner}/{repo}/installation":                          "get",
	"/repos/{owner}/{repo}/pulls":                                 "get",
	"/repos/{owner}/{repo}/pulls/{pull_number}":                   "get",
	"/user":               "get",
	"/user/installations": "get",
	"/user/installations/{installation_id}/repositories": "get",
	"/user/{account_id}":             "get",
	"/users/{username}":              "get",
	"/users/{username}/installation": "get",
}

// shapes are the schemas of which the fake makes answers.
var shapes = strings.Fields(`simple-user public-user full-repository repository minimal-repository installation
	installation-token integration pull-request pull-request-simple check-run commit git-commit branch-with-protection
	commit-comparison content-file content-directory content-symlink blob git-tree hook-delivery hook-delivery-item
	repository-collaborator-permission rate-limit-overview authorization webhook-config check-annotation diff-entry`)

type object = map[string]any

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run cut.go package/generated/api.github.com.json")
		os.Exit(2)
	}
	b, err := os.ReadFile(os.Args[1])
	check(err)
	var whole object
	check(json.Unmarshal(b, &whole))

	paths := object{}
	for path, methods := range operations {
		full, ok := whole["paths"].(object)[path].(object)
		if !ok {
			check(fmt.Errorf("GitHub describes no %s", path))
		}
		some := object{}
		if p, ok := full["parameters"]; ok {
			some["parameters"] = p
		}
		for _, m := range strings.Fields(methods) {
			if full[m] == nil {
				check(fmt.Errorf("GitHub describes no %s %s", m, path))
			}
			some[m] = full[m]
		}
		paths[path] = some
	}
	c := cutter{whole: whole, kept: object{}}
	bare := c.strip(paths, false)
	for _, name := range shapes {
		c.keep("#/components/schemas/" + name)
	}
	write("openapi.json", object{
		"openapi": whole["openapi"], "info": c.strip(whole["info"], false), "paths": bare, "components": c.kept,
	})

	skeletons := object{}
	for _, name := range shapes {
		skeletons[name] = c.least(object{"$ref": "#/components/schemas/" + name}, 0)
	}
	write("../skeletons.json", skeletons)
}

type cutter struct{ whole, kept object }

// strip leaves out what is for people, and keeps what is referred to.
func (c *cutter) strip(v any, names bool) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = c.strip(v[i], false)
		}
		return out
	case object:
		out := object{}
		for k, e := range v {
			_, isText := e.(string)
			switch {
			case names:
			case k == "description" && isText:
				if v["content"] != nil || v["headers"] != nil || v["$ref"] == nil && v["schema"] == nil && v["type"] == nil {
					e = "" // a response must have one
				} else {
					continue
				}
			case k == "example" || k == "examples" || k == "externalDocs" || k == "summary" || k == "tags" || strings.HasPrefix(k, "x-"):
				continue
			case k == "$ref" && isText:
				c.keep(e.(string))
			}
			out[k] = c.strip(e, k == "properties" && !names)
		}
		return out
	}
	return v
}

func (c *cutter) keep(ref string) {
	parts := strings.Split(strings.TrimPrefix(ref, "#/components/"), "/")
	kind, _ := c.kept[parts[0]].(object)
	if kind == nil {
		kind = object{}
		c.kept[parts[0]] = kind
	}
	if kind[parts[1]] != nil {
		return
	}
	kind[parts[1]] = object{} // ends circles
	kind[parts[1]] = c.strip(c.resolve(ref), false)
}

func (c *cutter) resolve(ref string) object {
	at := c.whole
	for _, p := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		at = at[p].(object)
	}
	return at
}

// least is the smallest value that schema s accepts: required properties only, null where null will do.
func (c *cutter) least(s object, depth int) any {
	if ref, ok := s["$ref"].(string); ok {
		s = c.resolve(ref)
	}
	if s["nullable"] == true || depth > 8 {
		return nil
	}
	if enum, ok := s["enum"].([]any); ok {
		return enum[0]
	}
	for _, k := range []string{"oneOf", "anyOf"} {
		if of, ok := s[k].([]any); ok && s["properties"] == nil {
			return c.least(of[0].(object), depth)
		}
	}
	out := object{}
	if of, ok := s["allOf"].([]any); ok {
		for _, part := range of {
			if o, ok := c.least(part.(object), depth).(object); ok {
				for k, v := range o {
					out[k] = v
				}
			}
		}
	}
	switch s["type"] {
	case "string":
		switch s["format"] {
		case "date-time":
			return "2026-01-01T00:00:00Z"
		case "uri":
			return "https://example.invalid/"
		}
		return ""
	case "integer", "number":
		if m, ok := s["minimum"]; ok {
			return m
		}
		return 0
	case "boolean":
		return false
	case "array":
		return []any{}
	}
	properties, _ := s["properties"].(object)
	required, _ := s["required"].([]any)
	for _, k := range required {
		if p, ok := properties[k.(string)].(object); ok {
			out[k.(string)] = c.least(p, depth+1)
		}
	}
	return out
}

func write(name string, v object) {
	b, err := json.Marshal(v)
	check(err)
	var keys []string
	for k := range v {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	check(os.WriteFile(name, append(b, '\n'), 0o644))
	fmt.Println(name, len(b), "bytes:", strings.Join(keys, " "))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cut:", err)
		os.Exit(1)
	}
}
