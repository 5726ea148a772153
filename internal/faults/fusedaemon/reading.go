// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fusedaemon

import (
	"context"

	"kubediag.org/kubediag/internal/cri"
)

// reading is the material for some questions, failures included: who does not answer is asked once.
type reading struct {
	analyzer   *Analyzer
	listeners  answerMemory[cri.Owner]
	owners     answerMemory[cri.Owner]
	containers answerMemory[[]cri.Container]
}

// answerMemory has answers by question.
type answerMemory[T any] map[string]memorizedAnswer[T]

type memorizedAnswer[T any] struct {
	value T
	err   error
}

func (m answerMemory[T]) getOrAsk(key string, ask func() (T, error)) (T, error) {
	known, ok := m[key]
	if !ok {
		known.value, known.err = ask()
		m[key] = known
	}
	return known.value, known.err
}

// containerOwner returns the container that a process in a control group is in, or was.
func (r *reading) containerOwner(ctx context.Context, cgroup string) (cri.Owner, error) {
	return r.owners.getOrAsk(cgroup, func() (cri.Owner, error) { return r.analyzer.Runtime.Owner(ctx, cgroup) })
}
