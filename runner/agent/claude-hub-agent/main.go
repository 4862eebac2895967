// Command claude-hub-agent is the agent and nothing else, for being PID 1 of Sandboxes: `claude-hub agent` does the same,
// but starts all of claude-hub, which costs 10 ms a boot. It takes the same arguments.
package main

import (
	"os"

	"github.com/claude-hub/claude-hub/runner/agent"
)

func main() { os.Exit(agent.Main(os.Args[2:])) }
