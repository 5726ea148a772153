// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// activeRuns knows which Diagnoses are being run and which have been, by UID, as long as they exist. They keep
// one from running twice: the cache may show for a while a Diagnosis as Running that this process has already ended.
type activeRuns struct {
	mu      sync.Mutex
	running map[types.UID]*activeRun
	ended   map[types.UID]bool
}

type activeRun struct {
	cancel    context.CancelCauseFunc
	isDropped bool
}

func newRuns() *activeRuns {
	return &activeRuns{running: map[types.UID]*activeRun{}, ended: map[types.UID]bool{}}
}

// startRun marks a Diagnosis as running. It says no if it runs already or has ended. The context is cancelled with the
// cause that drop is given, or when its parent is.
func (r *activeRuns) startRun(parent context.Context, uid types.UID) (context.Context, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[uid] != nil || r.ended[uid] {
		return nil, false
	}
	ctx, cancel := context.WithCancelCause(parent)
	r.running[uid] = &activeRun{cancel: cancel}
	return ctx, true
}

// endRun marks a Diagnosis as no longer running. If it is over for good, it never begins again.
func (r *activeRuns) endRun(uid types.UID, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	it := r.running[uid]
	it.cancel(nil)
	delete(r.running, uid)
	if over && !it.isDropped {
		r.ended[uid] = true
	}
}

// dropDeleted forgets a Diagnosis that no longer exists, and stops it with the cause if it runs.
func (r *activeRuns) dropDeleted(uid types.UID, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if it := r.running[uid]; it != nil {
		it.isDropped = true
		it.cancel(cause)
	}
	delete(r.ended, uid)
}

// countRunning is how many are running.
func (r *activeRuns) countRunning() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running)
}
