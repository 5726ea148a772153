// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/policy"
)

const (
	// maxWait is how long a repair waits for an answer of the API server. If none comes, no repair waits for a while.
	maxWait, noWait = 300 * time.Millisecond, 5 * time.Second
	// maxFaults is how many faults are remembered.
	maxFaults = 10000
)

// Acquire reports whether a fault of a pod may be repaired now, and takes the repair from the budgets. It may wait for
// a moment if the API server has to be asked. It implements sentinel.Guard.
func (g *Guard) Acquire(ctx context.Context, f fault.Finding, pod *corev1.Pod) bool {
	limit := time.NewTimer(maxWait)
	defer limit.Stop()
	for {
		allowed, answered := g.acquire(f, pod, time.Now())
		if answered == nil {
			return allowed
		}
		select {
		case <-ctx.Done():
			return false
		case <-answered:
		case <-limit.C:
			g.mu.Lock()
			g.noWaitUntil = time.Now().Add(noWait)
			g.mu.Unlock()
			return false
		}
	}
}

// acquire is Acquire without a wait. If answered is not nil, it is to be asked again when that is closed.
func (g *Guard) acquire(finding fault.Finding, pod *corev1.Pod, now time.Time) (allowed bool, answered <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	decision := g.decide(finding.Code, pod, now)
	refusal, pending := decision.Why, decision.NeedsNamespace || decision.NeedsNode
	if decision.Mode == v1.RecoveryAutomatic {
		// The repair of the mount of a container is part of that of its volume a moment ago, once for each mount. Else a budget that
		// allows one repair of a workload would leave its containers with the dead mount after the repair of their volume.
		at := finding.Key().Location()
		whole, ok := g.repaired.places[wholeVolume(finding.Key())]
		isPart := ok && finding.Details.Place == fault.PlaceContainer && now.Sub(whole.last) < partTime && !g.repaired.places[at].last.After(whole.last)
		if refusal = g.repaired.waiting(at, decision.Policies, now); refusal == "" && !isPart {
			var reason policy.Reason
			reason, pending = g.take(pod, decision.Policies, now)
			refusal = reason.Why
		}
	}
	switch {
	case refusal == "" && decision.Mode == v1.RecoveryAutomatic:
		g.refusals.Delete(finding.Key().Subject())
		if len(decision.Policies) == 0 {
			decision.Why += fmt.Sprintf(", and the agent runs with --sentinel-mode=%s", g.Otherwise)
		}
		g.failures.noteAllowed(finding.Code, ownerOf(pod), decision.Names())
		g.allowed.Set(ownerOf(pod), finding.Key(), v1.Decision{Mode: string(decision.Mode), Policies: decision.Names(), Reason: decision.Why})
		return true, nil
	case pending && !now.Before(g.noWaitUntil):
		return false, g.waiting.answered
	}
	g.refusals.Set(ownerOf(pod), finding.Key().Subject(), refusal)
	return false, nil
}

// Allowed returns, once, the decision that allowed the last repair of a fault.
func (g *Guard) Allowed(f fault.Finding) v1.Decision {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, _ := g.allowed.Get(f.Key())
	g.allowed.Delete(f.Key())
	return d
}

// Ended records how a repair of a fault in a pod ended that Acquire or AcquireRequested has allowed. It implements sentinel.Guard.
func (g *Guard) Ended(key fault.Key, pod fault.Pod, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	of, known := g.failures.allowed.Get(fault.Key{Code: key.Code, PodUID: pod.UID})
	if !known {
		of = selected{namespace: pod.Namespace}
	}
	g.repaired.set(key.Location(), of.namespace, now)
	if err == nil {
		if key.Container == "" {
			g.repaired.set(wholeVolume(key), of.namespace, now)
		}
		// This ends the rows of the namespace under the policies. Those of other namespaces and policies go on.
		g.failures.forget(func(other fault.Key, failed *failure) bool {
			return other.Code == key.Code && failed.namespace == of.namespace && (of.policies == nil || failed.under(of.policies))
		})
		g.refusals.Delete(key.Subject())
		return
	}
	rows, subject := &g.failures, key.Subject()
	failed := rows.faults[subject]
	if failed == nil {
		if !rows.room.May(accountOf(subject, of.namespace)) {
			rows.forget(func(_ fault.Key, old *failure) bool { return now.Sub(old.last) > rowMemory })
		}
		if !rows.room.Take(accountOf(subject, of.namespace)) {
			return
		}
		failed = &failure{selected: of}
		rows.faults[subject] = failed
	}
	failed.count++
	failed.last, failed.policies = now, of.policies
}

// Recovery is the part of a MountFault about the repair of its faults, which all have the same subject. pod is nil for a
// fault of no pod.
func (g *Guard) Recovery(faults []fault.Finding, pod *corev1.Pod) *v1.FaultRecovery {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	d := g.decide(faults[0].Code, pod, now)
	r := &v1.FaultRecovery{Mode: d.Mode, Policies: d.Names(), Message: d.Why, PausedBy: d.Paused}
	r.Policies = r.Policies[:min(len(r.Policies), v1.MaxFaultPolicies)]
	after, _, _ := policy.EvictAfter(d.Policies)
	stays := func(f fault.Finding) bool { return !fault.Known().EvictionHelps(f) }
	if d.Mode == v1.RecoveryOff || d.Mode == v1.RecoveryObserve || slices.ContainsFunc(faults, stays) {
		after = 0
	}
	if after > 0 && pod != nil {
		r.EvictAfterSeconds, r.EvictionRefusal = int32(after/time.Second), g.EvictionRefusal(pod)
	}
	subject := faults[0].Key().Subject()
	if why, _ := g.refusals.Get(subject); why != "" && d.Mode == v1.RecoveryAutomatic {
		r.Message = why
	}
	if failed := g.failures.faults[subject]; failed != nil && now.Sub(failed.last) <= rowMemory {
		r.FailedRepairs, r.LastFailureTime = int32(min(failed.count, 1000)), new(metav1.NewTime(failed.last.Truncate(time.Second)))
	}
	return r
}
