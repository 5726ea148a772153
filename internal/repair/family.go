// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// Family repairs one kind of fault. Only its Work changes anything.
type Family interface {
	Name() string
	// Plan inspects again and returns the part, or says why there is nothing to do (Part.NotApplicable). It never believes the
	// parameters or results in the request about its targets.
	Plan(ctx context.Context, r processor.Request) (Part, error)
	// Open prepares to do the actions of a part. It is called again after a crash or a failure, with the same part.
	Open(ctx context.Context, r processor.Request, p Part) (Work, error)
	// Verify proves that a part whose actions are all applied has worked, and returns the results. It does not claim an
	// action whose Outcome is Already. It waits for nobody: Result.Wait says for whom the driver is to wait.
	Verify(ctx context.Context, r processor.Request, p Part) (processor.Result, error)
}

// Planner plans for several families at once. Each of them does and proves its own parts.
type Planner interface {
	Name() string
	Plan(ctx context.Context, r processor.Request) (Plan, error)
}

// Work does the actions of one part. They may share something, such as a child process.
type Work interface {
	// Apply does the action with that index, and judges right before whether it may still be done. It changes nothing that was not in
	// the plan: an action that is already done succeeds. It only judges the eviction of a pod and the removal of a container's record, which the
	// engine then does.
	Apply(ctx context.Context, action int) (fault.Applied, error)
	// Close ends the Work and does not wait.
	Close()
}

// EachAlone is the Work of a family whose actions share nothing.
func EachAlone(p Part, apply func(ctx context.Context, a fault.Action) (fault.Applied, error)) Work {
	return eachAlone{p, apply}
}

type eachAlone struct {
	part  Part
	apply func(ctx context.Context, a fault.Action) (fault.Applied, error)
}

func (w eachAlone) Apply(ctx context.Context, action int) (fault.Applied, error) {
	return w.apply(ctx, w.part.Actions[action])
}

func (eachAlone) Close() {}
