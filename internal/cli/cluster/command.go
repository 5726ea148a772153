// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
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
	verb.CompleteFlag(root, "namespace", c.resourceNames(namespaces))
	return root
}

// screenOf describes where the output of a verb leads.
func screenOf(cmd *cobra.Command) terminal.Screen { return terminal.New(cmd.OutOrStdout(), os.Getenv) }

// commandLine is a line to paste: a verb of this program with its arguments, and the flags by which this call found the
// cluster.
func (c *client) commandLine(args ...string) string {
	words := []string{Name}
	for _, arg := range append(args, c.flags...) {
		words = append(words, fault.Quote(arg))
	}
	return strings.Join(words, " ")
}
