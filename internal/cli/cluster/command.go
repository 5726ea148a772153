// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/version"
)

// Name is how users call the program.
const Name = "kubectl kubediag"

// completionName is the name by which kubectl calls the program to complete a line.
const completionName = "kubectl_complete-kubediag"

// NewCommand makes the command kubectl kubediag of a program that was called by this name with these arguments.
func NewCommand(program string, args []string) *cobra.Command {
	root := newPlugin()
	if strings.TrimSuffix(filepath.Base(program), ".exe") == completionName {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	root.SetArgs(args)
	return root
}

func newPlugin() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-kubediag",
		Short: "Show, explain and heal the mount faults of a cluster",
		Long: "kubectl kubediag shows the mount faults of a cluster, and has the agents of its nodes diagnose and heal them.\n\n" +
			"Exit status: 0 no fault, 1 faults, 2 it could not look, 3 it was refused.",
		Example:       "  kubectl kubediag faults -A\n  kubectl kubediag run pod/web-7d9f8b6c5-x2x9k -n shop\n  kubectl kubediag doctor",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: Name},
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.String(),
	}
	root.SetFlagErrorFunc(verb.FlagError)
	c := &connection{genericclioptions.NewConfigFlags(true), root.PersistentFlags()}
	c.flags.CacheDir = nil // no kind is looked up
	c.flags.AddFlags(c.set)
	c.set.Lookup("request-timeout").DefValue = requestTimeout.String() // with any value, cli-runtime would not use the configuration of a pod
	root.AddCommand(newStatusCommand(c), newUICommand(c), newFaultsCommand(c), newShowCommand(c), newRunCommand(c), newImpactCommand(c), newApproveCommand(c), newGetCommand(c), newReportCommand(c), newCancelCommand(c),
		newDoctorCommand(c), newLintCommand(c), newBundleCommand(c), verb.NewExplainCommand(Name), verb.NewVersionCommand())
	verb.CompleteFlag(root, "namespace", c.resourceNames(namespaceKind))
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

// kubectlLine is a line to paste, with a verb of kubectl.
func (c *client) kubectlLine(args ...string) string {
	return "kubectl" + strings.TrimPrefix(c.commandLine(args...), Name)
}
