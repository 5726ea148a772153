// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package guard has an agent obey RecoveryPolicies. It decides by the knowledge of the agent, at once and without a request, so
// that it can be asked before every repair. Requests are made in the background: for the labels of
// namespaces and of the node, and for shares of the budgets of the cluster and of workloads. Until there is an answer, nothing is
// repaired. Package policy holds the rules.
package guard

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/policy"
	"kubediag.org/kubediag/internal/sentinel"
	"kubediag.org/kubediag/internal/share"
)

// Options are the facts and the clients of a Guard.
type Options struct {
	// Node is the name of the node, and Namespace the agent's.
	Node, Namespace string
	// Otherwise is the mode of faults that no policy selects.
	Otherwise v1.RecoveryMode
	// Live asks the API server itself, and Client creates the slots of budgets.
	Live   client.Reader
	Client client.Writer
	// EvictionRefusal says why the agent does not evict a pod, also if policies want it; empty if it does.
	EvictionRefusal func(pod *corev1.Pod) string
	// Freshness knows how old the agent's knowledge of policies is.
	Freshness *Freshness
	Log       logr.Logger
}

// Guard decides about the faults of one node. It may be used from several goroutines.
type Guard struct {
	Options
	requests *requests
	objects  *objects
	slots    *slots

	mu       sync.Mutex
	policies map[string]*policy.Policy
	budgets  nodeBudgets
	repaired cooldowns
	failures failures
	refusals *share.Memory[fault.Key, string]      // why the last repair of a subject was refused
	allowed  *share.Memory[fault.Key, v1.Decision] // the decision that allowed a repair, until Allowed returns it
	waiting  listeners
	// noWaitUntil is set if a request took too long: until then no repair waits for one.
	noWaitUntil time.Time
}

// listeners wait until a Guard may decide otherwise.
type listeners struct {
	answered    chan struct{}   // closed when anything may have changed, and replaced
	subscribers []chan struct{} // receive then, too
}

// New returns a Guard. Start makes its requests.
func New(o Options) *Guard {
	r := newRequests()
	return &Guard{
		Options: o, requests: r,
		objects:  &objects{node: o.Node, live: o.Live, requests: r, known: cache.NewLRUExpireCache(maxObjects)},
		slots:    &slots{node: o.Node, namespace: o.Namespace, client: o.Client, claims: map[string]*claim{}, room: share.Room{Places: maxSlotClaims}},
		policies: map[string]*policy.Policy{}, budgets: nodeBudgets{}, repaired: cooldowns{places: map[fault.Key]cooldown{}, room: share.Room{Places: maxPlaces}}, failures: failures{faults: map[fault.Key]*failure{}, room: share.Room{Places: maxFaults}, allowed: share.NewMemory[fault.Key, selected](maxFaults)},
		refusals: share.NewMemory[fault.Key, string](maxFaults), allowed: share.NewMemory[fault.Key, v1.Decision](maxFaults), waiting: listeners{answered: make(chan struct{})},
	}
}

// Start makes requests until ctx is done.
func (g *Guard) Start(ctx context.Context) error {
	g.requests.run(ctx, g.Log, g.notify)
	return nil
}

// Subscribe returns a channel that receives when answers may have changed.
func (g *Guard) Subscribe() <-chan struct{} {
	changed := make(chan struct{}, 1)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting.subscribers = append(g.waiting.subscribers, changed)
	return changed
}

// notify makes those ask again who wait or have subscribed.
func (g *Guard) notify() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.waiting.answered)
	g.waiting.answered = make(chan struct{})
	for _, s := range g.waiting.subscribers {
		select {
		case s <- struct{}{}:
		default: // it is to ask again already
		}
	}
}

