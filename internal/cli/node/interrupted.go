// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import "context"

// interruption is how a verb ends that was ended by a signal before it was through. How that showed says nothing to the
// user.
type interruption struct{ cause error }

// Error says it in a word.
func (*interruption) Error() string { return "interrupted" }

// Unwrap is why the context has ended.
func (i *interruption) Unwrap() error { return i.cause }

// interrupted is err, or an interruption if that comes of a signal.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return &interruption{ctx.Err()}
	}
	return err
}
