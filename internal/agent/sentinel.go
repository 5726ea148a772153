// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/audit"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/metric"
	"kubediag.org/kubediag/internal/mountfault"
	"kubediag.org/kubediag/internal/sentinel"
)

// Outcomes of the sentinel's repairs in metrics are those of actions.
const (
	outcomeDone   = string(v1.ActionDone)
	outcomeFailed = string(v1.ActionFailed)
)

// newSentinel makes the sentinel, which watches the node also without a Diagnosis, the recorder of its repairs, and the writer of its
// MountFaults.
func (a *agent) newSentinel(observing *observer) (*sentinel.Sentinel, *mountfault.Writer, error) {
	boot, err := sys.BootID()
	if err != nil {
		return nil, nil, err
	}
	a.recorder, err = audit.New(audit.Options{
		Node: a.options.NodeName, Boot: boot, Namespace: a.options.Namespace, DataRoot: a.options.DataRoot, Client: a.manager.GetClient(), Reader: a.manager.GetAPIReader(),
		Log: a.manager.GetLogger().WithName("audit"),
	})
	if err != nil {
		return nil, nil, err
	}
	a.closers = append(a.closers, a.recorder.Close)
	s := &sentinel.Sentinel{
		Mode: a.options.SentinelMode, Guard: a.guard, Kubelet: a.kubelet, Pods: a.pods, Volumes: a.watched, Orphans: a.orphans, Lock: a.repairs,
		Begun: a.recorder.Begun(), Looks: a.looks(),
		Binds: subpath.Sources{Prober: a.watched.Prober, Runtime: &cri.Client{Socket: a.runtimeSocket}},
	}
	if a.connections != nil {
		s.Connections = a.connections
	}
	l := &sentinelObserver{
		mode: a.options.SentinelMode, observer: observing, log: a.manager.GetLogger().WithName("sentinel"),
		begin:    func(r sentinel.Repair) error { return a.recorder.Begin(r, a.guard.Allowed(r.Fault)) },
		decision: a.recorder.Decision, record: a.recorder.Add, left: a.recorder.Left,
	}
	if host, err := os.Hostname(); a.options.PodUID != "" && err == nil { // the host of a pod has its name
		l.logs = fmt.Sprintf("kubectl logs -n %s %s", a.options.Namespace, host)
	}
	s.Observer = l
	w := mountfault.New(mountfault.Options{
		Node: a.options.NodeName, Namespace: a.options.Namespace, Client: a.manager.GetClient(), Reader: a.manager.GetAPIReader(),
		Diagnoses: a.manager.GetCache(), Pods: a.pods, Events: observing.events, Log: a.manager.GetLogger().WithName("mountfault"),
		Interval: mountfault.Interval, Recovery: a.guard.Recovery,
	})
	if a.options.SentinelMode == sentinel.Observe || a.options.SentinelMode == sentinel.Automatic {
		w.Faults, s.Changed = s.Faults, w.Changed
		l.impacts = w.Impacts
	}
	return s, w, l.register(a.registry, s.Status)
}

// sentinelObserver turns the findings and the repairs of the sentinel into metrics and lines of the log, and the repairs into Events
// on pods and records, too.
type sentinelObserver struct {
	*observer
	mode           sentinel.Mode
	log            logr.Logger
	detectionDelay *prometheus.HistogramVec
	// logs is the command that shows the log; empty if that is not known.
	logs string
	// begin writes down that a repair is about to be done, and left that it has changed nothing.
	begin func(r sentinel.Repair) error
	left  func(r sentinel.Repair)
	// decision returns the decision that allowed a repair.
	decision func(r sentinel.Repair) v1.Decision
	// record writes a repair down, and returns the name of the Diagnosis that has it.
	record func(r sentinel.Repair, d v1.Decision) (name string)
	// impacts counts the faults that are present. nil: none are watched.
	impacts func() map[fault.Code]map[fault.Impact]int
}

// Found is called with a fault.
func (o *sentinelObserver) Found(f fault.Finding, after time.Duration) {
	if after > 0 {
		o.detectionDelay.WithLabelValues(string(f.Code)).Observe(after.Seconds())
	}
	o.log.Info("Found a fault", fieldsOf(f)...)
}

// Begin is called right before a repair.
func (o *sentinelObserver) Begin(r sentinel.Repair) error { return o.begin(r) }

// Left is called with a repair that has changed nothing.
func (o *sentinelObserver) Left(r sentinel.Repair) { o.left(r) }

