// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package verb

import (
	"strings"

	"github.com/spf13/cobra"
)

// Choices are values that a shell can complete; a tab separates one from its description.
type Choices func() []string

// CompleteFlag has a shell complete the value of a flag, after the last comma. It panics if the command has no such flag.
func CompleteFlag(cmd *cobra.Command, flag string, list Choices) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		before := begun[:strings.LastIndexByte(begun, ',')+1]
		var values []string
		for _, value := range list() {
			values = append(values, before+value)
		}
		return values, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag is not there
	}
}

// CompleteArg has a shell complete the one argument of a verb.
func CompleteArg(list Choices) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list(), cobra.ShellCompDirectiveNoFileComp
	}
}
