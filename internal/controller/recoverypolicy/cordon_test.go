// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// cluster is an API server with nodes, pods that have faults, and a reconciler.
type cluster struct {
	client.Client
	r      *Reconciler
	clock  *testclock.FakeClock
	events *record.FakeRecorder
	// right is the answer about the manager's right, and asked how often it was asked for. refuse is the answer to a cordon,
	// and refuseList the one to a list of nodes.
	right      bool
	asked      int
	refuse     error
	refuseList error
	patches    int
}

// list knows the field by which nodes are listed that are cordoned.
func (c *cluster) list(ctx context.Context, next client.WithWatch, into client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	page, ok := into.(*metav1.PartialObjectMetadataList)
	if ok && c.refuseList != nil {
		return c.refuseList
	}
	if !ok || o.FieldSelector == nil || o.FieldSelector.String() != "spec.unschedulable=true" {
		return next.List(ctx, into, options...)
	}
	var nodes corev1.NodeList
	err := next.List(ctx, &nodes)
	for i := range nodes.Items {
		if nodes.Items[i].Spec.Unschedulable {
			page.Items = append(page.Items, metav1.PartialObjectMetadata{ObjectMeta: nodes.Items[i].ObjectMeta})
		}
	}
	return err
}

// patch is one of a node: the status of a policy has another function.
func (c *cluster) patch(ctx context.Context, next client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
	if c.patches++; c.refuse != nil {
		return c.refuse
	}
	return next.Patch(ctx, o, p, options...)
}

// accessOf is the part of a cluster that answers about rights.
type accessOf struct{ *cluster }

func (c accessOf) Create(_ context.Context, r *authorizationv1.SelfSubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error) {
	c.asked++
	if a := r.Spec.ResourceAttributes; a.Verb != "patch" || a.Resource != "nodes" || a.Group != "" {
		return nil, fmt.Errorf("asked for %+v", a)
	}
	r.Status.Allowed = c.right
	return r, nil
}

// newCluster has so many nodes, n1 and so on, and these objects.
func newCluster(t *testing.T, nodes int, objects ...client.Object) *cluster {
	t.Helper()
	for i := range nodes {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1)}})
	}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	c := &cluster{clock: testclock.NewFakeClock(noon), events: record.NewFakeRecorder(100), right: true}
	c.Client = kubeclienttest.Builder(t).WithObjects(objects...).WithStatusSubresource(&v1.RecoveryPolicy{}).
		WithInterceptorFuncs(interceptor.Funcs{List: c.list, Patch: c.patch}).Build()
	c.r = &Reconciler{Client: c.Client, Reader: c.Client, Events: c.events, Clock: c.clock, Every: Interval, Access: accessOf{c}}
	return c
}

// cordoning is a policy that cordons one node on which two pods have faults for ten minutes.
func cordoning(name string, change func(*v1.RecoveryPolicySpec)) *v1.RecoveryPolicy {
	p := &v1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.RecoveryPolicySpec{
		Mode: v1.RecoveryAutomatic, Escalation: &v1.RecoveryEscalation{Cordon: &v1.CordonEscalation{AfterSeconds: 600, MinimumPods: number(2)}},
	}}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

// onNode are pods of a node, each with a fault since ten minutes that policies select.
func onNode(node string, pods int, policies ...string) (objects []client.Object) {
	for i := range pods {
		name := fmt.Sprintf("%s-%d", node, i)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node}}
		f := &v1.MountFault{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{v1.LabelNode: node}}, Status: v1.MountFaultStatus{
			Code: "HungMount", Node: node, Pod: &v1.FaultPod{Namespace: "shop", Name: name, UID: p.UID}, Since: metav1.NewTime(noon.Add(-10 * time.Minute)),
			Recovery: &v1.FaultRecovery{Mode: v1.RecoveryAutomatic, Policies: policies},
		}}
		objects = append(objects, p, f)
	}
	return objects
}