// Repaired is called with the result of a repair.
func (o *sentinelObserver) Repaired(r sentinel.Repair) {
	finding, kind, err := r.Fault, r.Action.Kind, r.Err
	decision := o.decision(r)
	fields := append(fieldsOf(finding), "origin", v1.OriginSentinel, "action", kind, "target", r.Action.Target, "mode", decision.Mode,
		"policies", decision.Policies, "reason", decision.Reason, "calls", r.Calls, "proof", r.Proof, "diagnosis", o.record(r, decision))
	if err != nil {
		o.metrics.repairs.WithLabelValues(string(finding.Code), string(kind), outcomeFailed).Inc()
		o.log.Error(err, "Could not repair a fault", fields...)
		o.sendEvent(finding, corev1.EventTypeWarning, string(finding.Code),
			fmt.Sprintf("Could not repair %s%s: %v", finding.Code, inWhose(finding.Container, finding.Volume), err))
		return
	}
	o.metrics.repairs.WithLabelValues(string(finding.Code), string(kind), outcomeDone).Inc()
	o.log.Info("Repaired a fault", fields...)
	o.sendEvent(finding, corev1.EventTypeNormal, eventMountRepaired,
		fmt.Sprintf("Repaired %s%s: %s", finding.Code, inWhose(finding.Container, finding.Volume), repairKinds[kind]))
}

// Trouble is called with the reason why the sentinel cannot do something.
func (o *sentinelObserver) Trouble(err error) {
	o.log.Error(err, "Sentinel coverage is incomplete")
}

// sendEvent sends an Event about a repair on the pod.
func (o *sentinelObserver) sendEvent(f fault.Finding, kind, reason, message string) {
	pod := mountfault.PodReference(&v1.FaultPod{Namespace: f.Pod.Namespace, Name: f.Pod.Name, UID: types.UID(f.Pod.UID)})
	if kind == corev1.EventTypeNormal {
		o.events.Event(pod, kind, reason, kubeclient.EventMessage(message, o.logs))
		return
	}
	o.events.Event(pod, kind, reason, kubeclient.EventAdvice(kubeclient.WithoutPaths(message), o.logs))
}

func fieldsOf(f fault.Finding) []any {
	return []any{
		"fault", f.Code, "namespace", f.Pod.Namespace, "pod", f.Pod.Name, "uid", f.Pod.UID, "container", f.Container, "volume", f.Volume,
		"mount", f.Mount, "evidence", f.Evidence,
	}
}

// register registers the metrics of the sentinel. If the sentinel is off there are none: 0 would say that it
// does not see the node, and that there is no fault.
func (o *sentinelObserver) register(registry prometheus.Registerer, status func() sentinel.Status) error {
	if o.mode == sentinel.Off {
		return nil
	}
	o.detectionDelay = faultDetection.HistogramVec()
	all := []prometheus.Collector{o.detectionDelay, &impactCollector{read: o.impacts}}
	for _, code := range sentinel.Codes(fault.Known()) {
		all = append(all, faultsPresent.GaugeFunc(func() float64 { return float64(status().Present[code]) }, string(code)))
	}
	for _, g := range []struct {
		metric metric.Declaration
		read   func(sentinel.Status) int
	}{
		{sentinelWatching, func(s sentinel.Status) int {
			if s.Watching {
				return 1
			}
			return 0
		}},
		{sentinelBinds, func(s sentinel.Status) int { return s.Binds }},
		{sentinelUnwatchedBinds, func(s sentinel.Status) int { return s.Unwatched }},
		{sentinelConnections, func(s sentinel.Status) int { return s.Connections }},
	} {
		all = append(all, g.metric.GaugeFunc(func() float64 { return float64(g.read(status())) }))
	}
	return register(registry, all...)
}

// impactCollector counts the faults by how they hurt, each time that the metrics are read.
type impactCollector struct {
	read func() map[fault.Code]map[fault.Impact]int // nil: no faults are watched
}

// Describe describes the one metric.
func (i *impactCollector) Describe(to chan<- *prometheus.Desc) { to <- faultsByImpact.Desc() }

// Collect returns a sample for every code that is watched, and for every impact.
func (i *impactCollector) Collect(to chan<- prometheus.Metric) {
	var found map[fault.Code]map[fault.Impact]int
	if i.read != nil {
		found = i.read()
	}
	for _, code := range sentinel.Codes(fault.Known()) {
		for _, impact := range fault.Impacts() {
			to <- prometheus.MustNewConstMetric(faultsByImpact.Desc(), prometheus.GaugeValue, float64(found[code][impact]), string(code), string(impact))
		}
	}
}
