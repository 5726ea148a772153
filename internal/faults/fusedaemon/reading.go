// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fusedaemon

import (
	"context"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/linux/oomlog"
)

// reading is the material for some questions, failures included: who does not answer is asked once.
type reading struct {
	analyzer   *Analyzer
	killLog    answerMemory[[]oomlog.Kill]
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

// readLog returns the kills of the kernel's log.
func (r *reading) readLog(ctx context.Context) ([]oomlog.Kill, error) {
	read := r.analyzer.Kills
	if read == nil {
		read = oomlog.Kills
	}
	return r.killLog.getOrAsk("", func() ([]oomlog.Kill, error) { return read(ctx) })
}

// containerOwner returns the container that a process in a control group is in, or was.
func (r *reading) containerOwner(ctx context.Context, cgroup string) (cri.Owner, error) {
	return r.owners.getOrAsk(cgroup, func() (cri.Owner, error) { return r.analyzer.Runtime.Owner(ctx, cgroup) })
}
