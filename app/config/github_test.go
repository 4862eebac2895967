package config_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/claude-hub/claude-hub/app/config"
	"github.com/claude-hub/claude-hub/app/github"
)

type appFile struct {
	GitHub config.GitHub `yaml:"github"`
}

const whole = `github:
  app_id: 12
  client_id: Iv1.abc
  client_secret: client-canary
  private_key: key-canary
  webhook_secrets: [hook-canary-1, hook-canary-2]
`

func wholeApp(t *testing.T) config.GitHub {
	t.Helper()
	var f appFile
	if err := config.Load(write(t, whole), &f); err != nil {
		t.Fatal(err)
	}
	return f.GitHub
}

func TestNoSectionIsNoApp(t *testing.T) {
	t.Parallel()
	for _, g := range []config.GitHub{{}, {URL: "https://github.example.com"}} {
		if err := g.Check(); err != nil || g.On() {
			t.Errorf("%v: on %t, %v", g.URL, g.On(), err)
		}
	}
}

func TestHalfAnAppIsRefusedWithWhatIsMissing(t *testing.T) {
	t.Parallel()
	if g := wholeApp(t); g.Check() != nil || !g.On() {
		t.Fatalf("the whole one: %v", g.Check())
	}
	for says, change := range map[string]func(*config.GitHub){
		"set github.app_id too":                          func(g *config.GitHub) { g.AppID = 0 },
		"set github.client_id too":                       func(g *config.GitHub) { g.ClientID = "" },
		"set github.client_secret (or":                   func(g *config.GitHub) { g.ClientSecret = "" },
		"set github.private_key (or private_key_file)":   func(g *config.GitHub) { g.PrivateKey = "" },
		"set github.webhook_secrets (or":                 func(g *config.GitHub) { g.WebhookSecrets = nil },
		"github.app_id, github.client_id, github.client": func(g *config.GitHub) { *g = config.GitHub{PrivateKeyFile: "/key"} },
		"entry 2 is empty":                               func(g *config.GitHub) { g.WebhookSecrets[1] = " " },
		"are 3: at most two":                             func(g *config.GitHub) { g.WebhookSecrets = append(g.WebhookSecrets, "c") },
		"private_key and github.private_key_file":        func(g *config.GitHub) { g.PrivateKeyFile = "/key" },
		"client_secret and github.client_secret_file":    func(g *config.GitHub) { g.ClientSecretFile = "/secret" },
		"github.app_id is -1":                            func(g *config.GitHub) { g.AppID = -1 },
	} {
		g := wholeApp(t)
		change(&g)
		err := g.Check()
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "canary") {
			t.Errorf("want %q, got %v", says, err)
		}
		if !g.On() {
			t.Errorf("%s: taken for none", says)
		}
	}
}

func TestOnlyAnAddressThatTokensMayBeSentToIsTaken(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"https://github.example.com": "", "https://github.example.com/": "", "https://github.com": "", "http://127.0.0.1:81": "", "http://localhost": "",
		"github.example.com":                  "must be the address",
		"ssh://github.example.com":            "must be the address",
		"https://github.example.com/api/v3":   "must be the address",
		"https://github.example.com?a=b":      "must be the address",
		"https://u:canary@github.example.com": "holds a user name or password",
		"http://github.example.com":           "must begin with https://",
	} {
		g := config.GitHub{URL: url}
		err := g.Check()
		if (err == nil) != (says == "") || err != nil && (!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "canary")) {
			t.Errorf("%s: want %q, got %v", url, says, err)
		}
	}
	if at := (config.GitHub{URL: "https://github.example.com/"}).Endpoints(); at != github.Enterprise("https://github.example.com") {
		t.Errorf("%+v", at)
	}
	if at := (config.GitHub{}).Endpoints(); at != github.Com() {
		t.Errorf("%+v", at)
	}
}

func TestTheAPIIsWhereThatGitHubHasItUnlessTheConfigSaysElse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		section       config.GitHub
		web, api, gql string
	}{
		{config.GitHub{}, "", "https://api.github.com", "https://api.github.com/graphql"},
		{config.GitHub{}, "https://ghe.example.com", "https://ghe.example.com/api/v3", "https://ghe.example.com/api/graphql"},
		{config.GitHub{}, "https://acme.ghe.com", "https://api.acme.ghe.com", "https://api.acme.ghe.com/graphql"},
		{config.GitHub{APIURL: "https://proxy.example.com/"}, "https://github.com", "https://proxy.example.com", "https://proxy.example.com/graphql"},
		{config.GitHub{APIURL: "https://proxy.example.com"}, "https://ghe.example.com", "https://ghe.example.com/api/v3", "https://ghe.example.com/api/graphql"},
		{
			config.GitHub{URL: "https://ghe.example.com", APIURL: "https://proxy.example.com/api/v3"}, "https://ghe.example.com/",
			"https://proxy.example.com/api/v3", "https://proxy.example.com/api/graphql",
		},
	} {
		if at := test.section.At(test.web); at.API != test.api || at.GraphQL != test.gql {
			t.Errorf("%+v at %q: want %s and %s, got %+v", test.section, test.web, test.api, test.gql, at)
		}
	}
	if err := (config.GitHub{APIURL: "http://proxy.example.com"}).Check(); err == nil || !strings.Contains(err.Error(), "github.api_url") {
		t.Errorf("tokens would go over plain HTTP: %v", err)
	}
}

func TestSecretsOfTheAppComeFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	g := config.GitHub{AppID: 12, ClientID: "Iv1.abc", ClientSecretFile: put("client", " client-canary\n"), PrivateKeyFile: put("key", "\n"+string(text)),
		WebhookSecrets: config.Secrets{"hook-1"}, WebhookSecretFile: put("hook", "# the old one\nhook-2 # until Monday\n")}
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	c, err := g.Credentials()
	if err != nil {
		t.Fatal(err)
	}
	if c.ClientSecret.Reveal() != "client-canary" || len(c.WebhookSecrets) != 2 || c.WebhookSecrets[0].Reveal() != "hook-1" || c.WebhookSecrets[1].Reveal() != "hook-2" {
		t.Errorf("got %s, %d webhook secrets", c.ClientSecret.Reveal(), len(c.WebhookSecrets))
	}
	if _, err := github.New(github.Options{Credentials: c}); err != nil {
		t.Errorf("the key: %v", err)
	}
	for says, change := range map[string]func(*config.GitHub){
		"read github.private_key_file":                          func(g *config.GitHub) { g.PrivateKeyFile = filepath.Join(dir, "gone") },
		"read github.client_secret_file":                        func(g *config.GitHub) { g.ClientSecretFile = dir },
		"(key github.client_secret_file) is empty":              func(g *config.GitHub) { g.ClientSecretFile = put("none", " \n") },
		"read the webhook secret (key github.webhook":           func(g *config.GitHub) { g.WebhookSecretFile = filepath.Join(dir, "gone") },
		"(key github.webhook_secret_file) has no secret":        func(g *config.GitHub) { g.WebhookSecretFile = put("nohook", "# none\n") },
		"(key github.webhook_secret_file) is no list":           func(g *config.GitHub) { g.WebhookSecretFile = put("long", strings.Repeat("canary", 1<<15)) },
		"with those of webhook_secret_file) are 3: at most two": func(g *config.GitHub) { g.WebhookSecretFile = put("many", "a\nb\n") },
	} {
		h := g
		change(&h)
		if _, err := h.Credentials(); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "canary") {
			t.Errorf("want %q, got %v", says, err)
		}
	}
}

func TestTheAppComesFromTheEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"URL": "https://github.example.com", "APP_ID": "12", "CLIENT_ID": "Iv1.abc", "CLIENT_SECRET": "a: b # c", "PRIVATE_KEY": "-----BEGIN\nx\n",
		"WEBHOOK_SECRETS": "[new, old]",
	} {
		t.Setenv("CLAUDE_HUB_GITHUB_"+name, value)
	}
	var f appFile
	if err := config.Load("", &f); err != nil {
		t.Fatal(err)
	}
	c, err := f.GitHub.Credentials()
	if err != nil || f.GitHub.Check() != nil || c.AppID != 12 || c.ClientID != "Iv1.abc" || c.ClientSecret.Reveal() != "a: b # c" ||
		c.PrivateKey.Reveal() != "-----BEGIN\nx\n" || len(c.WebhookSecrets) != 2 || f.GitHub.URL != "https://github.example.com" {
		t.Errorf("%+v %v %v", c.WebhookSecrets, err, f.GitHub.Check())
	}
}

func TestNothingPrintsTheAppsSecrets(t *testing.T) {
	t.Parallel()
	f := appFile{GitHub: wholeApp(t)}
	c, err := f.GitHub.Credentials()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, v := range []any{f, &f, f.GitHub, &f.GitHub, f.GitHub.PrivateKey, f.GitHub.WebhookSecrets, c, &c} {
		fmt.Fprintf(&out, "%v %+v %#v %s %q\n", v, v, v, v, v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		for _, marshal := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
			b, err := marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(b)
		}
	}
	if s := out.String(); strings.Contains(s, "canary") || !strings.Contains(s, "[hidden]") {
		t.Errorf("printed: %s", s)
	}
}
