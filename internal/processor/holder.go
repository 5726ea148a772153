// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"context"

	"kubediag.org/kubediag/internal/fault"
)

// Holder is a Recoverer whose actions a rule can forbid. Held says why Apply would refuse an action now, and changes nothing. It is
// empty if no rule forbids the action.
type Holder interface {
	Held(ctx context.Context, r Request, a fault.Action) (why string, err error)
}
