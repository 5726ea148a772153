// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// RecoveryModes lists all modes, the most careful first.
func RecoveryModes() []RecoveryMode {
	return []RecoveryMode{RecoveryOff, RecoveryObserve, RecoveryPlan, RecoveryApprove, RecoveryAutomatic}
}

// Validate checks a RecoveryPolicySpec by itself. It leaves out the schedules of its windows and the codes:
// their parser and their catalogue are no part of apimachinery. The errors name the fields, from spec on, and the values.
func (s *RecoveryPolicySpec) Validate() field.ErrorList {
	at := field.NewPath("spec")
	var errs field.ErrorList
	if modes := RecoveryModes(); !slices.Contains(modes, s.Mode) {
		errs = append(errs, field.NotSupported(at.Child("mode"), s.Mode, modes))
	}
	errs = append(errs, validateSelector(at.Child("namespaceSelector"), s.NamespaceSelector)...)
	errs = append(errs, validateSelector(at.Child("podSelector"), s.PodSelector)...)
	errs = append(errs, validateSelector(at.Child("nodeSelector"), s.NodeSelector)...)
	if len(s.FaultCodes) > MaxFaultCodes {
		errs = append(errs, field.TooMany(at.Child("faultCodes"), len(s.FaultCodes), MaxFaultCodes))
	}
	if len(s.Windows) > MaxRecoveryWindows {
		errs = append(errs, field.TooMany(at.Child("windows"), len(s.Windows), MaxRecoveryWindows))
	}
	for i, w := range s.Windows {
		at := at.Child("windows").Index(i)
		errs = append(errs, validateRange(at.Child("durationSeconds"), w.DurationSeconds, MinWindowSeconds, MaxWindowSeconds)...)
	}
	errs = append(errs, s.Budgets.validate(at.Child("budgets"))...)
	errs = append(errs, s.Breaker.validate(at.Child("breaker"))...)
	errs = append(errs, s.Escalation.validate(at.Child("escalation"))...)
	return append(errs, validateRanges(at, []optionalRange{
		{"cooldownSeconds", s.CooldownSeconds, 0, MaxCooldownSeconds},
		{"maximumStalenessSeconds", s.MaximumStalenessSeconds, MinStalenessSeconds, MaxStalenessSeconds},
	})...)
}

func (b *RecoveryBudgets) validate(at *field.Path) field.ErrorList {
	if b == nil {
		return nil
	}
	var errs field.ErrorList
	for _, of := range []struct {
		name string
		*RepairBudget
	}{{"node", b.Node}, {"namespace", b.Namespace}, {"cluster", b.Cluster}, {"workload", b.Workload}} {
		if of.RepairBudget != nil {
			errs = append(errs, validateRange(at.Child(of.name, "atOnce"), of.AtOnce, 1, MaxAtOnce)...)
			errs = append(errs, validateRange(at.Child(of.name, "perHour"), of.PerHour, 1, MaxPerHour)...)
		}
	}
	if b.Namespace != nil && b.Node == nil {
		errs = append(errs, field.Required(at.Child("node"), "namespace is a share of it"))
	}
	return errs
}

func (b *RecoveryBreaker) validate(at *field.Path) field.ErrorList {
	if b == nil {
		return nil
	}
	errs := validateRanges(at, []optionalRange{
		{"failedRepairs", b.FailedRepairs, 1, MaxFailedRepairs},
		{"maximumNodesPercent", b.MaximumNodesPercent, 1, 99},
		{"minimumFaultyNodes", b.MinimumFaultyNodes, 1, 5000},
		{"resetAfterSeconds", b.ResetAfterSeconds, 60, MaxResetAfterSeconds},
	})
	if b.FailedRepairs == nil && b.MaximumNodesPercent == nil {
		errs = append(errs, field.Required(at, "failedRepairs or maximumNodesPercent must be set"))
	}
	if b.NodePoolLabel != "" {
		for _, wrong := range validation.IsQualifiedName(b.NodePoolLabel) {
			errs = append(errs, field.Invalid(at.Child("nodePoolLabel"), b.NodePoolLabel, wrong))
		}
	}
	return errs
}

func (e *RecoveryEscalation) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if e != nil && e.Evict != nil {
		errs = append(errs, validateRange(at.Child("evict", "afterSeconds"), e.Evict.AfterSeconds, MinEscalateSeconds, MaxEscalateSeconds)...)
	}
	if e != nil && e.Cordon != nil {
		at := at.Child("cordon")
		errs = append(errs, validateRanges(at, []optionalRange{
			{"afterSeconds", &e.Cordon.AfterSeconds, MinEscalateSeconds, MaxEscalateSeconds},
			{"minimumPods", e.Cordon.MinimumPods, 1, MaxMinimumPods},
			{"maximumNodes", e.Cordon.MaximumNodes, 1, MaxMaximumNodes},
		})...)
	}
	return errs
}

// optionalRange is a field that may be unset, and its bounds.
type optionalRange struct {
	name        string
	value       *int32
	least, most int32
}

func validateRanges(at *field.Path, all []optionalRange) field.ErrorList {
	var errs field.ErrorList
	for _, n := range all {
		if n.value != nil {
			errs = append(errs, validateRange(at.Child(n.name), *n.value, n.least, n.most)...)
		}
	}
	return errs
}

// Cooldown is the time after a repair in which the same mount is not repaired again.
func (s *RecoveryPolicySpec) Cooldown() time.Duration {
	return seconds(s.CooldownSeconds, 0)
}

// MaximumStaleness is how old the agent's knowledge of policies may be when it repairs.
func (s *RecoveryPolicySpec) MaximumStaleness() time.Duration {
	return seconds(s.MaximumStalenessSeconds, DefaultStalenessSeconds)
}

// MinimumNodes is the least number of nodes with a fault at which their share matters.
func (b *RecoveryBreaker) MinimumNodes() int {
	return int(orDefault(b.MinimumFaultyNodes, DefaultMinimumFaultyNodes))
}

// Evict returns when pods are evicted, or nil for never.
func (s *RecoveryPolicySpec) Evict() *EvictEscalation {
	if s.Escalation == nil {
		return nil
	}
	return s.Escalation.Evict
}

// Cordon returns when nodes are cordoned, or nil for never.
func (s *RecoveryPolicySpec) Cordon() *CordonEscalation {
	if s.Escalation == nil {
		return nil
	}
	return s.Escalation.Cordon
}

// Pods is the least number of pods of a node with faults.
func (c *CordonEscalation) Pods() int { return int(orDefault(c.MinimumPods, DefaultMinimumPods)) }

// Nodes bounds the nodes that the policy has cordoned at a time.
func (c *CordonEscalation) Nodes() int { return int(orDefault(c.MaximumNodes, DefaultMaximumNodes)) }

// Pool returns the pool of a node with these labels.
func (b *RecoveryBreaker) Pool(node map[string]string) string {
	if b.NodePoolLabel == "" {
		return ""
	}
	return node[b.NodePoolLabel]
}

// Breaker returns the state of the breaker of a fault code in a pool for all namespaces, or nil if it has never opened.
func (s *RecoveryPolicyStatus) Breaker(code, pool string) *BreakerStatus {
	return s.BreakerOf(code, pool, "")
}

// BreakerOf returns the state of the breaker of a fault code in a pool for one namespace, or nil if it has never opened.
func (s *RecoveryPolicyStatus) BreakerOf(code, pool, namespace string) *BreakerStatus {
	for i := range s.Breakers {
		if b := &s.Breakers[i]; b.Code == code && b.Pool == pool && b.Namespace == namespace {
			return b
		}
	}
	return nil
}
