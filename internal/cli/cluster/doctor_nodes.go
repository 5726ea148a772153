// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/version"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
)

// Names in the namespace of kubediag.
const (
	managerLease   = "kubediag-manager"
	componentLabel = "app.kubernetes.io/component"
	modeVariable   = "KUBEDIAG_SENTINEL_MODE"
	modeFlag       = "sentinel-mode"
)

// Kernels that matter.
var (
	oldestKernel        = version.MustParseGeneric("5.10")
	atomicReplaceKernel = version.MustParseGeneric("6.5") // replaces a mount with no moment in which readers miss it
)

// checkManager checks that the Deployment is ready and that one manager leads.
func (k *installationCheck) checkManager(ctx context.Context) []checkResult {
	var list appsv1.DeploymentList
	if err := k.api.server.List(ctx, &list, ctrlclient.InNamespace(k.home), ctrlclient.MatchingLabels{componentLabel: "manager"}); err != nil {
		return []checkResult{uncheckedResult("the manager is", err)}
	}
	if len(list.Items) == 0 {
		return []checkResult{failResult("install it: "+applyDefault+"; or name its namespace with --kubediag-namespace",
			"there is no manager in namespace %s", k.home)}
	}
	m := list.Items[0]
	logs := fmt.Sprintf("kubectl logs -n %s deployment/%s", k.home, m.Name)
	if m.Status.ReadyReplicas == 0 {
		return []checkResult{failResult(logs, "manager %s/%s: none of %s is ready: no Diagnosis gets to its node", k.home, m.Name, verb.Count(int(m.Status.Replicas), "replica"))}
	}
	var lease coordinationv1.Lease
	err := k.api.server.Get(ctx, ctrlclient.ObjectKey{Namespace: k.home, Name: managerLease}, &lease)
	if err != nil && !errors.Is(err, errMissing) {
		return []checkResult{uncheckedResult("the Lease of the manager is", err)}
	}
	held, ok := leaseRenewed(&lease, k.now)
	if err != nil || !ok {
		return []checkResult{warnResult(logs, "manager %s/%s: no leader has renewed its Lease for %s, by the clock of this machine", k.home, m.Name, held)}
	}
	return []checkResult{okResult("manager: %d of %s ready, one leads", m.Status.ReadyReplicas, verb.Count(int(m.Status.Replicas), "replica"))}
}

// leaseRenewed reports whether a Lease is held, and how old its last renewal is.
func leaseRenewed(l *coordinationv1.Lease, now time.Time) (string, bool) {
	if l.Spec.RenewTime == nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "any time", false
	}
	const least = 40 * time.Second
	limit := least
	if s := l.Spec.LeaseDurationSeconds; s != nil {
		limit = max(limit, time.Duration(*s)*time.Second)
	}
	old := now.Sub(l.Spec.RenewTime.Time)
	return duration.HumanDuration(max(0, old)), old <= limit
}

// checkAgents checks the DaemonSet, and that the agent of each node renews its Lease. It compares the agents that are ready with those that
// the DaemonSet has to have, and these with the nodes.
func (k *installationCheck) checkAgents(ctx context.Context) []checkResult {
	var sets appsv1.DaemonSetList
	if err := k.api.server.List(ctx, &sets, ctrlclient.InNamespace(k.home), ctrlclient.MatchingLabels{componentLabel: "agent"}); err != nil {
		return []checkResult{uncheckedResult("the agents are", err)}
	}
	if len(sets.Items) == 0 {
		return []checkResult{failResult("install it: "+applyDefault+"; or name its namespace with --kubediag-namespace",
			"there is no DaemonSet of agents in namespace %s", k.home)}
	}
	set := sets.Items[0]
	ready, desired := int(set.Status.NumberReady), int(set.Status.DesiredNumberScheduled)
	text, enough := fmt.Sprintf("agents: %d of %d ready", ready, desired), ready >= desired
	if all, err := k.linuxNodes(ctx); err == nil && len(all) > desired { // a DaemonSet that fits no node is ready with 0 of 0
		text += fmt.Sprintf(", on %s", verb.Count(len(all), "node"))
		desired = len(all)
	}
	var results []checkResult
	switch {
	case desired > 0 && ready >= desired:
		results = append(results, okResult("%s", text))
	case enough:
		results = append(results, failResult(fmt.Sprintf("kubectl get daemonset -n %s %s -o yaml: compare its nodeSelector, affinity and tolerations with the nodes", k.home, set.Name), "%s", text))
	default:
		results = append(results, failResult(fmt.Sprintf("kubectl get pods -n %s -l %s=agent -o wide", k.home, componentLabel), "%s", text))
	}
	results = append(results, k.checkCoverage(ctx)...)
	mode := sentinelModeOf(&set)
	if mode == sentinelOff {
		return append(results, warnResult(fmt.Sprintf("kubectl -n %s set env daemonset/%s %s=%s", k.home, set.Name, modeVariable, sentinelObserve),
			"the sentinel is off: no MountFault shows what is broken"))
	}
	return append(results, okResult("the sentinel is in mode %s", mode))
}

// checkCoverage checks that each node has an agent that answers.
func (k *installationCheck) checkCoverage(ctx context.Context) []checkResult {
	all, err := k.linuxNodes(ctx)
	if err != nil {
		return []checkResult{uncheckedResult("nodes are", err)}
	}
	var list coordinationv1.LeaseList
	if err := k.api.server.List(ctx, &list, ctrlclient.InNamespace(k.home), ctrlclient.HasLabels{v1.LabelAgent}); err != nil {
		return []checkResult{uncheckedResult("the Leases of the agents are", err)}
	}
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	return compareNodes(names, list.Items, k.now).results()
}

