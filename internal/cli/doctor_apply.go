package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/oom"
	"github.com/snugml/snug/internal/term"
)

// applyFix writes a fix into the config file, or prints it where there is none to write into.
func (o *doctorOptions) applyFix(io *term.IO, d *oom.Diagnosis) error {
	f, err := o.chosen(d)
	if err != nil {
		return err
	}
	if len(o.files) == 0 || len(f.Changes) == 0 {
		_, err := fmt.Fprintln(io.Out, commandLine(d, f, o.files))
		return err
	}
	path := o.files[len(o.files)-1]
	src, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("apply to %s: %w", path, err)
	}
	edited := editConfig(src, f.Changes)
	check := config.DefaultFor(config.Doctor)
	if err := check.Load(path, edited); err != nil {
		return fmt.Errorf("apply to %s: the edited file would not load: %w", path, err)
	}
	backup, err := backupOf(path, src)
	if err != nil {
		return err
	}
	if err := writeAside(path, edited); err != nil {
		return err
	}
	fmt.Fprintf(io.Err, "%s: %s (the file as it was is %s)\n", path, fixText(f), backup)
	return nil
}

// chosen is the fix that --fix names, or the best.
func (o *doctorOptions) chosen(d *oom.Diagnosis) (oom.Fix, error) {
	if o.fix > len(d.Fixes) {
		return oom.Fix{}, usageError(fmt.Errorf("--fix=%d: there are %d rows", o.fix, len(d.Fixes)))
	}
	if o.fix > 0 {
		f := d.Fixes[o.fix-1]
		if len(f.Changes) == 0 && len(f.Env) == 0 {
			return f, usageError(fmt.Errorf("--fix=%d (%s) changes no setting: do it by hand, or see --patch", o.fix, f.Kind))
		}
		return f, nil
	}
	best := bestFix(d)
	if best < 0 {
		return oom.Fix{}, &exitError{ExitDoesNotFit, errors.New("no simulated change of settings fits: --fix=N picks a row of the report all the same")}
	}
	return d.Fixes[best], nil
}

// backupOf writes the file as it was beside it, under a name that is still free.
func backupOf(path string, src []byte) (string, error) {
	for n := 0; n < 1000; n++ {
		name := path + ".bak"
		if n > 0 {
			name = fmt.Sprintf("%s.bak%d", path, n)
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("back up %s: %w", path, err)
		}
		_, err = f.Write(src)
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			return "", fmt.Errorf("back up %s: %w", path, err)
		}
		return name, nil
	}
	return "", fmt.Errorf("back up %s: a thousand backups stand beside it: remove some", path)
}

// editConfig gives keys new values in a config file: only their lines change, comments and order stay. A key that the
// file does not set is added at its end.
func editConfig(src []byte, changes map[string]any) []byte {
	newline := "\n"
	if bytes.Contains(src, []byte("\r\n")) {
		newline = "\r\n"
	}
	text := string(src)
	for _, key := range sortedKeys(changes) {
		line := regexp.MustCompile(`(?m)^(` + regexp.QuoteMeta(key) + `[ \t]*=[ \t]*)([^#\r\n]*?)([ \t]*(?:#[^\r\n]*)?\r?)$`)
		value := config.Python(changes[key])
		all := line.FindAllStringSubmatchIndex(text, -1)
		if len(all) == 0 {
			if text != "" && !strings.HasSuffix(text, "\n") {
				text += newline
			}
			text += key + " = " + value + newline
			continue
		}
		at := all[len(all)-1] // the last assignment is the one that counts
		text = text[:at[4]] + value + text[at[5]:]
	}
	return []byte(text)
}

// patchRule changes a line of nanoGPT's train.py that costs memory or warns.
type patchRule struct {
	line   *regexp.Regexp
	change string // replaces what matched; "" keeps it
	after  string // a line to add below, at the same indentation
	done   string // the rule is spent where the file holds this already
}

// patchRules: the checkpoint is read on the CPU, the last step's logits are let go, the scaler is made the new way.
var patchRules = []patchRule{
	{line: regexp.MustCompile(`torch\.load\((\w+), map_location=device\)`), change: `torch.load($1, map_location='cpu')`},
	{line: regexp.MustCompile(`torch\.cuda\.amp\.GradScaler\(`), change: `torch.amp.GradScaler('cuda', `},
	{line: regexp.MustCompile(`^\s*scaler\.scale\(loss\)\.backward\(\)`), after: "del logits # else they live through the next forward", done: "del logits"},
}

// printPatch prints a unified diff of train.py.
func (o *doctorOptions) printPatch(io *term.IO, _ *oom.Diagnosis) error {
	src, err := os.ReadFile(o.patch)
	if err != nil {
		return usageError(fmt.Errorf("--patch needs nanoGPT's train.py: %w", err))
	}
	before := strings.SplitAfter(string(src), "\n")
	diff := unified(o.patch, before, edits(before, string(src)))
	if diff == "" {
		return &exitError{ExitFailed, fmt.Errorf("%s has none of the lines that --patch knows: GradScaler, map_location, backward", o.patch)}
	}
	_, err = fmt.Fprint(io.Out, diff)
	return err
}

// edit replaces one line by others.
type edit struct {
	line int
	with []string
}

func edits(lines []string, whole string) []edit {
	var all []edit
	for i, l := range lines {
		for _, r := range patchRules {
			if !r.line.MatchString(l) || r.done != "" && strings.Contains(whole, r.done) {
				continue
			}
			with := []string{l}
			if r.change != "" {
				with[0] = r.line.ReplaceAllString(l, r.change)
			}
			if r.after != "" {
				body := strings.TrimLeft(l, " \t")
				end := l[len(strings.TrimRight(l, "\r\n")):]
				with = append(with, l[:len(l)-len(body)]+r.after+end)
			}
			all = append(all, edit{i, with})
			break
		}
	}
	return all
}

// unified writes the edits as a unified diff with three lines of context.
func unified(path string, lines []string, all []edit) string {
	const context = 3
	var b strings.Builder
	added := 0
	for i := 0; i < len(all); {
		j := i + 1
		for j < len(all) && all[j].line-all[j-1].line <= 2*context {
			j++
		}
		first, last := max(0, all[i].line-context), min(len(lines), all[j-1].line+context+1)
		if lines[last-1] == "" {
			last--
		}
		var body strings.Builder
		grown := 0
		for n, e := first, i; n < last; n++ {
			if e < j && all[e].line == n {
				if all[e].with[0] == lines[n] {
					body.WriteString(" " + lines[n])
				} else {
					body.WriteString("-" + lines[n] + "+" + all[e].with[0])
				}
				for _, extra := range all[e].with[1:] {
					body.WriteString("+" + extra)
					grown++
				}
				e++
				continue
			}
			body.WriteString(" " + lines[n])
		}
		fmt.Fprintf(&b, "@@ -%d,%d +%d,%d @@\n%s", first+1, last-first, first+1+added, last-first+grown, body.String())
		added += grown
		i = j
	}
	if b.Len() == 0 {
		return ""
	}
	return "--- " + path + "\n+++ " + path + "\n" + b.String()
}
