package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/nearest"
	"github.com/snugml/snug/internal/units"
)

// settings are the flags that a command takes from config's table, and what was given for them.
type settings struct {
	command   config.Commands
	overrides []override // in the order given
}

type override struct{ key, text string }

// settingValue is one key as a flag. It checks its text at once, so that the error names the flag.
type settingValue struct {
	setting *config.Setting
	into    *settings
	text    string
}

func (v *settingValue) String() string { return v.text }
func (v *settingValue) Type() string   { return v.setting.Type() }

func (v *settingValue) Set(text string) error {
	scratch := config.DefaultFor(v.into.command)
	if err := scratch.SetLiteral(v.setting.Key, text); err != nil {
		return err
	}
	v.text = text
	v.into.overrides = append(v.into.overrides, override{v.setting.Key, text})
	return nil
}

// addSettings gives cmd a flag for each setting that it reads. plan and doctor also take train's others, unlisted and
// without effect, so that a command line of train.py need not be weeded for them.
func addSettings(cmd *cobra.Command, which config.Commands) *settings {
	s := &settings{command: which}
	for i := range config.Table {
		row := &config.Table[i]
		reads := row.Commands&which != 0
		if !reads && (which&(config.Plan|config.Doctor) == 0 || row.Commands&config.Train == 0) {
			continue
		}
		cmd.Flags().Var(&settingValue{setting: row, into: s}, row.Key, row.Help)
		cmd.Flags().Lookup(row.Key).Hidden = !reads
		choices := row.Choices
		if row.Type() == "bool" {
			choices = []string{"True", "False"}
		}
		if choices != nil {
			offer(cmd, row.Key, choices...)
		}
	}
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"py"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return s
}

// offer gives a flag's values to shell completion.
func offer(cmd *cobra.Command, flag string, values ...string) {
	// The only errors are a flag that is not there and one offered twice: neither depends on input.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// load reads the settings as nanoGPT does: defaults, then the config files in order, then the overrides in order.
func (s *settings) load(files []string) (config.Config, error) {
	cfg := config.DefaultFor(s.command)
	for _, path := range files {
		if key, _, ok := strings.Cut(path, "="); ok {
			return cfg, usageError(fmt.Errorf("%q is not a config file: to set %s write --%s", path, key, path))
		}
		if err := cfg.LoadFile(path); err != nil {
			return cfg, usageError(err)
		}
	}
	for _, o := range s.overrides {
		if err := cfg.SetLiteral(o.key, o.text); err != nil {
			return cfg, usageError(err)
		}
	}
	if err := cfg.Check(); err != nil {
		return cfg, usageError(err)
	}
	return cfg, nil
}

// unknownFlag is the error for --name on cmd: it names the command that has the key, or the nearest flag.
func unknownFlag(cmd *cobra.Command, name string) error {
	var names []string
	hasSettings := false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names = append(names, f.Name)
		_, ok := f.Value.(*settingValue)
		hasSettings = hasSettings || ok
	})
	if row, ok := config.Lookup(name); ok && hasSettings {
		return fmt.Errorf("unknown key --%s for snug %s: it belongs to snug %s", name, cmd.Name(), row.Commands)
	}
	slices.Sort(names)
	kind := "flag"
	if hasSettings {
		kind = "key"
	}
	if near := nearest.Names(name, names); len(near) > 0 {
		return fmt.Errorf("unknown %s --%s: did you mean --%s?", kind, name, strings.Join(near, " or --"))
	}
	return fmt.Errorf("unknown %s --%s: %s --help lists them", kind, name, cmd.CommandPath())
}

// describe is a setting's default and unit as help shows them.
func describe(row *config.Setting, which config.Commands) string {
	value := row.Default
	if which == config.Sample && row.Sample != nil {
		value = row.Sample
	}
	if b, ok := value.(units.Bytes); ok && b == 0 {
		return ""
	}
	text := config.Python(value)
	if row.Unit != "" {
		text += " " + row.Unit
	}
	return text
}
