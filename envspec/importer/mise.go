package importer

import (
	"regexp"
	"strconv"
	"strings"
)

var miseReasons = map[string]string{
	"tasks": "tasks are run in a Session", "settings": "settings of mise are not carried over: write them into the bootstrap",
	"plugins": "plugins of mise are not carried over: install them in the bootstrap", "hooks": "hooks of mise run in a shell that activates it",
	"tools": "it has no version that mise could install",
}

var (
	toolName    = regexp.MustCompile(`^[A-Za-z0-9_@/.:+-]{1,200}$`)
	toolVersion = regexp.MustCompile(`^[A-Za-z0-9_@/.:+^~*-]{1,100}$`)
)

// mise lets the bootstrap install the tools of a list by mise, which reads asdf's list too, for all users.
func (p *plan) mise(root *node) {
	p.miseEnv(root.get("env"))
	var lines []string
	var taken []*node
	for _, tool := range root.get("tools").list() {
		all := versions(tool)
		quotes := make([]string, 0, len(all))
		for _, v := range all {
			if version := v.value; toolVersion.MatchString(version) && version != "system" && !strings.HasPrefix(version, "path:") {
				quotes = append(quotes, strconv.Quote(version))
				taken = append(taken, v)
			}
		}
		if !toolName.MatchString(tool.name) || len(quotes) == 0 {
			tool.why = miseReasons["tools"]
			taken = taken[:len(taken)-len(quotes)]
			continue
		}
		lines = append(lines, strconv.Quote(tool.name)+" = ["+strings.Join(quotes, ", ")+"]\n")
	}
	if len(lines) == 0 {
		return
	}
	body := `set -e
export MISE_DATA_DIR=/usr/local/share/mise MISE_INSTALL_PATH=/usr/local/bin/mise
curl -fsSL https://mise.run -o /tmp/mise-install
sh /tmp/mise-install
mkdir -p /etc/mise
cat > /etc/mise/config.toml <<'TOOLS'
[tools]
` + strings.Join(lines, "") + `TOOLS
mise install --yes
cat > /etc/profile.d/mise.sh <<'PROFILE'
export MISE_DATA_DIR=/usr/local/share/mise
export MISE_TRUSTED_CONFIG_PATHS=/workspace
export PATH="$MISE_DATA_DIR/shims:$PATH"
PROFILE`
	p.bootstrap.parts = append(p.bootstrap.parts, part{p.file + ": tools, by mise", body, ""})
	for _, v := range taken {
		v.use("bootstrap")
	}
}

// versions are the nodes that say a tool's versions, in the forms that there are: one, several, or in a group.
func versions(tool *node) []*node {
	switch tool.kind {
	case text, other:
		return []*node{tool}
	case list:
		var all []*node
		for _, c := range tool.children {
			all = append(all, versions(c)...)
		}
		return all
	case group:
		if v := tool.get("version"); v != nil && v.kind <= other {
			return []*node{v}
		}
	}
	return nil
}
