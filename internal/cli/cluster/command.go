// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/complete"
	"kubediag.org/kubediag/internal/cli/terminal"
)

var (
	// ErrFaults is how a verb ends that has found faults, which it has shown.
	ErrFaults = errors.New("faults were found")
	// ErrRefused is how a verb ends that was not allowed to do what it was asked for.
	ErrRefused = errors.New("refused")
)

// Name is how users call the program.
const Name = "kubectl kubediag"

// NewCommand makes the command kubectl kubediag.
func NewCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-kubediag",
		Short: "Show, explain and heal the mount faults of a cluster",
		Long: "kubectl kubediag shows the mount faults of a cluster, and has the agents of its nodes diagnose and heal them.\n\n" +
			"Exit status: 0 no fault, 1 faults, 2 it could not look, 3 it was refused.",
		Example:       "  kubectl kubediag faults -A\n  kubectl kubediag run pod/web-7d9f8b6c5-x2x9k -n shop\n  kubectl kubediag doctor",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: Name},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c := &connection{}
	c.addFlags(root.PersistentFlags())
	root.AddCommand(newFaultsCommand(c), newRunCommand(c), newApproveCommand(c), newGetCommand(c), newReportCommand(c), newCancelCommand(c),
		newDoctorCommand(c), newLintCommand(c), newBundleCommand(c))
	complete.Flag(root, "namespace", c.namespaces)
	return root
}

// screen describes where the output of a verb leads.
func screen(cmd *cobra.Command) terminal.Screen { return terminal.New(cmd.OutOrStdout(), os.Getenv) }

func write(w io.Writer, text string) error {
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// takes has a verb take a number of arguments, which its help calls name.
func takes(name string, least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s: %s is missing, see %s --help", cmd.Name(), name, cmd.CommandPath())
		case most == 0 && len(args) > 0:
			return fmt.Errorf("%s: takes no arguments, not %q, see %s --help", cmd.Name(), args, cmd.CommandPath())
		case len(args) > most:
			return fmt.Errorf("%s: one %s at a time, not %d: %q", cmd.Name(), name, len(args), args)
		}
		return nil
	}
}

// verb puts the name of the verb before an error. The errors that only end a verb stay as they are.
func verb(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if err == nil || errors.Is(err, ErrFaults) {
			return err
		}
		return fmt.Errorf("%s: %w", cmd.Name(), err)
	}
}
