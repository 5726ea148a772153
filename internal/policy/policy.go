// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy decides about a fault by RecoveryPolicies. It is pure: no clock, no cache, no request. The agent
// calls it before every repair, and the manager checks policies with it.
package policy

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/trigger/cron"
)

// Policy is a RecoveryPolicy that is ready for decisions. It does not change.
type Policy struct {
	Object *v1.RecoveryPolicy
	// Problems make the policy invalid. An invalid policy allows no repair of the faults that it selects.
	Problems field.ErrorList

	known                   fault.Catalogue
	namespaces, pods, nodes labels.Selector // nil: all
	windows                 []window
}

// window is a time at which repairs may be made.
type window struct {
	opens cron.Schedule
	lasts time.Duration
}

// Compile prepares a policy. The caller does not change it any more. An invalid selector selects no object.
func Compile(policy *v1.RecoveryPolicy, known fault.Catalogue) *Policy {
	c := &Policy{Object: policy, known: known, Problems: policy.Spec.Validate()}
	at := field.NewPath("spec")
	for i, code := range policy.Spec.FaultCodes {
		if _, ok := known.Lookup(fault.Code(code)); !ok {
			c.Problems = append(c.Problems, field.Invalid(at.Child("faultCodes").Index(i), code, "is not a fault of the catalogue"))
		}
	}
	for i, w := range policy.Spec.Windows {
		opens, err := cron.Parse(&v1.CronTemplate{Schedule: w.Schedule, TimeZone: w.TimeZone})
		if err != nil {
			c.Problems = append(c.Problems, field.Invalid(at.Child("windows").Index(i).Child("schedule"), w.Schedule, err.Error()))
			continue
		}
		c.windows = append(c.windows, window{opens, time.Duration(w.DurationSeconds) * time.Second})
	}
	c.namespaces, c.pods, c.nodes = selector(policy.Spec.NamespaceSelector), selector(policy.Spec.PodSelector), selector(policy.Spec.NodeSelector)
	return c
}

func selector(s *metav1.LabelSelector) labels.Selector {
	if s == nil {
		return nil
	}
	compiled, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return compiled
}

// SelectsNode reports whether the policy selects nodes with these labels.
func (p *Policy) SelectsNode(node map[string]string) bool {
	return p.nodes == nil || p.nodes.Matches(labels.Set(node))
}

// open reports whether repairs may be made at this time.
func (p *Policy) open(now time.Time) bool {
	return len(p.Object.Spec.Windows) == 0 || slices.ContainsFunc(p.windows, func(w window) bool {
		next := w.opens.Next(now.Add(-w.lasts))
		return !next.IsZero() && !next.After(now)
	})
}

// opens returns when the next window opens. Zero: no window opens.
func (p *Policy) opens(now time.Time) (first time.Time) {
	for _, w := range p.windows {
		if next := w.opens.Next(now); !next.IsZero() && (first.IsZero() || next.Before(first)) {
			first = next
		}
	}
	return first
}

// NeverOpens reports whether the policy has windows, and no window opens in the next five years.
func (p *Policy) NeverOpens(now time.Time) bool {
	return len(p.windows) > 0 && !p.open(now) && p.opens(now).IsZero()
}

// Overrules reports whether the policy selects all that another one selects, as far as that shows in the selectors, and
// is more careful.
func (p *Policy) Overrules(other *Policy) bool {
	if rank(p.Object.Spec.Mode) >= rank(other.Object.Spec.Mode) {
		return false
	}
	if slices.ContainsFunc(other.codes(), func(code string) bool { return !slices.Contains(p.codes(), code) }) {
		return false
	}
	return covers(p.Object.Spec.NamespaceSelector, other.Object.Spec.NamespaceSelector) && covers(p.Object.Spec.PodSelector, other.Object.Spec.PodSelector) &&
		covers(p.Object.Spec.NodeSelector, other.Object.Spec.NodeSelector)
}

// Repairs reports whether there is a repair without loss of a fault that the policy selects.
func (p *Policy) Repairs() bool {
	return slices.ContainsFunc(p.codes(), func(code string) bool {
		entry, ok := p.known.Lookup(fault.Code(code))
		return ok && len(entry.Ways) > 0
	})
}

// codes are the codes that the policy selects.
func (p *Policy) codes() []string {
	if len(p.Object.Spec.FaultCodes) > 0 {
		return p.Object.Spec.FaultCodes
	}
	var all []string
	for _, e := range p.known {
		all = append(all, string(e.Code))
	}
	return all
}

// covers reports whether one selector selects all that another one selects, which is certain if it selects all or is
// the same.
func covers(wide, narrow *metav1.LabelSelector) bool {
	return wide == nil || narrow != nil && metav1.FormatLabelSelector(wide) == metav1.FormatLabelSelector(narrow)
}

// rank orders modes, the most careful first. An unknown mode is as careful as the most careful mode that still reports.
func rank(m v1.RecoveryMode) int {
	if i := slices.Index(v1.RecoveryModes(), m); i >= 0 {
		return i
	}
	return rank(v1.RecoveryObserve)
}
