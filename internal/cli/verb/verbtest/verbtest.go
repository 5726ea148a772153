// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package verbtest runs a verb alone, for the tests of the packages that make verbs.
package verbtest

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"
)

// Run runs a verb with arguments, and returns its output and its error.
func Run(t testing.TB, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}
