//go:build embed_agent

package embedded

import _ "embed"

//go:embed claude-hub-agent
var binary []byte