// pass reconciles policies, and returns the names of the nodes that are cordoned.
func (c *cluster) pass(t *testing.T, policies ...string) (cordoned []string) {
	t.Helper()
	for _, name := range policies {
		if _, err := c.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	var nodes corev1.NodeList
	must(t, c.List(t.Context(), &nodes))
	for i := range nodes.Items {
		if nodes.Items[i].Spec.Unschedulable {
			cordoned = append(cordoned, nodes.Items[i].Name)
		}
	}
	return cordoned
}

// condition returns the condition of a policy.
func (c *cluster) condition(t *testing.T, name string) metav1.Condition {
	t.Helper()
	p := &v1.RecoveryPolicy{}
	must(t, c.Get(t.Context(), client.ObjectKey{Name: name}, p))
	if found := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionEscalation); found != nil {
		return *found
	}
	return metav1.Condition{}
}

// said returns the Events so far.
func (c *cluster) said() (all []string) {
	for {
		select {
		case e := <-c.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// TestCordonDecision: what has one of two nodes cordoned, and what has not.
func TestCordonDecision(t *testing.T) {
	t.Parallel()
	each := func(change func(*v1.MountFaultStatus)) func([]client.Object) {
		return func(objects []client.Object) {
			for _, o := range objects {
				if f, ok := o.(*v1.MountFault); ok {
					change(&f.Status)
				}
			}
		}
	}
	first := func(change func(*corev1.Pod)) func([]client.Object) {
		return func(objects []client.Object) {
			if p, ok := objects[0].(*corev1.Pod); ok {
				change(p)
			}
		}
	}
	for name, tc := range map[string]struct {
		policies []*v1.RecoveryPolicy // the first is asked
		change   func([]client.Object)
		want     bool
		reason   string // of the condition
	}{
		"two pods":             {want: true},
		"another fault":        {change: each(func(s *v1.MountFaultStatus) { s.Recovery.Policies = nil })},
		"one pod, two faults":  {change: each(func(s *v1.MountFaultStatus) { s.Pod.UID = "same" })},
		"of the node":          {change: each(func(s *v1.MountFaultStatus) { s.Pod = nil })},
		"too new":              {change: each(func(s *v1.MountFaultStatus) { s.Since = metav1.NewTime(s.Since.Add(time.Second)) })},
		"a clock ahead":        {change: each(func(s *v1.MountFaultStatus) { s.Since = metav1.NewTime(noon.Add(time.Hour)) })},
		"held by the agent":    {change: each(func(s *v1.MountFaultStatus) { s.Recovery.Mode = v1.RecoveryObserve })},
		"the owner opts out":   {change: first(func(p *corev1.Pod) { p.Annotations = map[string]string{v1.AnnotationRecovery: "off"} })},
		"the pod is another":   {change: first(func(p *corev1.Pod) { p.UID = "new" })},
		"the pod is elsewhere": {change: first(func(p *corev1.Pod) { p.Spec.NodeName = "n9" })},
		"a longer time":        {policies: []*v1.RecoveryPolicy{cordoning("p", nil), cordoning("q", func(s *v1.RecoveryPolicySpec) { s.Escalation.Cordon.AfterSeconds = 601 })}},
		"more pods":            {policies: []*v1.RecoveryPolicy{cordoning("p", nil), cordoning("q", func(s *v1.RecoveryPolicySpec) { s.Escalation.Cordon.MinimumPods = number(3) })}},
		"not all want it":      {policies: []*v1.RecoveryPolicy{cordoning("p", nil), cordoning("q", func(s *v1.RecoveryPolicySpec) { s.Escalation = nil })}},
		"a policy that the agent does not know yet": {policies: []*v1.RecoveryPolicy{cordoning("p", nil), cordoning("pause", func(s *v1.RecoveryPolicySpec) { s.Paused = true })}},
		"both want it": {policies: []*v1.RecoveryPolicy{cordoning("p", nil), cordoning("q", nil)}, want: true},
		"approve":      {policies: []*v1.RecoveryPolicy{cordoning("p", func(s *v1.RecoveryPolicySpec) { s.Mode = v1.RecoveryApprove })}},
		"plan":         {policies: []*v1.RecoveryPolicy{cordoning("p", func(s *v1.RecoveryPolicySpec) { s.Mode = v1.RecoveryPlan })}},
		"observe":      {policies: []*v1.RecoveryPolicy{cordoning("p", func(s *v1.RecoveryPolicySpec) { s.Mode = v1.RecoveryObserve })}, reason: v1.ReasonNoRepair},
		"paused":       {policies: []*v1.RecoveryPolicy{cordoning("p", func(s *v1.RecoveryPolicySpec) { s.Paused = true })}, reason: v1.ReasonPaused},
		"invalid":      {policies: []*v1.RecoveryPolicy{cordoning("p", func(s *v1.RecoveryPolicySpec) { s.Escalation.Cordon.AfterSeconds = 1 })}, reason: v1.ReasonInvalidSpec},
		"outside of windows": {policies: []*v1.RecoveryPolicy{cordoning("p", func(s *v1.RecoveryPolicySpec) {
			s.Windows = []v1.RecoveryWindow{{Schedule: "0 3 * * *", DurationSeconds: 60}}
		})}},
		"the breaker opens": {policies: []*v1.RecoveryPolicy{cordoning("p", func(s *v1.RecoveryPolicySpec) {
			s.Breaker = &v1.RecoveryBreaker{MaximumNodesPercent: number(10), MinimumFaultyNodes: number(1)}
		})}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.policies == nil {
				tc.policies = []*v1.RecoveryPolicy{cordoning("p", nil)}
			}
			var names []string
			for _, p := range tc.policies {
				if p.Name != "pause" {
					names = append(names, p.Name)
				}
			}
			objects := onNode("n1", 2, names...)
			if tc.change != nil {
				tc.change(objects)
			}
			for _, p := range tc.policies {
				objects = append(objects, p)
			}
			c := newCluster(t, 2, objects...)
			if got := c.pass(t, "p"); (len(got) == 1) != tc.want {
				t.Errorf("cordoned %v", got)
			}
			if tc.reason == "" {
				tc.reason = v1.ReasonEffective
			}
			if got := c.condition(t, "p"); got.Reason != tc.reason {
				t.Errorf("condition %+v", got)
			}
		})
	}
}

// TestCordonIsRecorded: on the node, in Events on the node and the policy, and once.
func TestCordonIsRecorded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, append(onNode("n1", 2, "p", "q"), cordoning("p", nil), cordoning("q", nil))...)
	for range 3 {
		if got := c.pass(t, "p", "q"); !slices.Equal(got, []string{"n1"}) {
			t.Fatalf("cordoned %v", got)
		}
		c.clock.Step(time.Hour)
	}
	node := &corev1.Node{}
	must(t, c.Get(t.Context(), client.ObjectKey{Name: "n1"}, node))
	const want = `{"policies":["p","q"],"faults":{"HungMount":2},"time":"2026-11-23T12:00:00Z"}`
	if got := node.Annotations[v1.AnnotationCordoned]; got != want {
		t.Errorf("annotation %s, want %s", got, want)
	}
	const text = "Warning NodeCordoned Cordoned node n1 for policy p: HungMount in 2 pods for 10m0s. A person uncordons it. See: kubectl describe node n1"
	if diff := cmp.Diff([]string{text, text}, c.said()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// TestCordonsWithinBounds: a fault of the whole cluster cordons as many nodes as the policy allows, and never the last one.
func TestCordonsWithinBounds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		nodes, most int32
		want        int
	}{"the default": {5, 0, 1}, "two": {5, 2, 2}, "never the last one": {3, 3, 2}, "one node": {1, 1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := []client.Object{cordoning("p", func(s *v1.RecoveryPolicySpec) {
				if tc.most > 0 {
					s.Escalation.Cordon.MaximumNodes = &tc.most
				}
			})}
			for i := range tc.nodes {
				objects = append(objects, onNode(fmt.Sprintf("n%d", i+1), 2, "p")...)
			}
			c := newCluster(t, int(tc.nodes), objects...)
			var got []string
			for range 10 {
				got = c.pass(t, "p")
				c.clock.Step(time.Minute)
			}
			if len(got) != tc.want {
				t.Errorf("cordoned %v", got)
			}
			if held := c.condition(t, "p"); held.Reason != v1.ReasonCordonHeld || !strings.HasPrefix(held.Message, "no ") {
				t.Errorf("condition %+v", held)
			}
		})
	}
}

