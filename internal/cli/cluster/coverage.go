// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
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
)

// defaultHome is the namespace that kubediag is installed in if no flag says another.
const defaultHome = "kubediag"

// homeFlags are the flags of a line to paste that name kubediag's namespace.
func homeFlags(home string) []string {
	if home == "" || home == defaultHome {
		return nil
	}
	return []string{"--kubediag-namespace=" + home}
}

// leaseReader is the Role in kubediag's namespace that allows to see which nodes are watched.
const leaseReader = "kubediag-lease-reader"

// agentCoverage is how many nodes the agents watch.
type agentCoverage struct {
	nodes, unwatched int
	// without are the nodes with no agent, and silent those whose agent does not renew its Lease, with the time since the last
	// renewal.
	without, silent []string
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
			a.silent = append(a.silent, silentText(name, lease, since))
		}
		if lease.Labels[v1.LabelPages] != "" {
			a.pages = append(a.pages, name)
		}
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
		since, ok := leaseRenewed(&found[i], now)
		if ok {
			live++
			continue
		}
		name := found[i].Name
		if holder := found[i].Spec.HolderIdentity; holder != nil {
			name = cmp.Or(*holder, name) // the node
		}
		a.silent = append(a.silent, silentText(name, &found[i], since))
	}
	a.unwatched = max(0, a.nodes-live)
	return a
}

// silentText describes a node whose agent has not renewed its Lease.
func silentText(node string, l *coordinationv1.Lease, since string) string {
	if l.Spec.RenewTime == nil {
		return node + " (agent that has never renewed its Lease)"
	}
	return node + " (agent silent for " + since + ")"
}

// text says which nodes are not watched. It is empty if all are.
func (a *agentCoverage) text() string {
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
	names = append(names, a.silent...)
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

// silence is how long an agent has been silent, in a problem. It grows from one look to the next.
var silence = regexp.MustCompile(`silent for [^) ]+`)

// followProblems asks for the problems again and again, until ctx ends. It reports those that are new, and when there are no more.
// It returns the last answer.
func followProblems(ctx context.Context, ask func(context.Context) ([]string, error), known []string,
	report func(mark string, colour terminal.Colour, text string)) []string {
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
			now = []string{err.Error()}
		}
		for _, problem := range now {
			had := func(earlier string) bool {
				return silence.ReplaceAllString(earlier, "") == silence.ReplaceAllString(problem, "")
			}
			if !slices.ContainsFunc(known, had) {
				report("!", terminal.Yellow, problem)
			}
		}
		if len(known) > 0 && len(now) == 0 {
			report("✓", terminal.Green, "all nodes are watched again")
		}
		known = now
	}
}

// problems lists the nodes that are not watched, or why they are not known. It returns an error if the node does not exist.
func (w watchCheck) problems(ctx context.Context) (list []string, err error) {
	if w.node != "" {
		err := w.api.server.Get(ctx, ctrlclient.ObjectKey{Name: w.node}, &corev1.Node{})
		if err != nil && !errors.Is(err, verb.ErrRefused) {
			return nil, err
		}
	}
	now := time.Now()
	var found coordinationv1.LeaseList
	if err := w.api.server.List(ctx, &found, ctrlclient.InNamespace(w.home), ctrlclient.HasLabels{v1.LabelAgent}); err != nil {
		return []string{w.unknownText(err)}, nil
	}
	var sets appsv1.DaemonSetList
	setsErr := w.api.server.List(ctx, &sets, ctrlclient.InNamespace(w.home), ctrlclient.MatchingLabels{componentLabel: "agent"})
	names, err := w.nodeNames(ctx)
	var a *agentCoverage
	switch {
	case err == nil:
		a = compareNodes(names, found.Items, now)
	case setsErr != nil:
		return []string{w.unknownText(err)}, nil //nolint:nilerr // it is said
	case len(sets.Items) == 0:
		return []string{"no node is watched by a DaemonSet: there is none of agents in namespace " + w.home}, nil
	default:
		a = compareDaemonSets(sets.Items, found.Items, now)
	}
	if text := a.text(); text != "" {
		list = append(list, text)
	}
	for i := range sets.Items {
		if sentinelModeOf(&sets.Items[i]) == sentinelOff {
			list = append(list, fmt.Sprintf("the sentinel of DaemonSet %s/%s is off: its agents look for no fault by themselves", w.home, sets.Items[i].Name))
		}
	}
	return list, nil
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
