// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package verb

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"
)

// Format is how a verb writes. The empty one is for people.
type Format string

// Formats that more than one verb knows.
const (
	Text Format = "text"
	JSON Format = "json"
	YAML Format = "yaml"
	HTML Format = "html"
)

// choice is the value of a flag that is one of several.
type choice struct {
	to   *Format
	of   []string
	must string // why any other is refused
}

// String is the value.
func (c *choice) String() string {
	if c.to == nil {
		return "" // pflag asks a zero value
	}
	return string(*c.to)
}

// Type is the name of the value in the flag's help.
func (*choice) Type() string { return "format" }

// Set takes the value of the flag.
func (c *choice) Set(value string) error {
	if !slices.Contains(c.of, value) {
		return errors.New(c.must)
	}
	*c.to = Format(value)
	return nil
}

// AddFormat gives a verb its flag -o, which takes one of several formats and refuses any other because of must.
func AddFormat(cmd *cobra.Command, to *Format, usage, must string, formats ...Format) {
	names := Distinct(formats, func(f Format) string { return string(f) })
	cmd.Flags().VarP(&choice{to, names, must}, "output", "o", usage)
	CompleteFlag(cmd, "output", func() []string { return names })
}