// TestEveryBoundHolds: of two policies that select the same faults, one allows a single node.
func TestEveryBoundHolds(t *testing.T) {
	t.Parallel()
	objects := []client.Object{cordoning("q", nil), cordoning("p", func(s *v1.RecoveryPolicySpec) { s.Escalation.Cordon.MaximumNodes = number(3) })}
	for i := range 4 {
		objects = append(objects, onNode(fmt.Sprintf("n%d", i+1), 2, "p", "q")...)
	}
	c := newCluster(t, 4, objects...)
	for i := range 20 {
		if got := c.pass(t, "p", "q"); len(got) != 1 {
			t.Fatalf("cordoned %v", got)
		}
		const why = "policy q has cordoned n1, and its maximumNodes is 1"
		if held := c.condition(t, "p"); i > 0 && (held.Reason != v1.ReasonCordonHeld || !strings.Contains(held.Message, why)) {
			t.Fatalf("pass %d: condition %+v", i, held)
		}
		c.clock.Step(Interval)
	}
}

// TestUncordonedStays: a person uncordons a node whose faults last. It is cordoned again for other faults, when all of these are gone.
func TestUncordonedStays(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, append(onNode("n1", 3, "p"), cordoning("p", func(s *v1.RecoveryPolicySpec) { s.Escalation.Cordon.MaximumNodes = number(2) }))...)
	if got := c.pass(t, "p"); len(got) != 1 {
		t.Fatalf("cordoned %v", got)
	}
	c.uncordon(t, "n1")
	for i := range 4 { // so many of three faults have begun since
		c.clock.Step(time.Hour)
		if got := c.pass(t, "p"); (len(got) == 1) != (i == 3) {
			t.Errorf("%d new faults: cordoned %v", i, got)
		}
		f := &v1.MountFault{}
		must(t, c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: fmt.Sprintf("n1-%d", i%3)}, f))
		f.Status.Since = metav1.NewTime(c.clock.Now())
		must(t, c.Update(t.Context(), f))
	}
}

