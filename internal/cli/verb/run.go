// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package verb

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/printable"
)

// Exit statuses of both programs.
const (
	// StatusDone: the verb did its work, and found no faults if it looked for them.
	StatusDone = iota
	// StatusFaults: faults were looked for and found.
	StatusFaults
	// StatusFailed: the verb could not do all of its work. There may be faults or not.
	StatusFailed
	// StatusRefused: it could have been done, and must not be.
	StatusRefused
)

// Run runs the command, writes its error behind the name of the verb if there is one, and gives the exit status.
func Run(ctx context.Context, cmd *cobra.Command) int {
	refuseUnknown(cmd)
	ran, err := cmd.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return StatusDone
	case errors.Is(err, ErrFaults):
		return StatusFaults
	}
	status := StatusFailed
	if errors.Is(err, ErrRefused) || errors.Is(err, bundle.ErrExists) {
		status = StatusRefused
	}
	if ran.HasParent() {
		err = fmt.Errorf("%s: %w", ran.Name(), err)
	}
	lines := strings.Split(strings.TrimRight(err.Error(), "\n"), "\n") // several errors at once
	for i, line := range lines {
		text := strings.TrimLeft(line, "\t") // cobra indents its suggestions
		lines[i] = strings.Repeat("  ", len(line)-len(text)) + printable.Quoted(text)
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "kubediag:", strings.Join(lines, "\n"))
	return status
}

// FlagError says where the flags of a command are explained.
func FlagError(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w, see %s --help", err, cmd.CommandPath())
}

// refuseUnknown has the commands help and completion, which cobra makes, refuse unknown arguments: they would print their
// help and end well. Cobra makes them late, and completion takes the output that is set by then.
func refuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				if _, _, err := cmd.Root().Find(args); err != nil {
					return err
				}
				return nil
			}
		case "completion":
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() } // what only has commands checks no arguments
		}
	}
}
