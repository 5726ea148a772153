// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package verb

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/version"
)

// NewVersionCommand makes the verb version.
func NewVersionCommand() *cobra.Command {
	format := Text
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and how the program was built",
		Args:  NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := version.Read()
			if format == JSON {
				text, err := json.MarshalIndent(info, "", "  ")
				if err != nil {
					return fmt.Errorf("write version: %w", err)
				}
				return Write(cmd.OutOrStdout(), string(text)+"\n")
			}
			origin := []string{info.Go, info.Platform}
			if info.Commit != "" {
				origin = append([]string{"commit " + info.Commit, info.Date}, origin...)
			}
			return Write(cmd.OutOrStdout(), info.Version+"\n"+strings.Join(origin, ", ")+"\n")
		},
	}
	AddFormat(cmd, &format, "how to write: text or json", `must be "text" or "json"`, Text, JSON)
	return cmd
}