// Set replaces a policy.
func (g *Guard) Set(p *v1.RecoveryPolicy) {
	g.mu.Lock()
	compiled := policy.Compile(p, fault.Known())
	if before := g.policies[p.Name]; before != nil { // the failed repairs of a code are forgotten when its breaker is closed
		pool := compiled.Pool(g.objects.get(nodeKey, time.Now()))
		for i := range p.Status.Breakers {
			b := &p.Status.Breakers[i]
			known := before.Object.Status.BreakerOf(b.Code, b.Pool, b.Namespace)
			if b.ClosedTime == nil || known != nil && b.ClosedTime.Equal(known.ClosedTime) || b.Pool != pool && pool != "" {
				continue
			}
			g.failures.forget(func(key fault.Key, failed *failure) bool { // of one namespace, or of all
				return string(key.Code) == b.Code && (b.Namespace == "" || failed.namespace == b.Namespace) && failed.under([]string{p.Name})
			})
		}
	}
	g.policies[p.Name] = compiled
	g.mu.Unlock()
	g.notify()
}

// Delete removes a policy.
func (g *Guard) Delete(name string) {
	g.mu.Lock()
	delete(g.policies, name)
	delete(g.budgets, name)
	g.mu.Unlock()
	g.notify()
}

// Mode returns the mode for a fault of a pod, which is nil for a fault of no pod. Automatic means that Acquire has to be
// asked. It implements sentinel.Guard.
func (g *Guard) Mode(code fault.Code, pod *corev1.Pod) sentinel.Mode {
	d := g.Decide(code, pod)
	switch {
	case d.Mode == v1.RecoveryOff:
		return sentinel.Off
	case d.Mode == v1.RecoveryAutomatic || d.NeedsNamespace || d.NeedsNode:
		return sentinel.Automatic
	}
	return sentinel.Observe
}

// Decide returns the decision of the policies about a fault of a pod now. pod is nil for a fault of no pod.
func (g *Guard) Decide(code fault.Code, pod *corev1.Pod) policy.Decision {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.decide(code, pod, time.Now())
}

func (g *Guard) decide(code fault.Code, pod *corev1.Pod, now time.Time) policy.Decision {
	f := policy.Fault{Code: string(code), Node: g.objects.get(nodeKey, now)}
	if pod != nil {
		f.Pod = &pod.ObjectMeta
		f.Namespace = g.objects.get(pod.Namespace, now)
	}
	d := policy.Decide(f, slices.Collect(maps.Values(g.policies)), g.Otherwise, now)
	if d.NeedsNamespace {
		g.objects.want(pod.Namespace)
	}
	if d.NeedsNode {
		g.objects.want(nodeKey)
	}
	if d.Mode == v1.RecoveryApprove || d.Mode == v1.RecoveryAutomatic {
		// No repair is allowed if the agent's knowledge is too old, or if the agent itself has seen too many repairs fail.
		oldest := time.Duration(v1.DefaultStalenessSeconds) * time.Second
		for i, p := range d.Policies {
			if i == 0 || p.Object.Spec.MaximumStaleness() < oldest {
				oldest = p.Object.Spec.MaximumStaleness()
			}
		}
		var reason policy.Reason
		if age, known := g.Freshness.Age(now); !known || age > oldest {
			reason = policy.Reason{
				Why:  fmt.Sprintf("the agent may have missed changes of policies for more than %s", oldest),
				Next: "wait until the agent reaches the API server",
			}
		}
		for i := 0; i < len(d.Policies) && reason.Why == ""; i++ {
			reason = g.failures.broken(code, d.Policies[i], ownerOf(pod).Namespace, now)
		}
		if reason.Why != "" {
			d.Mode, d.Reason = v1.RecoveryObserve, reason
		}
	}
	if pod != nil && extract.Large(pod) && d.Mode != v1.RecoveryOff {
		d.Mode, d.Reason = v1.RecoveryObserve, policy.Reason{
			Why:  "the pod has so many volumes, mounts and labels that the agent does not keep them",
			Next: "create a Diagnosis of the pod",
		}
	}
	return d
}

// rowReason says that a row of failed repairs opens the breaker of a policy.
func rowReason(row int, code fault.Code, where string, p *policy.Policy) policy.Reason {
	return policy.Reason{
		Why:  fmt.Sprintf("%d repairs of %s in a row have failed on the node %s: the breaker of policy %s opens", row, code, where, p.Object.Name),
		Next: policy.CloseBreaker(p.Object.Name),
	}
}
