package github

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Permissions are what the App asks for: the least it works with.
func Permissions() map[string]string {
	return map[string]string{"checks": "write", "contents": "read", "metadata": "read", "pull_requests": "read", "members": "read"}
}

// Lacking lists which of the wanted permissions are missing from those granted, as "checks: write", in order.
func Lacking(granted map[string]string) []string {
	var out []string
	for name, level := range Permissions() {
		if has := granted[name]; has != level && has != "write" && has != "admin" {
			out = append(out, name+": "+level)
		}
	}
	slices.Sort(out)
	return out
}

// Events are what the App subscribes to. Those of installations, authorizations and checks come by themselves.
func Events() []string {
	return []string{
		"member", "membership", "merge_group", "organization", "public", "pull_request", "push", "repository", "team", "team_add",
	}
}

// Manifest describes an App to be created. Its JSON is the value of the form field "manifest" that the browser posts to
// [Endpoints.NewAppURL].
type Manifest struct {
	Name               string            `json:"name"` // 34 characters at most, unique on that GitHub
	URL                string            `json:"url"`
	HookAttributes     HookAttributes    `json:"hook_attributes"`
	RedirectURL        string            `json:"redirect_url"`
	CallbackURLs       []string          `json:"callback_urls"`
	SetupURL           string            `json:"setup_url"`
	SetupOnUpdate      bool              `json:"setup_on_update"`
	Public             bool              `json:"public"`
	DefaultEvents      []string          `json:"default_events"`
	DefaultPermissions map[string]string `json:"default_permissions"`
	// RequestOAuth stays off: with it GitHub sends no state and no setup_url (facts/github.md §3).
	RequestOAuth bool `json:"request_oauth_on_install"`
}

// HookAttributes are a manifest's webhook.
type HookAttributes struct {
	URL    string `json:"url"`
	Active bool   `json:"active"`
}

// NewManifest is the Hub's manifest. The addresses are whole URLs of the Hub; hook is "" where GitHub can't reach the Hub.
func NewManifest(name, home, hook, redirect, callback, setup string) Manifest {
	m := Manifest{
		Name: name, URL: home, HookAttributes: HookAttributes{URL: hook, Active: hook != ""}, RedirectURL: redirect,
		CallbackURLs: []string{callback}, SetupURL: setup, SetupOnUpdate: true, DefaultEvents: Events(), DefaultPermissions: Permissions(),
	}
	if hook == "" {
		m.HookAttributes.URL = home // GitHub wants an address even where it is inactive
	}
	return m
}

// Created is the App that a manifest became.
type Created struct {
	Credentials Credentials
	Name        string
	Owner       Account
	Page        string
}

// Convert exchanges the code that GitHub sent the browser back with for the new App's values, within an hour and once. After
// an Unavailable the App may exist without anybody knowing its key: its owner deletes it and begins again.
func Convert(ctx context.Context, at Endpoints, transport http.RoundTripper, code Secret) (Created, error) {
	f, err := newFence(transport, at)
	if err != nil {
		return Created{}, err
	}
	if code.Empty() || strings.Contains(code.Reveal(), "/") {
		return Created{}, fail(Invalid, "GitHub sent no code back. Begin again.")
	}
	a := &App{rates: rates{m: map[string]*limit{}}}
	const what = "POST /app-manifests/{code}/conversions"
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.API+"/app-manifests/"+url.PathEscape(code.Reveal())+"/conversions", nil)
	if err != nil {
		return Created{}, fail(Invalid, "GitHub sent no code back. Begin again.")
	}
	req.Header.Set("Accept", "application/vnd.github+json")
	resp, err := (&http.Client{Transport: f}).Do(req)
	if err != nil {
		return Created{}, a.failure(ctx, caller{key: "manifest"}, what, nil, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return Created{}, a.failure(ctx, caller{key: "manifest"}, what, nil, err)
	case resp.StatusCode == http.StatusNotFound:
		return Created{}, fail(NotFound, "GitHub doesn't know this code: it was used, or is older than an hour. Begin again.")
	case resp.StatusCode != http.StatusCreated:
		return Created{}, a.failure(ctx, caller{key: "manifest"}, what, resp, errors.New(messageOf(body)))
	}
	var j struct {
		ID            int64        `json:"id"`
		Slug          string       `json:"slug"`
		Name          string       `json:"name"`
		Owner         *accountJSON `json:"owner"`
		ClientID      string       `json:"client_id"`
		ClientSecret  string       `json:"client_secret"`
		WebhookSecret string       `json:"webhook_secret"`
		PEM           string       `json:"pem"`
		HTMLURL       string       `json:"html_url"`
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&j); err != nil {
		return Created{}, away(err)
	}
	c := Credentials{
		AppID: j.ID, Slug: j.Slug, ClientID: j.ClientID, ClientSecret: NewSecret(j.ClientSecret), PrivateKey: NewSecret(j.PEM),
		WebhookSecrets: []Secret{NewSecret(j.WebhookSecret)},
	}
	if _, err := New(Options{Endpoints: at, Credentials: c}); err != nil {
		return Created{}, err
	}
	return Created{c, j.Name, j.Owner.account(), j.HTMLURL}, nil
}
