// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/ui"
)

// schemaVersion is in all JSON that the verbs write. It changes when a field changes its meaning or goes; new fields
// may come without.
const schemaVersion = 1

// addFormat gives the verb its flag -o.
func addFormat(cmd *cobra.Command) *verb.Format {
	f := verb.Text
	verb.AddFormat(cmd, &f, "how to write: text or json", `must be "text" or "json"`, verb.Text, verb.JSON)
	return &f
}

// addPage gives the verb its flag -o with pages, and the flag for their language.
func (o *scanOptions) addPage(cmd *cobra.Command) {
	o.out = new(verb.Format)
	*o.out = verb.Text
	verb.AddFormat(cmd, o.out, "how to write: text, json or html (a page in one file)", `must be "text", "json" or "html"`, verb.Text, verb.JSON, verb.HTML)
	ui.AddLanguage(cmd, &o.language)
}
