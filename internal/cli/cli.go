// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package cli is the kubediag command: it puts the verbs together and does nothing itself. Verbs that work on a node,
// without an API server, are in package node.
package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/node"
	"kubediag.org/kubediag/internal/version"
)

// NewCommand makes the kubediag command.
func NewCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubediag",
		Short:         "Find out why a pod cannot start, run or go away because of a mount, and heal it",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(node.NewDemoCommand(), newVersionCommand())
	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.String())
			return err
		},
	}
}
