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
	// nodeRetry is how long after a look at a node it is looked at again, and nodesAtOnce how many are in one pass.
	nodeRetry, nodesAtOnce = time.Minute, 5
	// repeatWould is how long after an Event that a node would be cordoned there is another one.
	repeatWould = 30 * time.Minute
)

// cordonRecord is what an annotation of a node says about its cordon.
type cordonRecord struct {
	// Policies are the names of the policies that wanted it, and Faults counts the pods by the codes of their faults.
	Policies []string       `json:"policies"`
	Faults   map[string]int `json:"faults"`
	// Time of the cordon. There is no other one of the node while faults remain that began before it.
	Time metav1.Time `json:"time"`
}

// recordOf reads the annotation of a node, or returns nil. One that cannot be read has no policies.
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

// by reports whether a policy has cordoned the node. A record that cannot be read counts for each.
func (c *cordonRecord) by(policy string) bool {
	return c != nil && (len(c.Policies) == 0 || slices.Contains(c.Policies, policy))
}

// lasting is a fault that counts for a cordon, and the conditions of its policies.
type lasting struct {
	*v1.MountFault
	policy.Cordon
	selecting []*policy.Policy
}

// enough returns faults of a node that are enough for its cordon: they are of as many pods as the policies of each ask for. Without any,
// they are not enough.
func enough(faults []lasting) []lasting {
	faults = slices.SortedStableFunc(slices.Values(faults), func(a, b lasting) int { return cmp.Compare(a.Pods, b.Pods) })
	pods, most := map[types.UID]bool{}, 0
	for i, f := range faults {
		pods[f.Status.Pod.UID] = true
		if len(pods) >= f.Pods {
			most = i + 1
		}
	}
	return faults[:most]
}

// crowded returns the nodes that a policy has cordoned, as far as their agents have written it, with their faults.
func crowded(p *policy.Policy, all map[string]*policy.Policy, faults []v1.MountFault, now time.Time) map[string][]lasting {
	nodes := map[string][]lasting{}
	for i := range faults {
		f := &faults[i]
		r := f.Status.Recovery
		if r == nil || !slices.Contains(r.Policies, p.Name) || r.Mode == v1.RecoveryObserve || f.Status.Pod == nil {
			continue
		}
		var selecting []*policy.Policy
		for _, name := range r.Policies {
			if other := all[name]; other != nil {
				selecting = append(selecting, other)
			}
		}
		if c, ok := policy.CordonOf(selecting); ok && now.Sub(f.Status.Since.Time) >= c.After {
			nodes[f.Status.Node] = append(nodes[f.Status.Node], lasting{f, c, selecting})
		}
	}
	maps.DeleteFunc(nodes, func(_ string, faults []lasting) bool { return len(enough(faults)) == 0 })
	return nodes
}

// cordon cordons one node that the policy wants cordoned, if there is one. held says which bound forbids it; empty: none does.
func (r *Reconciler) cordon(ctx context.Context, e *pass) (held string, err error) {
	candidates := crowded(e.policy, e.policies, e.faults, e.now)
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
	maps.DeleteFunc(candidates, func(node string, _ []lasting) bool { return e.cordoned[node] })
	for _, name := range slices.Sorted(maps.Keys(candidates)) {
		if why := e.bound(policiesOf(enough(candidates[name]))); why != "" {
			held = cmp.Or(held, why)
			delete(candidates, name)
		}
	}
	if r.tries == nil {
		r.tries = tries{}
	}
	for _, name := range r.tries.due(e.policy.Name, slices.Sorted(maps.Keys(candidates)), e.now) {
		done, why, err := r.cordonNode(ctx, e, name, candidates[name])
		held = cmp.Or(held, why)
		if done || err != nil {
			return held, err
		}
	}
	return held, nil
}

// bound says which bound forbids that policies cordon another node; empty: none does.
func (e *pass) bound(policies []*policy.Policy) string {
	if e.nodes-len(e.cordoned) <= 1 {
		return "no node is cordoned: it would be the last one that is schedulable"
	}
	for _, p := range policies {
		why, known := e.bounds[p.Name]
		if !known {
			why = e.maximum(p)
			e.bounds[p.Name] = why
		}
		if why != "" {
			return why
		}
	}
	return ""
}

// maximum says that a policy has as many nodes cordoned as it may; empty: it has not.
func (e *pass) maximum(p *policy.Policy) string {
	var of []string
	for _, name := range slices.Sorted(maps.Keys(e.records)) {
		switch c := e.records[name]; {
		case c.by(p.Name) && e.cordoned[name]:
			of = append(of, name)
		case c.by(p.Name) && e.remain(name, c, p.Name):
			of = append(of, name+" (uncordoned since, and faults from before remain)")
		}
	}
	most := p.Spec.Cordon().Nodes()
	if len(of) < most {
		return ""
	}
	return fmt.Sprintf("no other node is cordoned: policy %s has cordoned %s, and its maximumNodes is %d", p.Name,
		strings.Join(of[:min(len(of), 3)], ", "), most)
}

