// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package cli is the command kubediag, for a node: it puts the verbs of package node together and does nothing itself. They need no
// API server. The verbs that ask one are a program of their own, in package cluster.
package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/demo"
	"kubediag.org/kubediag/internal/cli/node"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/version"
)

func init() { cobra.EnableCommandSorting = false } // the help has the verbs in the order in which they are needed

// NewCommand makes the command kubediag.
func NewCommand() *cobra.Command { return newCommand("") }

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
	root.SetFlagErrorFunc(verb.FlagError)
	addGroup(root, "Start here:", node.NewScanCommand(proc), node.NewShowCommand(proc), node.NewRecoverCommand(proc))
	addGroup(root, "One thing:", node.NewProbeCommand(), node.NewHoldersCommand(proc), node.NewReleaseCommand(proc), verb.NewExplainCommand("kubediag"))
	addGroup(root, "For others:", node.NewBundleCommand(proc), node.NewDecodeCommand(), node.NewLintCommand())
	const advanced = "Advanced:"
	addGroup(root, advanced, node.NewDiagnoseCommand(proc), node.NewFeaturesCommand(), demo.NewCommand(), verb.NewVersionCommand())
	root.SetHelpCommandGroupID(advanced)
	root.SetCompletionCommandGroupID(advanced)
	for _, name := range pluginVerbs {
		root.AddCommand(&cobra.Command{
			Use: name, Hidden: true, DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error {
				return fmt.Errorf("it asks the API server: type kubectl kubediag %s", name)
			},
		})
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
var pluginVerbs = []string{"faults", "run", "get", "report", "cancel", "approve", "doctor", "status", "impact", "ui"}

// kernelWarning is the warning about a kernel that is older than all tested kernels; empty on the others.
func kernelWarning(release string) string {
	if !sys.TooOld(release) {
		return ""
	}
	return fmt.Sprintf("Linux %s is older than %s, the oldest that kubediag is tested on; kubediag features shows what works here",
		printable.Quoted(release), sys.OldestKernel)
}
