// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fusedaemon

import (
	"context"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/linux/oomlog"
)

// reading is what was read for some questions, failures included: who does not answer is asked once.
type reading struct {
	*Analyzer
	log        memory[[]oomlog.Kill]
	listeners  memory[cri.Owner]
	owners     memory[cri.Owner]
	containers memory[[]cri.Container]
}

func newReading(t *Analyzer) *reading {
	return &reading{
		Analyzer: t, log: memory[[]oomlog.Kill]{}, listeners: memory[cri.Owner]{}, owners: memory[cri.Owner]{},
		containers: memory[[]cri.Container]{},
	}
}

// memory has answers by what was asked.
type memory[T any] map[string]answer[T]

type answer[T any] struct {
	value T
	err   error
}

func (m memory[T]) get(key string, ask func() (T, error)) (T, error) {
	known, ok := m[key]
	if !ok {
		known.value, known.err = ask()
		m[key] = known
	}
	return known.value, known.err
}

// readLog returns the kills of the kernel's log.
func (r *reading) readLog(ctx context.Context) ([]oomlog.Kill, error) {
	read := r.Kills
	if read == nil {
		read = oomlog.Kills
	}
	return r.log.get("", func() ([]oomlog.Kill, error) { return read(ctx) })
}

// listener returns the container that listens on the socket in a driver's directory.
func (r *reading) listener(ctx context.Context, dir string) (cri.Owner, error) {
	return r.listeners.get(dir, func() (cri.Owner, error) { return r.listening(ctx, dir) })
}

// owner returns the container that a process in a control group is in, or was.
func (r *reading) owner(ctx context.Context, cgroup string) (cri.Owner, error) {
	return r.owners.get(cgroup, func() (cri.Owner, error) { return r.Runtime.Owner(ctx, cgroup) })
}

// recordsOf lists the runtime's records of a pod.
func (r *reading) recordsOf(ctx context.Context, podUID string) ([]cri.Container, error) {
	return r.containers.get(podUID, func() ([]cri.Container, error) { return r.Runtime.PodRecords(ctx, podUID) })
}
