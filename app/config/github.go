package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/claude-hub/claude-hub/app/github"
)

// GitHub is the section "github": the App that the Hub is. The zero value is none.
type GitHub struct {
	URL               string  `yaml:"url"`
	APIURL            string  `yaml:"api_url"`
	Formerly          string  `yaml:"formerly"`
	AppID             int64   `yaml:"app_id"`
	ClientID          string  `yaml:"client_id"`
	ClientSecret      Secret  `yaml:"client_secret"`
	ClientSecretFile  string  `yaml:"client_secret_file"`
	PrivateKey        Secret  `yaml:"private_key"`
	PrivateKeyFile    string  `yaml:"private_key_file"`
	WebhookSecrets    Secrets `yaml:"webhook_secrets"`
	WebhookSecretFile string  `yaml:"webhook_secret_file"`

	// Push lets git in Sessions push with tokens of the App, for who may push at GitHub. It goes with an App of any origin.
	Push bool `yaml:"push"`
}

// maxWebhookSecrets is the present one and the one it replaces.
const maxWebhookSecrets = 2

// On says whether there is an App: any key but the addresses and push is set. One that is not whole is refused by Check, never taken for none.
func (g GitHub) On() bool {
	return g.AppID != 0 || g.ClientID != "" || g.ClientSecret != "" || g.ClientSecretFile != "" || g.PrivateKey != "" ||
		g.PrivateKeyFile != "" || len(g.WebhookSecrets) > 0 || g.WebhookSecretFile != ""
}

// Check refuses half an App and addresses that tokens must not be sent to. It reads no file.
func (g GitHub) Check() error {
	if err := errors.Join(checkURL("url", g.URL, false), checkURL("api_url", g.APIURL, true), checkURL("formerly", g.Formerly, false)); err != nil || !g.On() {
		return err
	}
	for _, two := range []struct {
		key        string
		text, file bool
	}{
		{"client_secret", g.ClientSecret != "", g.ClientSecretFile != ""},
		{"private_key", g.PrivateKey != "", g.PrivateKeyFile != ""},
	} {
		if two.text && two.file {
			return fmt.Errorf("github.%[1]s and github.%[1]s_file are both set: leave one out", two.key)
		}
	}
	var lacking []string
	for _, k := range []struct {
		name string
		set  bool
	}{
		{"app_id", g.AppID != 0},
		{"client_id", g.ClientID != ""},
		{"client_secret (or client_secret_file)", g.ClientSecret != "" || g.ClientSecretFile != ""},
		{"private_key (or private_key_file)", g.PrivateKey != "" || g.PrivateKeyFile != ""},
		{"webhook_secrets (or webhook_secret_file), without which anybody could send events", len(g.WebhookSecrets) > 0 || g.WebhookSecretFile != ""},
	} {
		if !k.set {
			lacking = append(lacking, "github."+k.name)
		}
	}
	if len(lacking) > 0 {
		return fmt.Errorf("the section github is only half of a GitHub App: set %s too, or leave the whole section out", strings.Join(lacking, ", "))
	}
	if g.AppID < 0 {
		return fmt.Errorf("github.app_id is %d: it is the number under About on the App's page", g.AppID)
	}
	return checkWebhookSecrets(g.WebhookSecrets)
}

func checkWebhookSecrets(all Secrets) error {
	for i, s := range all {
		if strings.TrimSpace(s.Reveal()) == "" {
			return fmt.Errorf("github.webhook_secrets: entry %d is empty, and anybody could send events", i+1)
		}
	}
	if len(all) > maxWebhookSecrets {
		return fmt.Errorf("github.webhook_secrets (with those of webhook_secret_file) are %d: at most two are accepted, the present one and the one it replaces", len(all))
	}
	return nil
}

func checkURL(key, address string, path bool) error {
	if address == "" {
		return nil
	}
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || !path && strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("github.%s must be the address of a GitHub and nothing more, such as https://github.example.com", key)
	case u.User != nil:
		return fmt.Errorf("github.%s holds a user name or password; it is only an address", key)
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return fmt.Errorf("github.%s must begin with https://: over http:// everybody on the way could read the tokens", key)
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Endpoints say where this GitHub is.
func (g GitHub) Endpoints() github.Endpoints { return g.At(g.URL) }

// At says where the GitHub at web is: api_url is part of what is known of the one at url.
func (g GitHub) At(web string) github.Endpoints {
	at := github.At(web)
	if g.APIURL != "" && at.Web == github.At(g.URL).Web {
		at.API = strings.TrimRight(g.APIURL, "/")
		at.GraphQL = strings.TrimSuffix(at.API, "/v3") + "/graphql"
	}
	return at
}

// Credentials are the App's, with those of files read. Their form is checked by github.New. The errors quote nothing of them.
func (g GitHub) Credentials() (github.Credentials, error) {
	c := github.Credentials{
		AppID: g.AppID, ClientID: g.ClientID, ClientSecret: github.NewSecret(g.ClientSecret.Reveal()), PrivateKey: github.NewSecret(g.PrivateKey.Reveal()),
	}
	var err error
	if g.ClientSecretFile != "" {
		if c.ClientSecret, err = secretFile("client_secret_file", g.ClientSecretFile); err != nil {
			return c, err
		}
	}
	if g.PrivateKeyFile != "" {
		if c.PrivateKey, err = secretFile("private_key_file", g.PrivateKeyFile); err != nil {
			return c, err
		}
	}
	all := append(Secrets{}, g.WebhookSecrets...)
	if g.WebhookSecretFile != "" {
		b, err := os.ReadFile(g.WebhookSecretFile)
		if err != nil {
			return c, fmt.Errorf("read the webhook secret (key github.webhook_secret_file): %w", err)
		}
		listed, err := secretLines(b)
		if err != nil {
			return c, fmt.Errorf("%s (key github.webhook_secret_file) is no list of secrets: %w", g.WebhookSecretFile, err)
		}
		if len(listed) == 0 {
			return c, fmt.Errorf("%s (key github.webhook_secret_file) has no secret, and anybody could send events", g.WebhookSecretFile)
		}
		for _, l := range listed {
			all = append(all, l.text)
		}
	}
	for _, s := range all {
		c.WebhookSecrets = append(c.WebhookSecrets, github.NewSecret(s.Reveal()))
	}
	return c, checkWebhookSecrets(all)
}

// secretFile is a file's text without the space around it, which editors and shells add.
func secretFile(key, path string) (github.Secret, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return github.Secret{}, fmt.Errorf("read github.%s: %w", key, err)
	}
	text := strings.TrimSpace(string(b))
	if text == "" {
		return github.Secret{}, fmt.Errorf("%s (key github.%s) is empty", path, key)
	}
	return github.NewSecret(text), nil
}
