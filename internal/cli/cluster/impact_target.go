// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/fault"
)

// impactForms are how a target of impact is written.
const impactForms = "ds/NAME, node/NAME or pvc/NAME"

// impactQuestion is the subject of impact.
type impactQuestion struct {
	target string   // as it is shown
	event  string   // the end of the daemons, in words
	nodes  []string // in order
	// driver are the UIDs of the pods whose daemons end; nil: every daemon ends.
	driver map[string]bool
	// claim is the volume of the pods of a claim, and pods are their UIDs. Empty: every volume.
	claim string
	pods  map[string]bool
}

// impactQuestion reads the target that an argument means, and finds its nodes.
func (c *client) impactQuestion(ctx context.Context, argument string) (*impactQuestion, error) {
	kind, name, _ := strings.Cut(argument, "/")
	if name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q: must be %s", argument, impactForms)
	}
	switch kind {
	case "ds", "daemonset", "daemonsets":
		set := &appsv1.DaemonSet{}
		if err := c.server.Get(ctx, c.keyOf(name), set); err != nil {
			return nil, err
		}
		selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
		if err != nil {
			return nil, fmt.Errorf("read selector of DaemonSet %s/%s: %w", set.Namespace, name, err)
		}
		title := "DaemonSet " + c.namespace + "/" + name
		q := &impactQuestion{target: title, event: "the pods of " + title + " end", driver: map[string]bool{}}
		return q, c.addPods(ctx, q, q.driver, func(p *corev1.Pod) bool { return metav1.IsControlledBy(p, set) },
			ctrlclient.MatchingLabelsSelector{Selector: selector})
	case "node", "nodes", "no":
		q := &impactQuestion{target: "node " + name, event: "the daemons of node " + name + " end", nodes: []string{name}}
		return q, targetFinder{api: c}.objectExists(ctx, "", name, &corev1.Node{})
	case "pvc", "persistentvolumeclaim", "persistentvolumeclaims":
		claim := &corev1.PersistentVolumeClaim{}
		if err := c.server.Get(ctx, c.keyOf(name), claim); err != nil {
			return nil, err
		}
		if claim.Spec.VolumeName == "" {
			return nil, fmt.Errorf("pvc/%s: it is not bound to a volume", name)
		}
		title := "claim " + c.namespace + "/" + name
		q := &impactQuestion{target: title, event: "the daemons of " + title + " end", claim: claim.Spec.VolumeName, pods: map[string]bool{}}
		return q, c.addPods(ctx, q, q.pods, func(p *corev1.Pod) bool { return usesClaim(p, name) })
	}
	return nil, fmt.Errorf("%q: must be %s", argument, impactForms)
}

// addPods adds the pods in the namespace of the call that are meant, and the nodes on which they run.
func (c *client) addPods(ctx context.Context, q *impactQuestion, uids map[string]bool, meant func(*corev1.Pod) bool, options ...ctrlclient.ListOption) error {
	var list corev1.PodList
	if err := c.server.List(ctx, &list, append(options, ctrlclient.InNamespace(c.namespace))...); err != nil {
		return err
	}
	for i := range list.Items {
		if p := &list.Items[i]; p.Spec.NodeName != "" && meant(p) {
			uids[string(p.UID)] = true
			q.nodes = append(q.nodes, p.Spec.NodeName)
		}
	}
	slices.Sort(q.nodes)
	if q.nodes = slices.Compact(q.nodes); len(q.nodes) == 0 {
		return fmt.Errorf("%s: no pod of it is on a node", q.target)
	}
	return nil
}

// loses reports whether the pod loses the volume when the daemons of the question end.
func (q *impactQuestion) loses(m fault.MountImpact) impactAnswer {
	ends := func(d fault.ServingDaemon) bool { return q.driver == nil || q.driver[d.Pod.UID] }
	switch {
	case m.ServedBy == fault.ServedByKernel:
		return losesNot
	case slices.ContainsFunc(m.Daemons, ends), m.ServedBy == fault.ServedByDaemon && q.driver == nil:
		return loses
	case len(m.Daemons) == 0, slices.ContainsFunc(m.Daemons, func(d fault.ServingDaemon) bool { return d.PodUnknown != "" }):
		return mayLose
	}
	return losesNot
}
