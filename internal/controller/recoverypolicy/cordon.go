// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/policy"
)

const (
	// nodeRetry is the time from one check of a node to the next, and nodesAtOnce is the number of checks in one pass.
	nodeRetry, nodesAtOnce = time.Minute, 5
	// repeatWould is the time between two Events that a node would be cordoned.
	repeatWould = 30 * time.Minute
)

// cordonRecord is the annotation of a node that was cordoned.
type cordonRecord struct {
	// Policies names the policies that cordoned the node, and Faults counts the pods by the codes of their faults.
	Policies []string       `json:"policies"`
	Faults   map[string]int `json:"faults"`
	// Time of the cordon. The node is not cordoned again while faults remain that began before it.
	Time metav1.Time `json:"time"`
}

// recordOf reads the annotation of a node, or returns nil. An unreadable record has no policies.
func recordOf(annotations map[string]string) *cordonRecord {
	text := annotations[v1.AnnotationCordoned]
	if text == "" {
		return nil
	}
	c := &cordonRecord{}
	if err := json.Unmarshal([]byte(text), c); err != nil {
		return &cordonRecord{}
	}
	return c
}

// cordonFault is a fault that counts for a cordon, with the conditions of the policies that select it.
type cordonFault struct {
	fault     *v1.MountFault
	cordon    policy.Cordon
	selecting []*policy.Policy
}

// enoughToCordon returns faults of a node that are enough for its cordon: they are of as many pods as the policies of each require.
// The result is empty if they are not enough.
func enoughToCordon(faults []cordonFault) []cordonFault {
	faults = slices.SortedStableFunc(slices.Values(faults), func(a, b cordonFault) int { return cmp.Compare(a.cordon.Pods, b.cordon.Pods) })
	pods, most := map[types.UID]bool{}, 0
	for i, f := range faults {
		pods[f.fault.Status.Pod.UID] = true
		if len(pods) >= f.cordon.Pods {
			most = i + 1
		}
	}
	return faults[:most]
}

// cordonOne cordons at most one node for the policy. held says which bound prevents a cordon; empty if no bound does.
func (r *Reconciler) cordonOne(ctx context.Context, e *pass) (held string, err error) {
	candidates := map[string][]cordonFault{} // that the policy may cordon by the MountFaults of their agents
	for i := range e.faults {
		f := &e.faults[i]
		recovery := f.Status.Recovery
		if recovery == nil || !slices.Contains(recovery.Policies, e.policy.Object.Name) || recovery.Mode == v1.RecoveryObserve || f.Status.Pod == nil {
			continue
		}
		var selecting []*policy.Policy
		for _, name := range recovery.Policies {
			if other := e.policies[name]; other != nil {
				selecting = append(selecting, other)
			}
		}
		if c, ok := policy.CordonOf(selecting); ok && e.now.Sub(f.Status.Since.Time) >= c.After {
			candidates[f.Status.Node] = append(candidates[f.Status.Node], cordonFault{f, c, selecting})
		}
	}
	maps.DeleteFunc(candidates, func(_ string, faults []cordonFault) bool { return len(enoughToCordon(faults)) == 0 })
	if len(candidates) == 0 {
		return "", nil
	}
	nodes, err := r.nodeLabels(ctx, nodesAge)
	if err != nil {
		return "", err
	}
	e.nodes, e.records, e.cordoned, e.bounds = len(nodes), maps.Clone(r.records), map[string]bool{}, map[string]string{}
	err = r.eachNode(ctx, func(n *metav1.PartialObjectMetadata) {
		e.records[n.Name], e.cordoned[n.Name] = recordOf(n.Annotations), true
	}, client.MatchingFields{"spec.unschedulable": "true"})
	if err != nil {
		return "", err
	}
	maps.DeleteFunc(candidates, func(node string, _ []cordonFault) bool { return e.cordoned[node] })
	for _, name := range slices.Sorted(maps.Keys(candidates)) {
		if why := e.cordonBound(policiesOf(enoughToCordon(candidates[name]))); why != "" {
			held = cmp.Or(held, why)
			delete(candidates, name)
		}
	}
	if r.checks == nil {
		r.checks = nodeChecks{}
	}
	for _, name := range r.checks.due(e.policy.Object.Name, slices.Sorted(maps.Keys(candidates)), e.now) {
		done, why, err := r.checkAndCordon(ctx, e, name, candidates[name])
		held = cmp.Or(held, why)
		if done || err != nil {
			return held, err
		}
	}
	return held, nil
}

// cordonBound says which bound forbids that policies cordon another node; empty if no bound does.
func (e *pass) cordonBound(policies []*policy.Policy) string {
	if e.nodes-len(e.cordoned) <= 1 {
		return "no node is cordoned: it would be the last one that is schedulable"
	}
	for _, p := range policies {
		why, known := e.bounds[p.Object.Name]
		if !known {
			var of []string
			for _, name := range slices.Sorted(maps.Keys(e.records)) {
				switch c := e.records[name]; {
				case c == nil || len(c.Policies) > 0 && !slices.Contains(c.Policies, p.Object.Name): // an unreadable record counts for each policy
				case e.cordoned[name]:
					of = append(of, name)
				case e.oldFaultsRemain(name, c, p.Object.Name):
					of = append(of, name+" (uncordoned since, and faults from before remain)")
				}
			}
			if most := p.Object.Spec.Cordon().Nodes(); len(of) >= most {
				why = fmt.Sprintf("no other node is cordoned: policy %s has cordoned %s, and its maximumNodes is %d", p.Object.Name,
					strings.Join(of[:min(len(of), 3)], ", "), most)
			}
			e.bounds[p.Object.Name] = why
		}
		if why != "" {
			return why
		}
	}
	return ""
}

