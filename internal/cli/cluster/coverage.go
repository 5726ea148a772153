// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// defaultHome is the namespace that kubediag is installed in if no flag says another.
const defaultHome = "kubediag"

// leaseReader is the Role in kubediag's namespace that allows to see which nodes are watched.
const leaseReader = "kubediag-lease-reader"

// agentCoverage is how many nodes the agents watch.
type agentCoverage struct {
	nodes, unwatched int
	// without are the nodes with no agent, and silent the agents that do not renew their Leases.
	without []string
	silent  []silentAgent
	// unjudged are the nodes of which the agents could not judge everything.
	unjudged []unjudgedNode
	// pages are the nodes whose agent lists in pages, because the one before was probably killed for memory.
	pages []string
	// unnamed is set if the nodes were only counted. A silent agent is then not always that of a node that is still there.
	unnamed bool
}

// compareNodes compares nodes with the Leases of the agents.
func compareNodes(names []string, found []coordinationv1.Lease, now time.Time) *agentCoverage {
	byName := map[string]*coordinationv1.Lease{}
	for i := range found {
		byName[found[i].Name] = &found[i]
	}
	a := &agentCoverage{nodes: len(names)}
	for _, name := range names {
		lease := byName[v1.AgentLeaseName(name)]
		if lease == nil {
			a.without = append(a.without, name)
			continue
		}
		if since, ok := leaseRenewed(lease, now); !ok {
			a.silent = append(a.silent, silentAgent{name, lease.Spec.RenewTime == nil, since})
		}
		if lease.Labels[v1.LabelPages] != "" {
			a.pages = append(a.pages, name)
		}
		a.addUnjudged(name, lease)
	}
	a.unwatched = len(a.without) + len(a.silent)
	return a
}

// compareDaemonSets compares the number of nodes that DaemonSets of agents have to run on with the Leases. It is for users who may
// not list the nodes.
func compareDaemonSets(sets []appsv1.DaemonSet, found []coordinationv1.Lease, now time.Time) *agentCoverage {
	a, live := &agentCoverage{unnamed: true}, 0
	for i := range sets {
		a.nodes += int(sets[i].Status.DesiredNumberScheduled)
	}
	for i := range found {
		name := found[i].Name
		if holder := found[i].Spec.HolderIdentity; holder != nil {
			name = cmp.Or(*holder, name) // the node
		}
		since, ok := leaseRenewed(&found[i], now)
		if ok {
			live++
			a.addUnjudged(name, &found[i])
			continue
		}
		a.silent = append(a.silent, silentAgent{name, found[i].Spec.RenewTime == nil, since})
	}
	a.unwatched = max(0, a.nodes-live)
	return a
}

// unjudgedNode is a node of which the agent could not judge everything when it looked last.
type unjudgedNode struct {
	node string
	// parts is how many mounts and parts of the node; empty: the agent has not looked at it yet, or could not.
	parts string
}

func (a *agentCoverage) addUnjudged(node string, lease *coordinationv1.Lease) {
	switch value := lease.Labels[v1.LabelNotJudged]; value {
	case "":
	case v1.NothingJudged:
		a.unjudged = append(a.unjudged, unjudgedNode{node: node})
	default:
		a.unjudged = append(a.unjudged, unjudgedNode{node, printable.Line(value)})
	}
}

