// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package cli is the kubediag command: it puts the verbs together and does nothing itself. Verbs that work on a node,
// without an API server, are in package node. Those that ask an API server are in package cluster.
package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/bundle"
	"kubediag.org/kubediag/internal/cli/cluster"
	"kubediag.org/kubediag/internal/cli/demo"
	"kubediag.org/kubediag/internal/cli/node"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/version"
)

// Names by which kubectl calls this program.
const (
	pluginName     = "kubectl-kubediag"
	completionName = "kubectl_complete-kubediag"
)

func init() { cobra.EnableCommandSorting = false } // the help has the verbs in the order in which they are needed

// NewCommand makes the command that a program of this name is: kubediag, or the plugin of kubectl.
func NewCommand(program string, args []string) *cobra.Command {
	switch filepath.Base(program) {
	case pluginName:
		return newPlugin()
	case completionName:
		root := newPlugin()
		root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args...))
		return root
	}
	return newCommand("")
}

// newPlugin makes the plugin of kubectl.
func newPlugin() *cobra.Command {
	root := cluster.NewCommand()
	root.Version = version.String()
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(node.NewExplainCommand(), newVersionCommand())
	return root
}

func flagError(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w, see %s --help", err, cmd.CommandPath())
}

// newCommand makes one whose verbs look for kubelets in the process file system at proc; empty: /proc.
func newCommand(proc string) *cobra.Command {
	root := &cobra.Command{
		Use:           "kubediag",
		Short:         "Find out why a pod cannot start, run or go away because of a mount, and heal it",
		Long:          "Start with: sudo kubediag scan\n\nFind out why a pod cannot start, run or go away because of a mount, and heal it.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.String(),
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			if line := kernelWarning(sys.Release()); line != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "kubediag:", line)
			}
		},
	}
	root.SetFlagErrorFunc(flagError)
	addGroup(root, "Start here:", node.NewScanCommand(proc), node.NewShowCommand(proc), node.NewRecoverCommand(proc))
	addGroup(root, "One thing:", node.NewProbeCommand(), node.NewHoldersCommand(proc), node.NewReleaseCommand(proc), node.NewExplainCommand())
	addGroup(root, "For others:", node.NewBundleCommand(proc), node.NewDecodeCommand(), node.NewLintCommand())
	const advanced = "Advanced:"
	addGroup(root, advanced, node.NewDiagnoseCommand(proc), node.NewFeaturesCommand(), demo.NewCommand(), newVersionCommand())
	root.SetHelpCommandGroupID(advanced)
	root.SetCompletionCommandGroupID(advanced)
	for _, name := range pluginVerbs {
		root.AddCommand(newPluginHint(name))
	}
	return root
}

// addGroup adds commands that the help shows together.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, cmd := range commands {
		cmd.GroupID = title
		root.AddCommand(cmd)
	}
}

// pluginVerbs are those that only the plugin of kubectl has.
var pluginVerbs = []string{"faults", "run", "get", "report", "cancel", "approve", "doctor"}

// newPluginHint makes a command that says who has the verb.
func newPluginHint(name string) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("it asks the API server: type kubectl kubediag %s", name)
		},
	}
}

// kernelWarning is what is said on a kernel that is older than any that is tested; empty on all others.
func kernelWarning(release string) string {
	if !sys.TooOld(release) {
		return ""
	}
	return fmt.Sprintf("Linux %s is older than %s, the oldest that kubediag is tested on; kubediag features shows what works here",
		printable.Quoted(release), sys.OldestKernel)
}

// Exit statuses of the command.
const (
	// statusDone: what was asked for was done; where faults were looked for, there are none.
	statusDone = iota
	// statusFaults: the scan found faults.
	statusFaults
	// statusFailed: what was asked for could not be done, or not wholly. There may be faults or not.
	statusFailed
	// statusRefused: it could have been done, and must not be.
	statusRefused
)

// Run runs the command, writes its error behind the name of the verb if there is one, and gives the exit status.
func Run(ctx context.Context, cmd *cobra.Command) int {
	refuseUnknown(cmd)
	ran, err := cmd.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return statusDone
	case errors.Is(err, verb.ErrFaults):
		return statusFaults
	}
	status := statusFailed
	if errors.Is(err, verb.ErrRefused) || errors.Is(err, bundle.ErrExists) {
		status = statusRefused
	}
	if ran.HasParent() {
		err = fmt.Errorf("%s: %w", ran.Name(), err)
	}
	lines := strings.Split(strings.TrimRight(err.Error(), "\n"), "\n") // several errors at once
	for i, line := range lines {
		text := strings.TrimLeft(line, "\t") // cobra indents what it suggests
		lines[i] = strings.Repeat("  ", len(line)-len(text)) + printable.Quoted(text)
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "kubediag:", strings.Join(lines, "\n"))
	return status
}

// refuseUnknown has the commands help and completion, which cobra makes, refuse what they do not know: they would print their help
// and end well. Cobra makes them late, and completion for the output that there is by then.
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

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  verb.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.String())
			return err
		},
	}
}
