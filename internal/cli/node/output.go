// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// schemaVersion is in all JSON that the verbs write. It changes when a field changes its meaning or goes; new fields
// may come without.
const schemaVersion = 1

// outputFormat is how a verb writes: for people or for programs.
type outputFormat string

const (
	textFormat outputFormat = "text"
	jsonFormat outputFormat = "json"
)

// addFormat gives the verb its flag -o.
func addFormat(cmd *cobra.Command) *outputFormat {
	f := textFormat
	verb.AddFormat(cmd, &f, "how to write: text or json", `must be "text" or "json"`, string(textFormat), string(jsonFormat))
	return &f
}

// writeJSON writes v for programs.
func writeJSON(w io.Writer, v any) error {
	text, err := jsonText(v, "  ")
	if err != nil {
		return err
	}
	return verb.Write(w, text)
}

// jsonText is v and the end of a line, with no character that a terminal would act on.
func jsonText(v any, indent string) (string, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return "", fmt.Errorf("write json: %w", err)
	}
	// The encoder escapes the first 32 characters alone.
	return printable.Text(b.String()), nil
}

// writeFormat writes a report for programs or, as text says it, for people.
func writeFormat(w io.Writer, f outputFormat, all any, text func() string) error {
	if f == jsonFormat {
		return writeJSON(w, all)
	}
	return verb.Write(w, text())
}
