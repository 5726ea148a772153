// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/metric"
	"kubediag.org/kubediag/internal/policy"
)

// Reasons of Events on a RecoveryPolicy.
const (
	eventOpened = "BreakerOpened"
	eventClosed = "BreakerClosed"
	// eventCordoned and eventWouldCordon are on the Node, too.
	eventCordoned    = "NodeCordoned"
	eventWouldCordon = "WouldCordonNode"
	eventHeld        = "EscalationHeld"
)

// Metrics declares the metrics of this package.
func Metrics() []metric.Declaration {
	return []metric.Declaration{openingsTotal, breakersOpen, nodeCordonsTotal}
}

var (
	openingsTotal = metric.Declaration{
		Name: "kubediag_breaker_openings_total", Kind: metric.Counter,
		Labels: []metric.Label{{Name: "fault"}, {Name: "reason", Values: "`FailedRepairs`, `TooManyNodes`"}},
		Help:   "Breakers of RecoveryPolicies that were opened, by fault and reason.", More: "[Breakers](recoverypolicy.md#breaker)",
	}
	breakersOpen = metric.Declaration{
		Name: "kubediag_breakers_open", Kind: metric.Gauge, Labels: []metric.Label{{Name: "fault"}},
		Help: "Breakers of RecoveryPolicies that are open, by fault.", More: "[Breakers](recoverypolicy.md#breaker)",
	}
	nodeCordonsTotal = metric.Declaration{
		Name: "kubediag_node_cordons_total", Kind: metric.Counter,
		Help: "Nodes that were cordoned for RecoveryPolicies.", More: "[Escalation](recoverypolicy.md#escalation)",
	}

	openings, openBreakers, nodeCordons = openingsTotal.CounterVec(), breakersOpen.GaugeVec(), nodeCordonsTotal.Counter()
)

func init() { metrics.Registry.MustRegister(openings, openBreakers, nodeCordons) }

// breakerCounts has the open breakers of all policies.
type breakerCounts map[string]map[string]int // by policy and fault

// set replaces the breakers of a policy.
func (c *breakerCounts) set(name string, breakers []v1.BreakerStatus) {
	if *c == nil {
		*c = breakerCounts{}
	}
	counts := map[string]int{}
	for code := range (*c)[name] {
		counts[code] = 0
	}
	for _, b := range breakers {
		if b.State == v1.BreakerOpen {
			counts[b.Code]++
		}
	}
	(*c)[name] = counts
	for code := range counts {
		sum := 0
		for _, of := range *c {
			sum += of[code]
		}
		openBreakers.WithLabelValues(code).Set(float64(sum))
	}
	if len(breakers) == 0 {
		delete(*c, name)
	}
}

// announce counts the breakers, and sends Events about those that were opened or closed, and when an escalation begins to be prevented.
func (r *Reconciler) announce(old, p *v1.RecoveryPolicy, changes []change) {
	r.metrics.set(p.Name, p.Status.Breakers)
	command := "kubectl get rp " + p.Name + " -o yaml"
	for _, c := range changes {
		where := ""
		if c.Pool != "" {
			where = fmt.Sprintf(" in pool %s", c.Pool)
		}
		if c.Namespace != "" {
			where += fmt.Sprintf(" in namespace %s", c.Namespace)
		}
		if c.State == v1.BreakerOpen {
			openings.WithLabelValues(c.Code, c.Reason).Inc()
			message := fmt.Sprintf("Opened the breaker for %s%s: %s", c.Code, where, c.Message)
			r.Events.Event(p, corev1.EventTypeWarning, eventOpened, kubeclient.EventAdvice(message, command))
			continue
		}
		message := fmt.Sprintf("Closed the breaker for %s%s: %s", c.Code, where, c.why)
		r.Events.Event(p, corev1.EventTypeNormal, eventClosed, kubeclient.EventAdvice(message, command))
	}
	c, before := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionEscalation), meta.FindStatusCondition(old.Status.Conditions, v1.ConditionEscalation)
	if c == nil || before != nil && before.Reason == c.Reason {
		return
	}
	switch c.Reason {
	case v1.ReasonMissingRight, v1.ReasonCordonHeld, v1.ReasonEvictionRefused:
		r.Events.Event(p, corev1.EventTypeWarning, eventHeld, kubeclient.EventAdvice("Not escalated: "+c.Message, command))
	}
}

// announceCordon sends Events that a node was cordoned, or would be.
func (r *Reconciler) announceCordon(p *policy.Policy, node string, faults []cordonFault, done bool) {
	counts, after := podsByCode(faults), time.Duration(0)
	var texts []string
	for _, code := range slices.Sorted(maps.Keys(counts)) {
		texts = append(texts, fmt.Sprintf("%s in %d pods", code, counts[code]))
	}
	for _, f := range faults {
		after = max(after, f.cordon.After)
	}
	why := fmt.Sprintf("node %s for policy %s: %s for %s", node, p.Object.Name, strings.Join(texts, ", "), after)
	kind, reason := corev1.EventTypeWarning, eventCordoned
	message := kubeclient.EventAdvice("Cordoned "+why+". A person uncordons it", "kubectl describe node "+node)
	if !done {
		kind, reason = corev1.EventTypeNormal, eventWouldCordon
		message = kubeclient.EventAdvice("Would cordon "+why, "kubectl get rp "+p.Object.Name+" -o yaml")
	}
	r.Events.Event(p.Object, kind, reason, message)
	r.Events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, kind, reason, message) // as the kubelet names it
}
