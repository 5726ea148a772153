// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package verb

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"
)

// choice is the value of a flag that is one of several.
type choice[T ~string] struct {
	to   *T
	of   []string
	must string // why any other is refused
}

// String is the value.
func (c *choice[T]) String() string {
	if c.to == nil {
		return "" // pflag asks a zero value
	}
	return string(*c.to)
}

// Type is what the flag's help calls the value.
func (*choice[T]) Type() string { return "format" }

// Set takes the value of the flag.
func (c *choice[T]) Set(value string) error {
	if !slices.Contains(c.of, value) {
		return errors.New(c.must)
	}
	*c.to = T(value)
	return nil
}

// AddFormat gives a verb its flag -o, which takes one of several formats and refuses any other because of must.
func AddFormat[T ~string](cmd *cobra.Command, to *T, usage, must string, formats ...string) {
	cmd.Flags().VarP(&choice[T]{to, formats, must}, "output", "o", usage)
	CompleteFlag(cmd, "output", func() []string { return formats })
}
