// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// Family repairs one kind of fault. Only its Apply changes anything.
type Family interface {
	Name() string
	// Plan inspects again and returns the part, or says why there is nothing to do (Part.NotApplicable). It never believes the
	// parameters or results in the request about its targets.
	Plan(ctx context.Context, r processor.Request) (Part, error)
	// Open begins a series of actions of one part, which may share something, such as an inspection. It is called again after a crash
	// or a failure, for the same part.
	Open() Apply
	// Verify proves that a part whose actions are all applied has worked, and returns the results. It does not claim an
	// action whose Outcome is Already. It waits for nobody: Result.Wait says for whom the driver is to wait.
	Verify(ctx context.Context, r processor.Request, p Part) (processor.Result, error)
}

// Planner plans for several families at once. Each of them does and proves its own parts.
type Planner interface {
	Name() string
	Plan(ctx context.Context, r processor.Request) (Plan, error)
}

// Apply does one action of a part, and judges right before whether it may still be done. It changes nothing that was not in the plan: an
// action that is already done succeeds. It only judges the eviction of a pod and the removal of a container's record, which the engine
// then does.
type Apply func(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error)
