// Package cli owns the command line: one file a command, flags made from config's table, streams and exit codes.
//
// A command is an options struct and a run function over term.IO, so parsing and running are tested apart.
// It prints what other packages computed, and computes nothing itself.
//
// To add a command: write NAME.go with newName(io *term.IO) *cobra.Command, and add it to commands.
package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/snugml/snug/internal/nearest"
	"github.com/snugml/snug/internal/term"
)

// Exit codes.
const (
	ExitDone       = 0
	ExitFailed     = 1
	ExitUsage      = 2
	ExitDoesNotFit = 3
	ExitNoDevice   = 4
)

// commands makes snug's commands, in the order of its help.
var commands = []func(*term.IO) *cobra.Command{
	newTrain,
	newPrepare,
	newSample,
	newConvert,
	newPlan,
	newDoctor,
	newRun,
	newBench,
	newGPUs,
	newWatch,
	newVersion,
	newGPUProbe,
}

// exitError is an error with the exit code it asks for. A nil err ends quietly: what was wrong has been shown.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError marks err as the user's to mend on the command line (exit 2).
func usageError(err error) error { return &exitError{ExitUsage, err} }

// Run runs snug with args and returns its exit code.
func Run(args []string, io *term.IO) int {
	root := newRoot(io)
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return ExitDone
	}
	code := ExitFailed
	var ee *exitError
	if errors.As(err, &ee) {
		code = ee.code
		if ee.err == nil {
			return code
		}
	}
	io.Err.Line(io.Err.Paint(term.Red, "snug:") + " " + strings.TrimSpace(err.Error()))
	return code
}

func newRoot(io *term.IO) *cobra.Command {
	root := &cobra.Command{
		Use:   "snug",
		Short: "GPT training that fits the memory you have",
		Long: "snug trains GPT-2-class models inside the memory you have, and says beforehand what training takes.\n" +
			"It reads nanoGPT's settings, config files and data.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			if asked, _ := cmd.Flags().GetBool("version"); asked {
				return writeVersion(io.Out, wantJSON(cmd))
			}
			return cmd.Help()
		},
	}
	root.SetOut(io.Out)
	root.SetErr(io.Err)
	root.SetIn(io.In)
	root.Flags().Bool("version", false, "print the version")
	root.PersistentFlags().Bool("json", false, "print the result as JSON")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { writeHelp(io.Out, cmd) })
	root.CompletionOptions.HiddenDefaultCmd = false
	root.SetHelpCommand(&cobra.Command{Use: "help [command]", Short: "Show help for a command", RunE: func(cmd *cobra.Command, args []string) error {
		target, _, err := root.Find(args)
		if err != nil || target == nil || target == root && len(args) > 0 {
			return unknownCommand(root, strings.Join(args, " "))
		}
		return target.Help()
	}})
	for _, make := range commands {
		root.AddCommand(make(io))
	}
	return root
}

func unknownCommand(root *cobra.Command, name string) error {
	var names []string
	for _, c := range root.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	if hint := nearest.Hint(name, names); hint != "" {
		return usageError(fmt.Errorf("unknown command %q: %s", name, hint))
	}
	return usageError(fmt.Errorf("unknown command %q: snug --help lists the commands", name))
}

// flagError turns pflag's complaint into one line that names the nearest flag.
func flagError(cmd *cobra.Command, err error) error {
	var missing *pflag.NotExistError
	if errors.As(err, &missing) {
		if short := missing.GetSpecifiedShortnames(); short != "" {
			return usageError(fmt.Errorf("unknown flag -%s: flags have two dashes, %s --help lists them", short, cmd.CommandPath()))
		}
		return usageError(unknownFlag(cmd, missing.GetSpecifiedName()))
	}
	var needs *pflag.ValueRequiredError
	if errors.As(err, &needs) {
		return usageError(fmt.Errorf("--%s needs a value: --%s=…", needs.GetSpecifiedName(), needs.GetSpecifiedName()))
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && invalid.Unwrap() != nil {
		if _, ok := invalid.GetFlag().Value.(*settingValue); ok { // the setting's own message names its key
			return usageError(fmt.Errorf("--%w", invalid.Unwrap()))
		}
	}
	return usageError(err)
}

// wantJSON says whether --json was given.
func wantJSON(cmd *cobra.Command) bool {
	on, _ := cmd.Flags().GetBool("json")
	return on
}

// writeJSON prints v as indented JSON.
func writeJSON(out *term.Stream, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
