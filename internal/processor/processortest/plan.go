// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processortest

import (
	"context"
	"testing"

	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Targets lists the targets of a plan, each with the kind of the action.
func Targets(p repair.Part) (all []string) {
	for _, a := range p.Actions {
		all = append(all, string(a.Kind)+" "+a.Target)
	}
	return all
}

// Prove has a part proven, and waits as a driver does.
func Prove(ctx context.Context, f repair.Family, r processor.Request, p repair.Part) (processor.Result, error) {
	result, err := f.Verify(ctx, r, p)
	if err != nil || result.Wait == nil {
		return result, err
	}
	return result.Wait.Await(ctx)
}

// ApplyAll applies each action of a part, and returns the messages. The test fails at the first error.
func ApplyAll(t testing.TB, r repair.Family, request processor.Request, p repair.Part) (messages []string) {
	t.Helper()
	apply := r.Open()
	for _, a := range p.Actions {
		done, err := apply(t.Context(), request, a)
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, done.Message)
	}
	return messages
}
