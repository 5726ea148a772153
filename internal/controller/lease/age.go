// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/metric"
)

// AgeInterval is the time between two measurements of the ages. It is the error of an age.
const AgeInterval = 30 * time.Second

// Metrics declares the metrics of this package.
func Metrics() []metric.Declaration { return []metric.Declaration{leaseAge} }

var (
	leaseAge = metric.Declaration{
		Name: "kubediag_agent_lease_age_seconds", Kind: metric.Gauge, Labels: []metric.Label{{Name: "node"}},
		Help: "Time since the manager saw that the agent of a node has renewed its Lease.",
		More: "It is measured every 30 s, by the clock of the leader, which begins at 0. Only the leader has it. If a node is deleted, so is its series",
	}
	leaseAges = leaseAge.GaugeVec()
)

func init() { metrics.Registry.MustRegister(leaseAges) }

// maxAges is how many nodes have an age at most. It is more than Kubernetes supports.
const maxAges = 20_000

// leaseRenewal is the last renewal of a Lease.
type leaseRenewal struct {
	renewed time.Time // by the clock of the agent, which may be wrong
	seen    time.Time // when that was new, by our clock
	made    time.Time // by the clock of the API server
}

// Ages measures how old the Leases of the agents are. It keeps no cache: the Leases of a large cluster change hundreds
// of times a second.
type Ages struct {
	// Reader reads from the API server itself.
	Reader client.Reader
	Clock  clock.WithTicker
	// Namespace is where the Leases are.
	Namespace string
	// Every is the time between two measurements.
	Every time.Duration

	nodes map[string]leaseRenewal
}

// SetupWithManager adds it to a manager.
func (a *Ages) SetupWithManager(m manager.Manager) error { return m.Add(a) }

// NeedLeaderElection makes the leader the only one who exposes the ages.
func (a *Ages) NeedLeaderElection() bool { return true }

// Start measures until ctx is done. A measurement that fails is logged, and the ages stay as they were.
func (a *Ages) Start(ctx context.Context) error {
	defer leaseAges.Reset()
	return kubeclient.Passes{
		Clock: a.Clock, Interval: a.Every, Name: "lease", Failure: "Could not read the Leases of the agents", Pass: a.measureAll,
	}.Start(ctx)
}

// measureAll reads all Leases of agents, page by page.
func (a *Ages) measureAll(ctx context.Context) error {
	now, found := a.Clock.Now(), map[string]leaseRenewal{}
	err := kubeclient.EachPage(ctx, a.Reader, &coordinationv1.LeaseList{}, func(page *coordinationv1.LeaseList) {
		for i := range page.Items {
			l := &page.Items[i]
			node := agentNode(l)
			if node == "" {
				continue
			}
			at := renewTime(l, now)
			was, known := a.nodes[node]
			if !known || !was.renewed.Equal(at) {
				was = leaseRenewal{renewed: at, seen: now, made: l.CreationTimestamp.Time}
			}
			found[node] = was
		}
		dropNewest(found, maxAges)
	}, client.InNamespace(a.Namespace), client.HasLabels{v1.LabelAgent})
	if err != nil {
		return fmt.Errorf("listing leases in namespace %q: %w", a.Namespace, err)
	}
	for node := range a.nodes {
		if _, there := found[node]; !there {
			leaseAges.DeleteLabelValues(node)
		}
	}
	for node, r := range found {
		leaseAges.WithLabelValues(node).Set(now.Sub(r.seen).Seconds())
	}
	a.nodes = found
	return nil
}

// dropNewest keeps the renewals of the oldest Leases, at most so many. Without an admission policy, a taken-over agent can create Leases of any
// names. They displace no node whose Lease is older.
func dropNewest(found map[string]leaseRenewal, most int) {
	if len(found) <= most {
		return
	}
	names := slices.SortedFunc(maps.Keys(found), func(a, b string) int {
		return cmp.Or(found[a].made.Compare(found[b].made), cmp.Compare(a, b))
	})
	for _, name := range names[most:] {
		delete(found, name)
	}
}
