// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processortest

import (
	"testing"

	"kubediag.org/kubediag/internal/processor"
)

// Targets lists what a plan acts on, each with the kind of the action.
func Targets(p processor.Plan) (all []string) {
	for _, a := range p.Actions {
		all = append(all, string(a.Kind)+" "+a.Target)
	}
	return all
}

// ApplyAll applies each action of a plan, and returns the messages. The test fails at the first error.
func ApplyAll(t testing.TB, r processor.Recoverer, request processor.Request, p processor.Plan) (messages []string) {
	t.Helper()
	for _, a := range p.Actions {
		done, err := r.Apply(t.Context(), request, a)
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, done.Message)
	}
	return messages
}
