package main

import (
	"os/exec"
	"sort"
	"strings"
	"testing"
)

const module = "github.com/claude-hub/claude-hub/"

// arrows says which of our packages a package may import (docs/architecture.md). A folder speaks for what is below it
// unless that has a line of its own. Test code is free.
var arrows = map[string]string{
	"store":            "",
	"envspec":          "",
	"envspec/importer": "envspec",
	"envspec/lint":     "envspec",
	"runner/redact":    "",
	"runner/wire":      "",
	"runner/sandbox":   "",
	"runner/agent":     "",

	"app/fault":       "",
	"app/config":      "app/github envspec",
	"app/github":      "",
	"app/audit":       "store",
	"app/metrics":     "app/github",
	"app/seal":        "store",
	"app/access":      "store app/github app/seal app/audit app/fault",
	"app/fleet":       "store app/audit app/fault runner/wire runner/redact",
	"app/token":       "app/github app/fleet",
	"app/checks":      "store app/github runner/redact",
	"app/setup":       "store app/github app/seal app/access app/audit app/fault",
	"app/variable":    "store envspec app/seal app/access app/github app/audit app/fault runner/wire runner/redact",
	"app/environment": "store envspec app/access app/github app/variable app/fleet app/audit app/fault runner/wire",
	"app/proposal":    "store envspec app/access app/checks app/environment app/fault app/fleet app/github app/variable runner/redact runner/wire",
	"app/session":     "store app/access app/github app/environment app/variable app/fleet app/audit app/fault runner/wire runner/redact",

	"handlers":           "store envspec app/metrics app/fault app/access app/environment app/proposal app/variable app/session app/fleet app/setup handlers/request handlers/api handlers/ports handlers/web handlers/webhook handlers/runnerapi",
	"handlers/request":   "app/fault",
	"handlers/peer":      "handlers/request",
	"handlers/ports":     "handlers/peer handlers/request app/access app/fault app/fleet app/session",
	"handlers/webhook":   "store app/github app/checks app/audit app/fault",
	"handlers/runnerapi": "handlers/peer store app/fleet app/fault runner/wire",
	"handlers/api":       "handlers/peer handlers/request store envspec app/fault app/github app/access app/environment app/proposal app/variable app/session app/fleet runner/wire",
	"handlers/web":       "handlers/peer handlers/ports handlers/request handlers/webhook runner/redact store envspec app/fault app/github app/setup app/access app/environment app/proposal app/variable app/session app/fleet runner/wire",

	"runner/sandbox/oci": "runner/sandbox",
	"runner/image":       "runner/sandbox",
	"runner/claudecode":  "",
	"runner/clone":       "",
	"runner/spool":       "runner/redact runner/wire",
	"runner/hubclient":   "runner/wire runner/spool runner/redact",
	"runner/secret":      "runner/redact runner/wire",
	"runner/login":       "runner/agent",
	"runner/build":       "envspec runner/sandbox runner/image runner/agent runner/secret runner/login runner/redact runner/claudecode runner/clone runner/spool runner/wire",
	"runner/session":     "envspec runner/sandbox runner/image runner/agent runner/secret runner/login runner/redact runner/clone runner/spool runner/wire runner/build",
	"runner":             "envspec runner/sandbox runner/sandbox/oci runner/image runner/agent runner/secret runner/login runner/redact runner/claudecode runner/clone runner/spool runner/wire runner/build runner/session runner/hubclient",

	"cmd": "*",
	"":    "cmd",
}

func TestImportsFollowTheArrows(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	used := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		words := strings.Fields(line)
		from := inModule(words[0])
		if strings.HasSuffix(from, "test") || strings.HasPrefix(from, "e2e") {
			continue // test code: storetest, imagetest, e2e
		}
		rule := nearest(from)
		used[rule] = true
		for _, imported := range words[1:] {
			if !strings.HasPrefix(imported, module) {
				continue
			}
			to := inModule(imported)
			if within(to, rule) || allowed(arrows[rule], to) {
				continue
			}
			t.Errorf("%s imports %s: the arrows of docs/architecture.md let it import only %q", from, to, arrows[rule])
		}
	}
	var unused []string
	for rule := range arrows {
		if !used[rule] {
			unused = append(unused, rule)
		}
	}
	sort.Strings(unused)
	if len(unused) > 0 {
		t.Errorf("arrows for packages that don't exist: %q", unused)
	}
}

// inModule is a package's path below the module, "" for the module's own.
func inModule(path string) string {
	return strings.TrimSuffix(strings.TrimPrefix(path+"/", module), "/")
}

// nearest is the folder of arrows that speaks for a package.
func nearest(pkg string) string {
	for pkg != "" {
		if _, ok := arrows[pkg]; ok {
			return pkg
		}
		i := strings.LastIndex(pkg, "/")
		pkg = pkg[:max(i, 0)]
	}
	return ""
}

// within lets a package import what stands below the same line.
func within(to, rule string) bool { return nearest(to) == rule && rule != "" }

func allowed(list, to string) bool {
	for _, a := range strings.Fields(list) {
		if a == "*" || to == a || nearest(to) == a {
			return true
		}
	}
	return false
}
