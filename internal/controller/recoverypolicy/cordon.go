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

// cordonOne cordons at most one node for the policy, or shows in modes that change nothing which node it would cordon. held says which bound prevents
// a cordon; empty if no bound does.
func (r *Reconciler) cordonOne(ctx context.Context, e *pass) (held string, err error) {
	p := e.policy
	automatic := p.Object.Spec.Mode == v1.RecoveryAutomatic
	if p.Object.Spec.Cordon() == nil || len(p.Problems) > 0 || p.Object.Spec.Paused || !p.Acts() || automatic && !r.mayCordon(ctx) {
		return "", nil
	}
	candidates, held, err := r.cordonCandidates(ctx, e)
	if err != nil || len(candidates) == 0 {
		return held, err
	}
	if r.checks == nil {
		r.checks = nodeChecks{}
	}
	for _, name := range r.checks.due(p.Object.Name, slices.Sorted(maps.Keys(candidates)), e.now) {
		check := checkKey(p.Object.Name, name)
		r.checks[check] = nodeCheck{e.now, r.checks[check].announced}
		node, err := r.readNode(ctx, e, name)
		if err != nil {
			return held, err
		}
		if node == nil {
			continue
		}
		allowed, shown, err := e.decideNow(ctx, node, candidates[name])
		if err != nil {
			return held, err
		}
		if len(allowed) == 0 {
			if len(shown) > 0 && e.now.Sub(r.checks[check].announced).Abs() >= repeatWould {
				r.checks[check] = nodeCheck{e.now, e.now}
				r.announceCordon(p, name, shown, false)
			}
			continue
		}
		if why := e.cordonBound(policiesOf(allowed)); why != "" {
			held = cmp.Or(held, why)
			continue
		}
		done, err := r.cordonNode(ctx, e, node, allowed)
		if err != nil {
			return held, err
		}
		if done {
			delete(r.checks, check)
			nodeCordons.Inc()
			r.announceCordon(p, name, allowed, true)
			return held, nil
		}
	}
	return held, nil
}

// cordonCandidates returns the faults of each node that the policy may cordon by the MountFaults of their agents, and the nodes of the cache. held says
// which bound prevents the cordon of another node.
func (r *Reconciler) cordonCandidates(ctx context.Context, e *pass) (candidates map[string][]cordonFault, held string, err error) {
	candidates = map[string][]cordonFault{}
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
		return nil, "", nil
	}
	nodes, err := r.nodeLabels(ctx, nodesAge)
	if err != nil {
		return nil, "", err
	}
	e.nodes, e.records, e.cordoned, e.bounds = len(nodes), maps.Clone(r.records), map[string]bool{}, map[string]string{}
	err = r.eachNode(ctx, func(n *metav1.PartialObjectMetadata) {
		e.records[n.Name], e.cordoned[n.Name] = recordOf(n.Annotations), true
	}, client.MatchingFields{"spec.unschedulable": "true"})
	if err != nil {
		return nil, "", err
	}
	maps.DeleteFunc(candidates, func(node string, _ []cordonFault) bool { return e.cordoned[node] })
	for _, name := range slices.Sorted(maps.Keys(candidates)) {
		if why := e.cordonBound(policiesOf(enoughToCordon(candidates[name]))); why != "" {
			held = cmp.Or(held, why)
			delete(candidates, name)
		}
	}
	return candidates, held, nil
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

// readNode reads a node from the API server itself. It returns nil if the node is gone or is not to be cordoned any more.
func (r *Reconciler) readNode(ctx context.Context, e *pass, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := r.Reader.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	record := recordOf(node.Annotations)
	if node.Spec.Unschedulable || record != nil && (len(record.Policies) == 0 || e.oldFaultsRemain(name, record, e.policy.Object.Name)) {
		return nil, nil
	}
	return node, nil
}

// cordonNode cordons a node for these faults, unless it has changed since it was read.
func (r *Reconciler) cordonNode(ctx context.Context, e *pass, node *corev1.Node, faults []cordonFault) (done bool, err error) {
	record := &cordonRecord{Faults: podsByCode(faults), Time: metav1.NewTime(e.now.Truncate(time.Second))}
	for _, p := range policiesOf(faults) {
		record.Policies = append(record.Policies, p.Object.Name)
	}
	text, err := json.Marshal(record)
	if err != nil {
		return false, fmt.Errorf("writing annotation of node %s: %w", node.Name, err)
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
		return false, fmt.Errorf("cordoning node %s: %w", node.Name, err)
	}
	r.listed = time.Time{} // the node has a record that is not in the list
	return !changed, nil
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