// remain reports whether faults are there from before a cordon that a person has ended since. The person has seen them, and a policy
// does not go on to the next node.
func (e *pass) remain(node string, c *cordonRecord, policy string) bool {
	return slices.ContainsFunc(e.faults, func(f v1.MountFault) bool {
		return f.Status.Node == node && f.Status.Recovery != nil && slices.Contains(f.Status.Recovery.Policies, policy) &&
			!f.Status.Since.After(c.Time.Time)
	})
}

// try is when a node was looked at last for a policy, and when an Event said that the policy would cordon it.
type try struct{ looked, said time.Time }

// tries has the last try by policy and node.
type tries map[string]try

func tryKey(policy, node string) string { return policy + "/" + node }

// due returns the nodes that are to be looked at in this pass: those first that have waited longest.
func (t tries) due(policy string, names []string, now time.Time) []string {
	maps.DeleteFunc(t, func(_ string, last try) bool { return now.Sub(last.looked).Abs() > 2*repeatWould })
	names = slices.DeleteFunc(names, func(name string) bool {
		return now.Sub(t[tryKey(policy, name)].looked).Abs() < nodeRetry
	})
	slices.SortStableFunc(names, func(a, b string) int {
		return t[tryKey(policy, a)].looked.Compare(t[tryKey(policy, b)].looked)
	})
	return names[:min(len(names), nodesAtOnce)]
}

// cordonNode looks at a node and its faults as the API server has them, and cordons it if that is still due.
func (r *Reconciler) cordonNode(ctx context.Context, e *pass, name string, faults []lasting) (done bool, held string, err error) {
	key := tryKey(e.policy.Name, name)
	r.tries[key] = try{e.now, r.tries[key].said}
	node := &corev1.Node{}
	if err := r.Reader.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return false, "", client.IgnoreNotFound(err)
	}
	record := recordOf(node.Annotations)
	if node.Spec.Unschedulable || record != nil && (len(record.Policies) == 0 || e.remain(name, record, e.policy.Name)) {
		return false, "", nil
	}
	allowed, shown, err := e.confirm(ctx, node, faults)
	switch {
	case err != nil || len(shown) == 0:
		return false, "", err
	case len(allowed) == 0:
		if e.now.Sub(r.tries[key].said).Abs() >= repeatWould {
			r.tries[key] = try{e.now, e.now}
			r.sayCordon(e.policy, node.Name, shown, false)
		}
		return false, "", nil
	}
	if held = e.bound(policiesOf(allowed)); held != "" {
		return false, held, nil
	}
	done, err = r.write(ctx, node, newRecord(allowed, e.now))
	if done {
		delete(r.tries, key)
		nodeCordons.Inc()
		r.sayCordon(e.policy, node.Name, allowed, true)
	}
	return done, "", err
}

// write cordons a node, unless it has changed since it was read.
func (r *Reconciler) write(ctx context.Context, node *corev1.Node, c *cordonRecord) (done bool, err error) {
	text, err := json.Marshal(c)
	if err != nil {
		return false, fmt.Errorf("writing annotation of node %s: %w", node.Name, err)
	}
	before := client.MergeFromWithOptions(node.DeepCopy(), client.MergeFromWithOptimisticLock{})
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1.AnnotationCordoned, string(text))
	node.Spec.Unschedulable = true
	err = r.Client.Patch(ctx, node, before)
	if apierrors.IsForbidden(err) {
		r.right = right{r.Clock.Now(), "no node is cordoned: " + err.Error()}
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("cordoning node %s: %w", node.Name, err)
	}
	r.listed = time.Time{} // the node has a record that is not in the list
	return err == nil, nil
}

// newRecord says why a node is cordoned.
func newRecord(faults []lasting, now time.Time) *cordonRecord {
	c := &cordonRecord{Faults: podsByCode(faults), Time: metav1.NewTime(now.Truncate(time.Second))}
	for _, p := range policiesOf(faults) {
		c.Policies = append(c.Policies, p.Name)
	}
	return c
}

// policiesOf returns the policies of all faults, in the order of their names.
func policiesOf(faults []lasting) []*policy.Policy {
	found := map[string]*policy.Policy{}
	for _, f := range faults {
		for _, p := range f.selecting {
			found[p.Name] = p
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *policy.Policy) int { return strings.Compare(a.Name, b.Name) })
}

// podsByCode counts pods by the codes of their faults.
func podsByCode(faults []lasting) map[string]int {
	type one struct {
		code string
		pod  types.UID
	}
	seen, counts := map[one]bool{}, map[string]int{}
	for _, f := range faults {
		if key := (one{f.Status.Code, f.Status.Pod.UID}); !seen[key] {
			seen[key] = true
			counts[f.Status.Code]++
		}
	}
	return counts
}