// results say which nodes have no agent that answers, and which agents list in pages.
func (a *agentCoverage) results() (results []checkResult) {
	if len(a.without) > 0 {
		results = append(results, failResult("a Diagnosis of these nodes waits: let the DaemonSet run there", "%s without an agent: %s", verb.Count(len(a.without), "node"), joinNames(a.without)))
	}
	if len(a.silent) > 0 {
		var silent []string
		for _, agent := range a.silent {
			silent = append(silent, agent.String())
		}
		results = append(results, failResult("look at the agents there, and at the clocks", "%s whose agent does not renew its Lease, by the clock of this machine: %s",
			verb.Count(len(a.silent), "node"), joinNames(silent)))
	}
	if len(a.pages) > 0 {
		results = append(results, warnResult("look there for pods and Diagnoses that are very large or very many; to list as before, restart an agent by deleting its pod",
			"%s whose agent was probably killed for memory, and lists pods and Diagnoses in pages since: %s", verb.Count(len(a.pages), "node"), joinNames(a.pages)))
	}
	if text := a.unjudgedText(true); text != "" {
		results = append(results, warnResult("wait for a minute after the start of an agent; a Diagnosis of the node names what could not be judged", "%s", text))
	}
	if a.unwatched == 0 {
		results = append(results, okResult("the agents of all %s renew their Leases", verb.Count(a.nodes, "node")))
	}
	return results
}

// Modes of the sentinel that matter here.
const (
	sentinelOff     = "Off"
	sentinelObserve = "Observe"
)

// sentinelModeOf is the mode that the DaemonSet of the agents asks for.
func sentinelModeOf(set *appsv1.DaemonSet) string {
	mode := sentinelObserve
	for _, c := range set.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == modeVariable && e.Value != "" {
				mode = e.Value
			}
		}
		for _, arg := range c.Args { // a flag counts more
			if value, ok := strings.CutPrefix(arg, "--"+modeFlag+"="); ok {
				mode = value
			}
		}
	}
	return mode
}

// linuxNodes are the nodes that can have an agent.
func (k *installationCheck) linuxNodes(ctx context.Context) ([]corev1.Node, error) {
	var list corev1.NodeList
	if err := k.api.server.List(ctx, &list); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(n corev1.Node) bool {
		system := n.Status.NodeInfo.OperatingSystem
		return system != "" && system != "linux"
	}), nil
}

// checkNodes names the kernels and the kubelets that are a risk.
func (k *installationCheck) checkNodes(ctx context.Context) []checkResult {
	all, err := k.linuxNodes(ctx)
	if err != nil {
		return []checkResult{uncheckedResult("nodes are", err)}
	}
	var buggy, old, rough []string
	for _, node := range all {
		info := node.Status.NodeInfo
		if minor := minorVersion(info.KubeletVersion); minor >= 0 && minor < replacingKubeletMinor {
			buggy = append(buggy, node.Name+" ("+info.KubeletVersion+")")
		}
		kernel, err := version.ParseGeneric(info.KernelVersion)
		switch {
		case err != nil:
		case kernel.LessThan(oldestKernel):
			old = append(old, node.Name+" ("+info.KernelVersion+")")
		case kernel.LessThan(atomicReplaceKernel):
			rough = append(rough, node.Name+" ("+info.KernelVersion+")")
		}
	}
	var results []checkResult
	if len(buggy) > 0 {
		results = append(results, warnResult("sentinel mode Automatic heals it before it hurts; "+k.api.commandLine("lint", "-A")+" names the workloads at risk; kubelets from 1.19 do not have it",
			"%s with kubernetes#68211 (stale subPaths): %s", verb.Count(len(buggy), "kubelet"), joinNames(buggy)))
	}
	if len(old) > 0 {
		results = append(results, warnResult("nothing is guaranteed there: update to Linux 5.10 or later", "%s with a kernel that kubediag is not tested on: %s", verb.Count(len(old), "node"), joinNames(old)))
	}
	if len(rough) > 0 {
		results = append(results, warnResult("nothing has to be done; Linux 6.5 has no such moment", "%s where a repair in a running container has a moment in which readers miss the mount: %s",
			verb.Count(len(rough), "node"), joinNames(rough)))
	}
	if len(results) == 0 {
		results = append(results, okResult("no kernel or kubelet of %s is a known risk", verb.Count(len(all), "node")))
	}
	return results
}

// checkFaults counts the faults that could be healed now, and those that wait for a driver or a person.
func (k *installationCheck) checkFaults(ctx context.Context) []checkResult {
	var list v1.MountFaultList
	if err := k.api.server.List(ctx, &list); err != nil {
		return []checkResult{uncheckedResult("faults are", err)}
	}
	safe, people := 0, 0
	for _, f := range list.Items {
		switch f.Status.Heal {
		case v1.HealSafe:
			safe++
		case v1.HealDriver, v1.HealPerson:
			people++
		}
	}
	var results []checkResult
	if safe > 0 {
		results = append(results, warnResult(k.api.commandLine("faults", "-A"), "%s could be healed now, and nothing would be lost", verb.Count(safe, "fault")))
	}
	if people > 0 {
		results = append(results, warnResult(k.api.commandLine("faults", "-A"), "%s wait for a driver or for a person", verb.Count(people, "fault")))
	}
	if len(results) == 0 {
		results = append(results, okResult("no fault waits to be healed"))
	}
	return results
}

// minorVersion is the minor version of a release of Kubernetes 1; -1 if it is not known.
func minorVersion(release string) int {
	v, err := version.ParseGeneric(release)
	if err != nil || v.Major() != 1 {
		return -1
	}
	return int(v.Minor())
}

// joinNames names at most four.
func joinNames(names []string) string {
	const most = 4
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
