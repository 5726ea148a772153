// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/metric"
	"kubediag.org/kubediag/internal/share"
)

// maxInfos bounds the series of kubediag_fault_info. Namespaces share them, and then pods; of each, the worst faults are there.
const maxInfos = 2000

// scrapeTimeout is how long a scrape waits for a cache that is not filled yet.
const scrapeTimeout = 5 * time.Second

var faultInfo = metric.Declaration{
	Name: "kubediag_fault_info", Kind: metric.Gauge,
	Labels: []metric.Label{
		{Name: "code"}, {Name: "impact"}, {Name: "target_namespace"}, {Name: "target_pod"}, {Name: "volume"}, {Name: "driver"}, {Name: "target_node"},
	},
	Help: "Always 1, for each pod, volume and code that a MountFault names.",
	More: "Only with `--fault-info-metric`, as everyone who reaches the metrics can read it: [security](../security.md#attacks). At most 2,000 " +
		"series: namespaces take turns, the worst faults of each first. Each manager has it, also one that stands by",
}

// Metrics declares the metrics of this package.
func Metrics() []metric.Declaration { return []metric.Declaration{faultInfo} }

// Info exposes the MountFaults of a cache as kubediag_fault_info.
type Info struct{ Reader client.Reader }

// Describe sends the description of the metric.
func (Info) Describe(to chan<- *prometheus.Desc) { to <- faultInfo.Desc() }

// Collect sends a series for each pod, volume and code; none while the cache cannot be read.
func (i Info) Collect(to chan<- prometheus.Metric) {
	var all v1.MountFaultList
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout) // a scrape has no context
	defer cancel()
	if err := i.Reader.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	rank := func(f v1.MountFault) int { return slices.Index(fault.Impacts(), fault.Impact(f.Status.Impact)) }
	faults := slices.Clone(all.Items) // the order of the cache is not ours to change
	slices.SortStableFunc(faults, func(a, b v1.MountFault) int { return rank(a) - rank(b) })
	seen := map[[7]string]bool{}
	for _, f := range share.InTurns(faults, func(f v1.MountFault) share.Owner { return share.Owner{Namespace: f.Namespace, Pod: f.Status.Target} }) {
		s, namespace, pod := f.Status, "", ""
		if s.Pod != nil {
			namespace, pod = s.Pod.Namespace, s.Pod.Name
		}
		labels := [...]string{s.Code, string(s.Impact), namespace, pod, s.Volume, s.Driver, s.Node}
		if seen[labels] || len(seen) >= maxInfos {
			continue
		}
		seen[labels] = true
		to <- prometheus.MustNewConstMetric(faultInfo.Desc(), prometheus.GaugeValue, 1, labels[:]...)
	}
}
