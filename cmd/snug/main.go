// Command snug trains GPTs in the memory you have, and says beforehand what training takes.
package main

import (
	"os"

	"github.com/snugml/snug/internal/cli"
	"github.com/snugml/snug/internal/term"
)

func main() { os.Exit(cli.Run(os.Args[1:], term.System())) }