// unjudgedText says which nodes were not judged in full, with their counts if asked for. It is empty if all were. The last part is the
// command for the first of them.
func (a *agentCoverage) unjudgedText(counts bool) string {
	var names []string
	first := ""
	for _, n := range a.unjudged {
		name := n.node
		switch {
		case n.parts != "":
			first = cmp.Or(first, n.node)
			if counts {
				name += " (" + n.parts + " mounts or parts)"
			}
		case counts:
			name += " (not looked at)"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	text := verb.Count(len(names), "node") + " could not be judged in full: " + joinNames(names)
	if first != "" {
		text += "; kubectl kubediag run node/" + first + ", or the log of its agent, says why"
	}
	return text
}

// silentAgent is the agent of a node that has not renewed its Lease for a time, or never.
type silentAgent struct {
	node  string
	never bool
	since string
}

func (s silentAgent) String() string {
	if s.never {
		return s.node + " (agent that has never renewed its Lease)"
	}
	return s.node + " (agent silent for " + s.since + ")"
}

// text says which nodes are not watched, with silent agents as silent describes them. It is empty if all nodes are.
func (a *agentCoverage) text(silent func(silentAgent) string) string {
	if a.unnamed && a.nodes == 0 {
		return "no node is watched: the DaemonSet of agents is there for 0 nodes"
	}
	if a.unwatched == 0 {
		return ""
	}
	are := "are"
	if a.unwatched == 1 {
		are = "is"
	}
	text := fmt.Sprintf("%d of %d nodes %s not watched", a.unwatched, a.nodes, are)
	var names []string
	for _, name := range a.without {
		names = append(names, name+" (no agent)")
	}
	for _, agent := range a.silent {
		names = append(names, silent(agent))
	}
	switch {
	case len(names) == 0:
		return text
	case a.unnamed:
		return text + "; the last agents that were heard: " + joinNames(names)
	}
	return text + ": " + joinNames(names)
}

// watchCheck finds out whether the agents look for faults.
type watchCheck struct {
	api *client
	// home is the namespace of kubediag.
	home string
	// node is the only node that counts; empty: all.
	node string
}

// problemsInterval is the time between two looks at the agents while faults are followed.
const problemsInterval = 30 * time.Second

// watchProblem is a reason why faults may be missed. It is the same problem as long as key is: the text may have times in it.
type watchProblem struct{ key, text string }

// fixedProblem is a problem whose text does not change.
func fixedProblem(text string) watchProblem { return watchProblem{text, text} }

// followProblems asks for the problems again and again, until ctx ends. It reports those that are new, and when there are no more.
// It returns the last answer.
func followProblems(ctx context.Context, ask func(context.Context) ([]watchProblem, error), known []watchProblem,
	report func(mark string, colour terminal.Colour, text string)) []watchProblem {
	ticker := time.NewTicker(problemsInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return known
		case <-ticker.C:
		}
		now, err := ask(ctx)
		switch {
		case ctx.Err() != nil:
			return known
		case err != nil: // such as that of a node that was deleted
			now = []watchProblem{fixedProblem(err.Error())}
		}
		for _, problem := range now {
			if !slices.ContainsFunc(known, func(earlier watchProblem) bool { return earlier.key == problem.key }) {
				report("!", terminal.Yellow, problem.text)
			}
		}
		if len(known) > 0 && len(now) == 0 {
			report("✓", terminal.Green, "all nodes are watched again")
		}
		known = now
	}
}

// problems lists the nodes that are not watched, or why they are not known. It returns an error if the node does not exist.
func (w watchCheck) problems(ctx context.Context) (list []watchProblem, err error) {
	if w.node != "" {
		err := w.api.server.Get(ctx, ctrlclient.ObjectKey{Name: w.node}, &corev1.Node{})
		if err != nil && !errors.Is(err, verb.ErrRefused) {
			return nil, err
		}
	}
	now := time.Now()
	var found coordinationv1.LeaseList
	if err := w.api.server.List(ctx, &found, ctrlclient.InNamespace(w.home), ctrlclient.HasLabels{v1.LabelAgent}); err != nil {
		return []watchProblem{fixedProblem(w.unknownText(err))}, nil
	}
	var sets appsv1.DaemonSetList
	setsErr := w.api.server.List(ctx, &sets, ctrlclient.InNamespace(w.home), ctrlclient.MatchingLabels{componentLabel: "agent"})
	names, err := w.nodeNames(ctx)
	var a *agentCoverage
	switch {
	case err == nil:
		a = compareNodes(names, found.Items, now)
	case setsErr != nil:
		return []watchProblem{fixedProblem(w.unknownText(err))}, nil //nolint:nilerr // it is said
	case len(sets.Items) == 0:
		return []watchProblem{fixedProblem("no node is watched by a DaemonSet: there is none of agents in namespace " + w.home)}, nil
	default:
		a = compareDaemonSets(sets.Items, found.Items, now)
	}
	if text := a.text(silentAgent.String); text != "" {
		list = append(list, watchProblem{a.text(func(s silentAgent) string { return s.node }), text})
	}
	if text := a.unjudgedText(true); text != "" {
		list = append(list, watchProblem{a.unjudgedText(false), text})
	}
	for i := range sets.Items {
		if sentinelModeOf(&sets.Items[i]) == sentinelOff {
			list = append(list, fixedProblem(fmt.Sprintf("the sentinel of DaemonSet %s/%s is off: its agents look for no fault by themselves",
				w.home, sets.Items[i].Name)))
		}
	}
	return list, nil
}

// nodesAndAgents are the nodes, and of each that is not watched in full why.
func (w watchCheck) nodesAndAgents(ctx context.Context) (names []string, unwatched map[string]string, err error) {
	if names, err = w.nodeNames(ctx); err != nil {
		return nil, nil, err
	}
	var found coordinationv1.LeaseList
	if err := w.api.server.List(ctx, &found, ctrlclient.InNamespace(w.home), ctrlclient.HasLabels{v1.LabelAgent}); err != nil {
		return names, nil, err
	}
	a := compareNodes(names, found.Items, time.Now())
	unwatched = map[string]string{}
	for _, n := range a.unjudged {
		unwatched[n.node] = "its agent has not looked at it"
		if n.parts != "" {
			unwatched[n.node] = n.parts + " mounts or parts not judged"
		}
	}
	for _, name := range a.without {
		unwatched[name] = "not watched: no agent"
	}
	for _, agent := range a.silent {
		unwatched[agent.node] = "not watched: agent silent for " + agent.since
		if agent.never {
			unwatched[agent.node] = "not watched: its agent has never renewed its Lease"
		}
	}
	return names, unwatched, nil
}

// unknownText says why it is not known which nodes are watched.
func (w watchCheck) unknownText(err error) string {
	text := "it is not known which nodes are watched: " + err.Error()
	if errors.Is(err, verb.ErrRefused) {
		text += "; Role " + leaseReader + " of namespace " + w.home + " gives the right to see it"
	}
	return text
}

// nodeNames are the nodes that can have an agent. Only their metadata is read.
func (w watchCheck) nodeNames(ctx context.Context) (names []string, err error) {
	if w.node != "" {
		return []string{w.node}, nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(nodeKind)
	if err := w.api.server.List(ctx, list, &ctrlclient.ListOptions{Raw: &metav1.ListOptions{LabelSelector: corev1.LabelOSStable + "!=windows"}}); err != nil {
		return nil, err
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// problemTexts are the texts of problems.
func problemTexts(list []watchProblem) (texts []string) {
	for _, p := range list {
		texts = append(texts, p.text)
	}
	return texts
}
