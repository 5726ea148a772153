// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/links"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
)

// boundedRuntime is the container runtime for a verb that cannot wait for it: it is asked for nameTimeout in all, and
// then no more. Its answers are remembered.
type boundedRuntime struct {
	runtime interface {
		device.Runtime
		orphan.Runtime
		links.Runtime
		States(ctx context.Context, wanted func(podUID, container string) bool) ([]cri.State, error)
	}

	mu        sync.Mutex
	askUntil  time.Time
	owners    map[string]ownerAnswer
	sandboxes []cri.Sandbox
	listed    bool
	lastError error         // the latest that it has not answered
	waitedFor time.Duration // the time without an answer
	expected  bool          // there is a kubelet, so there is to be a runtime

	socket atomic.Value // a string: where it listens, as the kubelet sees it; none if it is not known
}

type ownerAnswer struct {
	owner cri.Owner
	err   error
}

func newBoundedRuntime(n *kubelet.Node) *boundedRuntime {
	r := &boundedRuntime{owners: map[string]ownerAnswer{}, expected: n.PID != 0}
	r.runtime = &cri.Client{Socket: func(ctx context.Context) (string, error) {
		socket, err := n.RuntimeSocket(ctx)
		if err == nil {
			_, within, _ := strings.Cut(socket, "root/") // /proc/PID/root, which is where its path begins
			r.socket.Store("/" + within)
		}
		return socket, err
	}}
	return r
}

// Owner is that of cri.Client. The runtime is not asked about a process in no container.
func (r *boundedRuntime) Owner(ctx context.Context, cgroup string) (cri.Owner, error) {
	ids := cri.ContainerIDs(cgroup)
	if len(ids) == 0 {
		return cri.Owner{}, fmt.Errorf("%w: the process is in none", cri.ErrNotFound)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := strings.Join(ids, " ")
	if a, ok := r.owners[key]; ok {
		return a.owner, a.err
	}
	owner, err := askWithin(ctx, r, func(ctx context.Context) (cri.Owner, error) { return r.runtime.Owner(ctx, cgroup) })
	if err == nil || errors.Is(err, cri.ErrNotFound) {
		r.owners[key] = ownerAnswer{owner, err}
	}
	return owner, err
}

// Sandboxes is that of cri.Client.
func (r *boundedRuntime) Sandboxes(ctx context.Context) ([]cri.Sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listed {
		return r.sandboxes, nil
	}
	all, err := askWithin(ctx, r, r.runtime.Sandboxes)
	if err == nil {
		r.sandboxes, r.listed = all, true
	}
	return all, err
}

// PodRecords is that of cri.Client.
func (r *boundedRuntime) PodRecords(ctx context.Context, podUID string) ([]cri.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return askWithin(ctx, r, func(ctx context.Context) ([]cri.Container, error) { return r.runtime.PodRecords(ctx, podUID) })
}

// States is that of cri.Client.
func (r *boundedRuntime) States(ctx context.Context, wanted func(podUID, container string) bool) ([]cri.State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return askWithin(ctx, r, func(ctx context.Context) ([]cri.State, error) { return r.runtime.States(ctx, wanted) })
}

// Running is that of cri.Client. It asks about each container of the node, so it has a time of its own: a busy runtime that does not answer all of
// it in time may still know names.
func (r *boundedRuntime) Running(ctx context.Context, wanted func(podUID string) bool) ([]cri.Owner, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lastError != nil {
		return nil, r.lastError
	}
	began := time.Now()
	all, err := callWithin(ctx, nameTimeout, func(ctx context.Context) ([]cri.Owner, error) { return r.runtime.Running(ctx, wanted) })
	if !r.askUntil.IsZero() {
		r.askUntil = r.askUntil.Add(time.Since(began))
	}
	return all, err
}

// askWithin is the answer of the runtime within the rest of the time.
func askWithin[T any](ctx context.Context, r *boundedRuntime, ask func(context.Context) (T, error)) (T, error) {
	if r.askUntil.IsZero() {
		r.askUntil = time.Now().Add(nameTimeout)
	}
	if !time.Now().Before(r.askUntil) {
		return *new(T), cmp.Or(r.lastError, context.DeadlineExceeded)
	}
	began := time.Now()
	value, err := callWithin(ctx, time.Until(r.askUntil), ask)
	switch {
	case errors.Is(ctx.Err(), context.Canceled): // the caller no longer waits
	case err != nil && !errors.Is(err, cri.ErrNotFound):
		r.lastError = err
		if ctx.Err() != nil || !time.Now().Before(r.askUntil) {
			r.waitedFor += time.Since(began)
		}
	}
	return value, err
}

// errorTexts are why names may be missing.
func (r *boundedRuntime) errorTexts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lastError == nil {
		return nil
	}
	return []string{fmt.Sprintf("%s: %v", namesFromRuntime, r.lastError)}
}

// coverageGaps are the gaps that a silent runtime leaves. Without a kubelet no runtime is expected, and there are no gaps.
func (r *boundedRuntime) coverageGaps() []mountstate.Gap {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lastError == nil || !r.expected {
		return nil
	}
	g := mountstate.Gap{What: "what the container runtime knows of containers and pods", Why: r.lastError.Error()}
	if r.waitedFor > 0 {
		g.Why = fmt.Sprintf("it did not answer for %.1f s", r.waitedFor.Seconds())
	}
	if socket, ok := r.socket.Load().(string); ok {
		g.What = fmt.Sprintf("what the container runtime at unix://%s knows of containers and pods", socket)
		g.Do = "see why with crictl --runtime-endpoint " + fault.Quote("unix://"+socket) + " info"
	}
	return []mountstate.Gap{g}
}
