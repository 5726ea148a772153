// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/metric"
)

// Reasons of Events on a RecoveryPolicy.
const (
	eventOpened = "BreakerOpened"
	eventClosed = "BreakerClosed"
)

// Metrics declares what this package exposes.
func Metrics() []metric.Declaration {
	return []metric.Declaration{openingsTotal, breakersOpen}
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

	openings, openBreakers = openingsTotal.CounterVec(), breakersOpen.GaugeVec()
)

func init() { metrics.Registry.MustRegister(openings, openBreakers) }

// breakerCounts has the open breakers of all policies.
type breakerCounts struct {
	mu   sync.Mutex
	open map[string]map[string]int // by policy and fault
}

// set replaces the breakers of a policy.
func (c *breakerCounts) set(name string, breakers []v1.BreakerStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[string]map[string]int{}
	}
	counts := map[string]int{}
	for code := range c.open[name] {
		counts[code] = 0
	}
	for _, b := range breakers {
		if b.State == v1.BreakerOpen {
			counts[b.Code]++
		}
	}
	c.open[name] = counts
	for code := range counts {
		sum := 0
		for _, of := range c.open {
			sum += of[code]
		}
		openBreakers.WithLabelValues(code).Set(float64(sum))
	}
	if len(breakers) == 0 {
		delete(c.open, name)
	}
}

// announce counts the breakers, and sends Events about those that were opened or closed.
func (r *Reconciler) announce(p *v1.RecoveryPolicy, changes []change) {
	r.metrics.set(p.Name, p.Status.Breakers)
	for _, c := range changes {
		where := ""
		if c.Pool != "" {
			where = fmt.Sprintf(" in pool %s", c.Pool)
		}
		command := "kubectl get rp " + p.Name + " -o yaml"
		if c.State == v1.BreakerOpen {
			openings.WithLabelValues(c.Code, c.Reason).Inc()
			message := fmt.Sprintf("Opened the breaker for %s%s: %s", c.Code, where, c.Message)
			r.Events.Event(p, corev1.EventTypeWarning, eventOpened, kubeclient.EventAdvice(message, command))
			continue
		}
		message := fmt.Sprintf("Closed the breaker for %s%s: %s", c.Code, where, c.why)
		r.Events.Event(p, corev1.EventTypeNormal, eventClosed, kubeclient.EventAdvice(message, command))
	}
}
