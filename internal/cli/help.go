package cli

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/term"
)

// writeHelp prints a command's help: what it does, examples, subcommands, its own flags, then the settings by group.
func writeHelp(out *term.Stream, cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	for _, line := range paragraphs(strings.TrimSpace(text)) {
		head := hanging.FindString(line)
		indent := strings.Repeat(" ", len(head))
		for i, part := range term.Wrapped(line[len(head):], out.Width-len(head)) {
			fmt.Fprintln(out, []string{head, indent}[min(i, 1)]+part)
		}
	}
	fmt.Fprintf(out, "\n%s\n  %s\n", out.Paint(term.Bold, "Usage"), useLine(cmd))
	if cmd.HasExample() {
		fmt.Fprintf(out, "\n%s\n%s\n", out.Paint(term.Bold, "Examples"), cmd.Example)
	}
	if subs := visible(cmd.Commands()); len(subs) > 0 {
		var rows [][2]string
		for _, c := range subs {
			rows = append(rows, [2]string{c.Name(), c.Short})
		}
		section(out, "Commands", rows)
	}
	var own [][2]string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, ok := f.Value.(*settingValue); !ok && !f.Hidden {
			if f.Name == "help" {
				f.Usage = "show this help"
			}
			own = append(own, flagRow(f))
		}
	})
	section(out, "Flags", own)
	groups := map[string][][2]string{}
	var order []string
	for i := range config.Table {
		row := &config.Table[i]
		f := cmd.Flags().Lookup(row.Key)
		if f == nil || f.Hidden {
			continue
		}
		v, ok := f.Value.(*settingValue)
		if !ok {
			continue
		}
		if _, seen := groups[row.Group]; !seen {
			order = append(order, row.Group)
		}
		help := row.Help
		if row.Choices != nil {
			help += ": " + strings.Join(row.Choices, ", ")
		}
		if d := describe(row, v.into.command); d != "" {
			help += " [" + d + "]"
		}
		groups[row.Group] = append(groups[row.Group], [2]string{"--" + row.Key + "=" + row.Type(), help})
	}
	for _, g := range order {
		section(out, "Settings: "+g, groups[g])
	}
}

// hanging is the first column of an indented line of two.
var hanging = regexp.MustCompile(`^  \S+ {2,}`)

// paragraphs joins the lines of a text that flow on, to be broken anew for the width there is. An empty line and one that
// is indented stand for themselves.
func paragraphs(text string) []string {
	var list []string
	open := false
	for _, line := range strings.Split(text, "\n") {
		flows := line != "" && line[0] != ' '
		if flows && open {
			list[len(list)-1] += " " + line
		} else {
			list = append(list, line)
		}
		open = flows
	}
	return list
}

func useLine(cmd *cobra.Command) string {
	if cmd.HasAvailableSubCommands() {
		return cmd.CommandPath() + " COMMAND"
	}
	return strings.TrimSuffix(cmd.UseLine(), " [flags]")
}

func flagRow(f *pflag.Flag) [2]string {
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	kind, usage := pflag.UnquoteUsage(f)
	if kind != "" {
		name += "=" + kind
	}
	if d := f.DefValue; d != "" && d != "false" && d != "[]" && d != "0" && d != "0s" {
		usage += " [" + d + "]"
	}
	return [2]string{name, usage}
}

func visible(cmds []*cobra.Command) []*cobra.Command {
	var v []*cobra.Command
	for _, c := range cmds {
		if !c.Hidden {
			v = append(v, c)
		}
	}
	return v
}

// section prints rows of name and text, the text wrapped beside the names.
func section(out *term.Stream, title string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s\n", out.Paint(term.Bold, title))
	width := 0
	for _, r := range rows {
		width = max(width, term.Width(r[0]))
	}
	for _, r := range rows {
		for i, part := range term.Wrapped(r[1], max(20, out.Width-width-4)) {
			name := r[0]
			if i > 0 {
				name = ""
			}
			fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("  %-*s  %s", width, name, part), " "))
		}
	}
}
