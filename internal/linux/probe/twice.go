// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"time"
)

// Twice asks by a Prober that has TwoLooks, and asks a second time if a file system was silent for the first time: for callers who want a
// verdict now. Other callers of the Prober go on meanwhile.
type Twice struct{ Prober *Prober }

// Ask is that of the Prober. No answer is Silent, unless ctx ends or another mount takes the place.
func (t Twice) Ask(ctx context.Context, targets []Target) ([]Answer, error) {
	answers, err := t.Prober.Ask(ctx, targets)
	var silent []Target
	var at []int
	for i, a := range answers {
		if a.State == Silent {
			silent, at = append(silent, targets[i]), append(at, i)
		}
	}
	if len(silent) == 0 || err != nil {
		return answers, err
	}
	wait := time.NewTimer(secondLook)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return answers, fmt.Errorf("wait for a second look: %w", context.Cause(ctx))
	}
	second, err := t.Prober.Ask(ctx, silent)
	for n, a := range second {
		a.Target = at[n]
		answers[at[n]] = a
	}
	return answers, err
}
