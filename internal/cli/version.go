package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/term"
)

// release is the version that CHANGELOG.md names.
const release = "0.1.0"

// build is what a bug report needs.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func newVersion(io *term.IO) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return writeVersion(io.Out, wantJSON(cmd)) },
	}
}

func writeVersion(out *term.Stream, asJSON bool) error {
	b := buildInfo()
	if asJSON {
		return writeJSON(out, b)
	}
	line := "snug " + b.Version
	if b.Revision != "" {
		line += " (" + b.Revision[:min(12, len(b.Revision))]
		if b.Modified {
			line += ", modified"
		}
		line += ")"
	}
	_, err := fmt.Fprintf(out, "%s %s %s/%s\n", line, b.Go, b.OS, b.Arch)
	return err
}

func buildInfo() build {
	b := build{Version: release, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	return b
}

// noArgs refuses arguments in one line.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(fmt.Errorf("snug %s takes no arguments, not %q", cmd.Name(), args[0]))
	}
	return nil
}