// oldFaultsRemain reports whether a node has faults from before its cordon, which a person has ended since. The person has seen the
// faults, and a policy does not go on to the next node.
func (e *pass) oldFaultsRemain(node string, c *cordonRecord, policy string) bool {
	return slices.ContainsFunc(e.faults, func(f v1.MountFault) bool {
		return f.Status.Node == node && f.Status.Recovery != nil && slices.Contains(f.Status.Recovery.Policies, policy) &&
			!f.Status.Since.After(c.Time.Time)
	})
}

// nodeCheck is when a node was last checked for a policy, and when an Event last said that the policy would cordon it.
type nodeCheck struct{ checked, announced time.Time }

// nodeChecks has the last check by policy and node.
type nodeChecks map[string]nodeCheck

func checkKey(policy, node string) string { return policy + "/" + node }

// due returns the nodes to check in this pass: first those that have waited longest.
func (t nodeChecks) due(policy string, names []string, now time.Time) []string {
	maps.DeleteFunc(t, func(_ string, last nodeCheck) bool { return now.Sub(last.checked).Abs() > 2*repeatWould })
	names = slices.DeleteFunc(names, func(name string) bool {
		return now.Sub(t[checkKey(policy, name)].checked).Abs() < nodeRetry
	})
	slices.SortStableFunc(names, func(a, b string) int {
		return t[checkKey(policy, a)].checked.Compare(t[checkKey(policy, b)].checked)
	})
	return names[:min(len(names), nodesAtOnce)]
}

// checkAndCordon reads a node and its faults from the API server, and cordons the node if that is still due.
func (r *Reconciler) checkAndCordon(ctx context.Context, e *pass, name string, faults []cordonFault) (done bool, held string, err error) {
	key := checkKey(e.policy.Object.Name, name)
	r.checks[key] = nodeCheck{e.now, r.checks[key].announced}
	node := &corev1.Node{}
	if err := r.Reader.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return false, "", client.IgnoreNotFound(err)
	}
	record := recordOf(node.Annotations)
	if node.Spec.Unschedulable || record != nil && (len(record.Policies) == 0 || e.oldFaultsRemain(name, record, e.policy.Object.Name)) {
		return false, "", nil
	}
	allowed, shown, err := e.decideNow(ctx, node, faults)
	switch {
	case err != nil || len(shown) == 0:
		return false, "", err
	case len(allowed) == 0:
		if e.now.Sub(r.checks[key].announced).Abs() >= repeatWould {
			r.checks[key] = nodeCheck{e.now, e.now}
			r.announceCordon(e.policy, name, shown, false)
		}
		return false, "", nil
	}
	policies := policiesOf(allowed)
	if held = e.cordonBound(policies); held != "" {
		return false, held, nil
	}
	record = &cordonRecord{Faults: podsByCode(allowed), Time: metav1.NewTime(e.now.Truncate(time.Second))}
	for _, p := range policies {
		record.Policies = append(record.Policies, p.Object.Name)
	}
	text, err := json.Marshal(record)
	if err != nil {
		return false, "", fmt.Errorf("writing annotation of node %s: %w", name, err)
	}
	before := client.MergeFromWithOptions(node.DeepCopy(), client.MergeFromWithOptimisticLock{}) // not if it has changed since
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1.AnnotationCordoned, string(text))
	node.Spec.Unschedulable = true
	err = r.Client.Patch(ctx, node, before)
	changed := apierrors.IsConflict(err) || apierrors.IsNotFound(err)
	if apierrors.IsForbidden(err) {
		r.right = right{r.Clock.Now(), "no node is cordoned: " + err.Error()}
	}
	if err != nil && !changed {
		return false, "", fmt.Errorf("cordoning node %s: %w", name, err)
	}
	r.listed = time.Time{} // the node has a record that is not in the list
	if changed {
		return false, "", nil
	}
	delete(r.checks, key)
	nodeCordons.Inc()
	r.announceCordon(e.policy, name, allowed, true)
	return true, "", nil
}

// policiesOf returns the policies of all faults, in the order of their names.
func policiesOf(faults []cordonFault) []*policy.Policy {
	found := map[string]*policy.Policy{}
	for _, f := range faults {
		for _, p := range f.selecting {
			found[p.Object.Name] = p
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *policy.Policy) int { return strings.Compare(a.Object.Name, b.Object.Name) })
}

// podsByCode counts pods by the codes of their faults.
func podsByCode(faults []cordonFault) map[string]int {
	type one struct {
		code string
		pod  types.UID
	}
	seen, counts := map[one]bool{}, map[string]int{}
	for _, f := range faults {
		if key := (one{f.fault.Status.Code, f.fault.Status.Pod.UID}); !seen[key] {
			seen[key] = true
			counts[f.fault.Status.Code]++
		}
	}
	return counts
}
