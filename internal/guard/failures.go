// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/policy"
	"kubediag.org/kubediag/internal/share"
)

// rowMemory is how long a failed repair counts. By then the manager has opened the breaker, if the fault is still there.
const rowMemory = time.Hour

// failure counts the repairs of a fault that have failed since the last one in its namespace that succeeded.
type failure struct {
	count int
	last  time.Time
	selected
}

// selected is the namespace of a fault that is repaired, and the policies that select it. nil: they are not known, so all count.
type selected struct {
	namespace string
	policies  []string
}

// failures are the failed repairs of each subject, as one MountFault has it. Those of a namespace under a policy are a row.
// Namespaces share their number.
type failures struct {
	faults map[fault.Key]*failure
	room   share.Room
	// allowed are the repairs that may be under way, by code and pod.
	allowed *share.Memory[fault.Key, selected]
}

// noteAllowed notes which policies have allowed a repair that is about to begin.
func (f *failures) noteAllowed(code fault.Code, pod share.Owner, policies []string) {
	f.allowed.Set(pod, fault.Key{Code: code, PodUID: pod.Pod}, selected{pod.Namespace, policies})
}

func accountOf(key fault.Key, namespace string) share.Owner {
	return share.Owner{Namespace: namespace, Pod: key.PodUID}
}

// forget forgets failures.
func (f *failures) forget(is func(key fault.Key, failed *failure) bool) {
	for key, failed := range f.faults {
		if is(key, failed) {
			f.room.Free(accountOf(key, failed.namespace))
			delete(f.faults, key)
		}
	}
}

// under takes away policies, and reports whether the failure counts for no other.
func (f *failure) under(ended []string) bool {
	if f.policies != nil {
		f.policies = slices.DeleteFunc(slices.Clone(f.policies), func(name string) bool { return slices.Contains(ended, name) })
	}
	return len(f.policies) == 0
}

// broken says why the row of a namespace under a policy is too long; no Why if it is not. A code is broken for all namespaces if
// the failures come from several of them.
func (f *failures) broken(code fault.Code, p *policy.Policy, namespace string, now time.Time) policy.Reason {
	b := p.Object.Spec.Breaker
	if b == nil || b.FailedRepairs == nil {
		return policy.Reason{}
	}
	rows, all, most := map[string]int{}, 0, int(*b.FailedRepairs) // rows by namespace
	for key, failed := range f.faults {
		counts := failed.policies == nil || slices.Contains(failed.policies, p.Object.Name)
		if key.Code == code && counts && now.Sub(failed.last) <= rowMemory {
			rows[failed.namespace] += failed.count
			all += failed.count
		}
	}
	switch {
	case rows[namespace] >= most && namespace != "":
		return rowReason(rows[namespace], code, "in namespace "+namespace, p)
	case rows[namespace] >= most:
		return rowReason(rows[namespace], code, "of no pod", p)
	case share.Several(rows, most):
		return rowReason(all, code, "in several namespaces", p)
	}
	return policy.Reason{}
}
