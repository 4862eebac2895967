// Command claude-hub gives every GitHub Repo one Environment and runs Sessions in Sandboxes built from it.
package main

import (
	"os"

	"github.com/claude-hub/claude-hub/cmd"
)

func main() { os.Exit(cmd.Main(os.Args[1:])) }