// TestPersonEndsCordon: a fault of the whole cluster. After a person has uncordoned a node, no other one is cordoned, until the faults of
// that node are gone.
func TestPersonEndsCordon(t *testing.T) {
	t.Parallel()
	objects := []client.Object{cordoning("p", nil)}
	for i := range 3 {
		objects = append(objects, onNode(fmt.Sprintf("n%d", i+1), 2, "p")...)
	}
	c := newCluster(t, 3, objects...)
	if got := c.pass(t, "p"); !slices.Equal(got, []string{"n1"}) {
		t.Fatalf("cordoned %v", got)
	}
	c.uncordon(t, "n1")
	for range 5 {
		if got := c.pass(t, "p"); len(got) > 0 || c.condition(t, "p").Reason != v1.ReasonCordonHeld {
			t.Fatalf("cordoned %v, condition %+v", got, c.condition(t, "p"))
		}
		c.clock.Step(time.Minute)
	}
	must(t, c.DeleteAllOf(t.Context(), &v1.MountFault{}, client.InNamespace("shop"), client.MatchingLabels{v1.LabelNode: "n1"}))
	if got := c.pass(t, "p"); !slices.Equal(got, []string{"n2"}) {
		t.Errorf("cordoned %v", got)
	}
}

func (c *cluster) uncordon(t *testing.T, name string) {
	t.Helper()
	node := &corev1.Node{}
	must(t, c.Get(t.Context(), client.ObjectKey{Name: name}, node))
	node.Spec.Unschedulable = false
	must(t, c.Update(t.Context(), node))
}

