// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/verb"
)

// interruption is how a verb ends that was ended by a signal before it was through. How that showed says nothing to the
// user.
type interruption struct{ cause error }

// Error says it in a word.
func (*interruption) Error() string { return "interrupted" }

// Unwrap is why the context has ended.
func (i *interruption) Unwrap() error { return i.cause }

// interruptible is verb.Named for a verb whose errors may all come of a signal.
func interruptible(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return verb.Named(func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if errors.Is(err, verb.ErrFaults) {
			return err
		}
		return interrupted(cmd.Context(), err)
	})
}

// interrupted is err, or an interruption if that comes of a signal.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return &interruption{ctx.Err()}
	}
	return err
}
