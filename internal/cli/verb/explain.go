// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package verb

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/docs/runbook"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/fault"
)

// NewExplainCommand makes the verb explain, of the program that users call by this name.
func NewExplainCommand(program string) *cobra.Command {
	var language string
	cmd := &cobra.Command{
		Use:   "explain [CODE]",
		Short: "Explain a fault: cause, proof, repair, and what to do by hand",
		Long: "explain prints the runbook of a fault, which is part of this program. CODE may be in lower case, and shorter if only\n" +
			"one code begins so. Without it, explain lists the codes.",
		Example:           "  " + program + " explain StaleSubPath\n  " + program + " explain hung --lang zh",
		Args:              Takes("CODE", 0),
		ValidArgsFunction: CompleteArg(codesWithTitles),
	}
	cmd.Flags().StringVar(&language, "lang", "en", "language: "+strings.Join(runbook.Languages(), " or "))
	CompleteFlag(cmd, "lang", runbook.Languages)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(runbook.Languages(), language) {
			return fmt.Errorf("--lang=%q: must be %s", language, strings.Join(runbook.Languages(), " or "))
		}
		output := cmd.OutOrStdout()
		screen := terminal.New(output, os.Getenv)
		if len(args) == 0 {
			var b strings.Builder
			for _, entry := range fault.Known() {
				fmt.Fprintf(&b, "%-20s  %s\n", entry.Code, entry.Title)
			}
			return Write(output, b.String())
		}
		code, err := CodeOfWord(args[0])
		if err != nil {
			return err
		}
		page, err := runbook.Page(string(code), language)
		if err != nil {
			return err
		}
		if language == "en" {
			return Write(output, screen.Text(screen.Markdown(page)))
		}
		screen.ASCII = false // it would be nothing but escapes
		return Write(output, screen.Markdown(page))
	}
	return cmd
}

// CodeOfWord is the code that a word means: its name in any case, or as much of it as only this code begins with. The error names the
// codes that it may be.
func CodeOfWord(word string) (fault.Code, error) {
	var found []string
	for _, name := range Codes() {
		switch lower := strings.ToLower(name); {
		case lower == strings.ToLower(word):
			return fault.Code(name), nil
		case word != "" && strings.HasPrefix(lower, strings.ToLower(word)):
			found = append(found, name)
		}
	}
	switch len(found) {
	case 1:
		return fault.Code(found[0]), nil
	case 0:
		return "", fmt.Errorf("%q: is none of %s", word, strings.Join(Codes(), ", "))
	}
	return "", fmt.Errorf("%q: may be any of %s", word, strings.Join(found, ", "))
}

// codesWithTitles are the codes with their titles, for a shell to complete.
func codesWithTitles() (list []string) {
	for _, entry := range fault.Known() {
		list = append(list, string(entry.Code)+"\t"+entry.Title)
	}
	return list
}