// TestCordonIsShown: in mode Approve an Event says it, and not at each pass.
func TestCordonIsShown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, append(onNode("n1", 2, "p"), cordoning("p", func(s *v1.RecoveryPolicySpec) { s.Mode = v1.RecoveryApprove }))...)
	c.right = false // and needs none
	for range 20 {
		if got := c.pass(t, "p"); len(got) > 0 {
			t.Fatalf("cordoned %v", got)
		}
		c.clock.Step(time.Minute)
	}
	const text = "Normal WouldCordonNode Would cordon node n1 for policy p: HungMount in 2 pods for 10m0s. See: kubectl get rp p -o yaml"
	if diff := cmp.Diff([]string{text, text}, c.said()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// TestCordonWithoutRight: the policy says so, nothing is tried, and the API server is asked once a minute.
func TestCordonWithoutRight(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, append(onNode("n1", 2, "p"), cordoning("p", nil))...)
	c.right = false
	for range 13 {
		if got := c.pass(t, "p"); len(got) > 0 {
			t.Fatalf("cordoned %v", got)
		}
		c.clock.Step(Interval)
	}
	got := c.condition(t, "p")
	if got.Reason != v1.ReasonMissingRight || !strings.Contains(got.Message, "right to patch nodes, which config/components/cordon gives") {
		t.Errorf("condition %+v", got)
	}
	if c.asked != 2 || len(c.said()) != 1 {
		t.Errorf("asked %d times, Events %v", c.asked, c.said())
	}
	c.right = true
	c.clock.Step(time.Minute)
	if got := c.pass(t, "p"); len(got) != 1 || c.condition(t, "p").Reason != v1.ReasonEffective {
		t.Errorf("cordoned %v, condition %+v", got, c.condition(t, "p"))
	}
}

// TestCordonRefused: an admission policy refuses it. The next attempt comes a minute later.
func TestCordonRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, append(onNode("n1", 2, "p"), cordoning("p", nil))...)
	c.refuse = apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n1", errors.New("no cordon on Mondays"))
	for i := range 24 {
		c.pass(t, "p")
		if got := c.condition(t, "p"); got.Reason != v1.ReasonMissingRight || !strings.HasSuffix(got.Message, "no cordon on Mondays") {
			t.Fatalf("condition %+v", got)
		}
		if want := i/12 + 1; c.patches != want {
			t.Errorf("pass %d: %d attempts, want %d", i, c.patches, want)
		}
		c.clock.Step(Interval)
	}
}

// TestForbiddenListIsShown: the manager may cordon, and may not list the nodes to find which.
func TestForbiddenListIsShown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, append(onNode("n1", 2, "p"), cordoning("p", nil))...)
	c.refuseList = apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no list for you"))
	c.pass(t, "p")
	if got := c.condition(t, "p"); got.Reason != v1.ReasonMissingRight || !strings.HasSuffix(got.Message, "no list for you") {
		t.Errorf("condition %+v", got)
	}
}

// TestRefusedEvictionIsShown: the agent of a node does not evict.
func TestRefusedEvictionIsShown(t *testing.T) {
	t.Parallel()
	objects := onNode("n1", 2, "p")
	for _, o := range objects {
		if f, ok := o.(*v1.MountFault); ok {
			f.Status.Recovery.EvictAfterSeconds, f.Status.Recovery.EvictionRefusal = 600, "evicting pods is not allowed"
		}
	}
	c := newCluster(t, 2, append(objects, cordoning("p", func(s *v1.RecoveryPolicySpec) {
		s.Escalation = &v1.RecoveryEscalation{Evict: &v1.EvictEscalation{AfterSeconds: 600}}
	}))...)
	c.pass(t, "p")
	c.pass(t, "p")
	got := c.condition(t, "p")
	if got.Reason != v1.ReasonEvictionRefused || got.Message != "pod shop/n1-0 is not evicted: evicting pods is not allowed" {
		t.Errorf("condition %+v", got)
	}
	if said := c.said(); len(said) != 1 || !strings.HasPrefix(said[0], "Warning EscalationHeld Not escalated: pod shop/n1-0 is not evicted") {
		t.Errorf("Events %v", said)
	}
}

var must = kerneltest.Must
