// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
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
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/admission"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
)

var request = reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: "d"}}

// diagnosisWorld is a reconciler with everything around it in memory.
type diagnosisWorld struct {
	*Reconciler
	clock   *testclock.FakeClock
	writes  []string // "" for the object, "status" for its status
	reads   []string // kinds that the API server was asked for
	failing map[string]error
	events  *record.FakeRecorder
}

func newDiagnosisWorld(t *testing.T, objects ...client.Object) *diagnosisWorld {
	t.Helper()
	w := &diagnosisWorld{
		clock:  testclock.NewFakeClock(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)),
		events: record.NewFakeRecorder(100), failing: map[string]error{},
	}
	w.Reconciler = &Reconciler{
		Events: w.events, Clock: w.clock,
		Agents: &Agents{Clock: w.clock, Namespace: "kubediag", LeaseDuration: 40 * time.Second, CheckEvery: 10 * time.Second},
		Rights: &admission.Rights{Namespace: "kubediag"},
	}
	c := kubeclienttest.Builder(t).WithObjects(append(objects, rightsInForce(t)...)...).WithStatusSubresource(&v1.Diagnosis{}).
		WithIndex(&v1.Diagnosis{}, placeIndex, w.placeValues).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				kind := kindOf(o)
				w.reads = append(w.reads, kind)
				if err := w.failing[kind]; err != nil {
					return err
				}
				return c.Get(ctx, key, o, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				w.writes = append(w.writes, "object")
				if err := w.failing["object"]; err != nil {
					return err
				}
				return c.Patch(ctx, o, p, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				w.writes = append(w.writes, sub)
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
	w.Client, w.Reader, w.Agents.Reader, w.Rights.Reader = c, c, c, c
	return w
}

func kindOf(o client.Object) string {
	switch o.(type) {
	case *v1.Diagnosis:
		return "Diagnosis"
	case *corev1.Pod:
		return "Pod"
	case *coordinationv1.Lease:
		return "Lease"
	case *admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding:
		return "Policy"
	}
	return "Node"
}

func (w *diagnosisWorld) reconcileOnce(t *testing.T) time.Duration {
	t.Helper()
	result, err := w.Reconcile(t.Context(), request)
	if err != nil {
		t.Fatalf("reconciling: %v", err)
	}
	return result.RequeueAfter
}

func (w *diagnosisWorld) diagnosis(t *testing.T) *v1.Diagnosis {
	t.Helper()
	var d v1.Diagnosis
	must(t, w.Client.Get(t.Context(), request.NamespacedName, &d))
	return &d
}

func (w *diagnosisWorld) nextEvent(t *testing.T) string {
	t.Helper()
	select {
	case e := <-w.events.Events:
		return e
	default:
		return ""
	}
}

func diagnosisOn(node string, ref *v1.PodReference) *v1.Diagnosis {
	d := &v1.Diagnosis{}
	d.Namespace, d.Name, d.UID = "team", "d", "uid"
	d.Spec = v1.DiagnosisSpec{OperationSet: "set", NodeName: node, PodReference: ref}
	return d
}

// boundTo is a Diagnosis in the given phase that the agent of the node can see.
func boundTo(node string, phase v1.DiagnosisPhase) *v1.Diagnosis {
	diagnosis := diagnosisOn(node, nil)
	diagnosis.Labels = map[string]string{v1.LabelNode: node}
	diagnosis.Status.Phase = phase
	if phase != "" && phase != v1.DiagnosisPending {
		diagnosis.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAccepted, Status: "True", Reason: v1.ReasonAccepted}}
		diagnosis.Status.OperationResults = map[string]string{"k": "v"}
	}
	return diagnosis
}

func podOnNode(node string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name = "apps", "web-0"
	p.Spec = corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "web"}}, InitContainers: []corev1.Container{{Name: "init"}},
	}
	return p
}

func newNode(name string) *corev1.Node {
	n := &corev1.Node{}
	n.Name = name
	return n
}

func (w *diagnosisWorld) setLease(t *testing.T, node, holder string, renewed time.Time) {
	t.Helper()
	seconds, at := int32(40), metav1.NewMicroTime(renewed)
	l := &coordinationv1.Lease{}
	l.Namespace, l.Name = "kubediag", v1.AgentLeaseName(node)
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &at}
	if err := w.Client.Delete(t.Context(), l.DeepCopy()); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	must(t, w.Client.Create(t.Context(), l))
}

var webPod = &v1.PodReference{Namespace: "apps", Name: "web-0", Container: "web"}

func TestBind(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 70)
	for name, tc := range map[string]struct {
		diagnosis *v1.Diagnosis
		want      string
		reads     string
	}{
		"node":                {diagnosisOn("node-1", nil), "node-1", "Diagnosis Diagnosis Node"},
		"pod":                 {diagnosisOn("", webPod), "node-1", "Diagnosis Diagnosis Policy Policy Pod"},
		"pod and node":        {diagnosisOn("node-1", webPod), "node-1", "Diagnosis Diagnosis Policy Policy Pod"},
		"init container":      {diagnosisOn("", &v1.PodReference{Namespace: "apps", Name: "web-0", Container: "init"}), "node-1", "Diagnosis Diagnosis Policy Policy Pod"},
		"node of a long name": {diagnosisOn(long, nil), long, "Diagnosis Diagnosis Node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDiagnosisWorld(t, tc.diagnosis, podOnNode("node-1"), newNode("node-1"), newNode(long))
			if again := w.reconcileOnce(t); again != 10*time.Second {
				t.Errorf("again after %s", again)
			}
			if got := strings.Join(w.reads, " "); got != tc.reads {
				t.Errorf("read %s, want %s", got, tc.reads)
			}
			if got := strings.Join(w.writes, " "); got != "object status" {
				t.Errorf("wrote %q, want a patch of the object, and then of its status", got)
			}
			d := w.diagnosis(t)
			if !d.HasPlace() || d.Spec.NodeName != tc.want || d.Labels[v1.LabelNode] != v1.NodeLabelValue(tc.want) || d.Status.Phase != "" ||
				d.Labels[v1.LabelOrigin] != v1.OriginPerson {
				t.Errorf("diagnosis = %+v", d)
			}
		})
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		diagnosis *v1.Diagnosis
		reason    string
		message   []string
	}{
		"neither pod nor node": {diagnosisOn("", nil), v1.ReasonInvalid, []string{"spec.nodeName"}},
		"node is no name":      {diagnosisOn("a/b", nil), v1.ReasonInvalid, []string{"spec.nodeName", `"a/b"`}},
		"no pod":               {diagnosisOn("", &v1.PodReference{Namespace: "apps", Name: "gone"}), v1.ReasonPodNotFound, []string{"spec.podReference", "apps/gone"}},
		"pod elsewhere":        {diagnosisOn("node-2", webPod), v1.ReasonPodOnOtherNode, []string{"spec.nodeName", "apps/web-0", `"node-1"`, `"node-2"`}},
		"no container":         {diagnosisOn("", &v1.PodReference{Namespace: "apps", Name: "web-0", Container: "db"}), v1.ReasonInvalid, []string{"spec.podReference.container", `"db"`}},
		"no node":              {diagnosisOn("node-9", nil), v1.ReasonNodeNotFound, []string{"spec.nodeName", `"node-9"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDiagnosisWorld(t, tc.diagnosis, podOnNode("node-1"), newNode("node-1"))
			if again := w.reconcileOnce(t); again != 0 {
				t.Errorf("a refused Diagnosis is looked at again after %s", again)
			}
			d := w.diagnosis(t)
			if d.Status.Phase != v1.DiagnosisFailed || d.Status.Outcome != v1.OutcomeError || d.Status.CompletionTime == nil || d.Labels[v1.LabelNode] != "" {
				t.Errorf("diagnosis = %+v", d)
			}
			for _, condition := range []string{v1.ConditionAccepted, v1.ConditionComplete} {
				c := meta.FindStatusCondition(d.Status.Conditions, condition)
				if c == nil || c.Status != metav1.ConditionFalse || c.Reason != tc.reason {
					t.Fatalf("condition %s = %+v", condition, c)
				}
				for _, part := range tc.message {
					if !strings.Contains(c.Message, part) {
						t.Errorf("message %q does not contain %q", c.Message, part)
					}
				}
			}
			if e := w.nextEvent(t); !strings.HasPrefix(e, "Warning "+tc.reason+" ") {
				t.Errorf("event = %q", e)
			}
			w.reconcileOnce(t)
			if len(w.writes) != 1 || w.nextEvent(t) != "" {
				t.Errorf("a refused Diagnosis is written again: %q", w.writes)
			}
		})
	}
}

func TestPodNotScheduled(t *testing.T) {
	t.Parallel()
	w := newDiagnosisWorld(t, diagnosisOn("", webPod), podOnNode(""))
	if again := w.reconcileOnce(t); again != time.Second {
		t.Errorf("first again after %s", again)
	}
	d := w.diagnosis(t)
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted)
	if d.Status.Phase != v1.DiagnosisPending || c.Reason != v1.ReasonPodNotScheduled || !strings.Contains(c.Message, "apps/web-0") {
		t.Fatalf("status = %+v", d.Status)
	}
	for _, tc := range []struct{ pass, want time.Duration }{{time.Second, time.Second}, {time.Second, 2 * time.Second}, {20 * time.Second, 22 * time.Second}, {time.Hour, time.Minute}} {
		w.clock.Step(tc.pass)
		if again := w.reconcileOnce(t); again != tc.want {
			t.Errorf("again after %s, want %s", again, tc.want)
		}
	}
	if len(w.writes) != 1 || w.nextEvent(t) == "" || w.nextEvent(t) != "" {
		t.Errorf("writes %q: waiting is told once", w.writes)
	}
	scheduled := podOnNode("node-1")
	must(t, w.Client.Update(t.Context(), scheduled))
	w.reconcileOnce(t)
	if d := w.diagnosis(t); !isBound(d) || !d.HasPlace() || d.Status.Summary != "" || len(d.Status.Conditions) != 1 || len(w.writes) != 3 {
		t.Errorf("diagnosis = %+v, writes %q", d, w.writes)
	}
}

// TestPodCannotBeScheduled: it is not a mount, which only a Diagnosis for every fault can say.
func TestPodCannotBeScheduled(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]v1.DiagnosisPhase{"": v1.DiagnosisSucceeded, "auto": v1.DiagnosisSucceeded, "set": v1.DiagnosisPending} {
		unscheduled := podOnNode("")
		unscheduled.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available",
		}}
		asked := diagnosisOn("", webPod)
		asked.Spec.OperationSet = set
		w := newDiagnosisWorld(t, asked, unscheduled)
		again := w.reconcileOnce(t)
		s := w.diagnosis(t).Status
		if s.Phase != want || s.Target != "pod apps/web-0" {
			t.Errorf("%q: status %+v", set, s)
		}
		if want != v1.DiagnosisSucceeded {
			continue
		}
		if s.Outcome != v1.OutcomeNoFault || s.CompletionTime == nil || again != 0 || !meta.IsStatusConditionTrue(s.Conditions, v1.ConditionComplete) ||
			s.Summary != "It is not a mount: the scheduler says Unschedulable about pod apps/web-0: 0/3 nodes are available" {
			t.Errorf("%q: status %+v", set, s)
		}
	}
}

func TestPodGoneWhileWaiting(t *testing.T) {
	t.Parallel()
	w := newDiagnosisWorld(t, diagnosisOn("", webPod), podOnNode(""))
	w.reconcileOnce(t)
	must(t, w.Client.Delete(t.Context(), podOnNode("")))
	w.reconcileOnce(t)
	if d := w.diagnosis(t); d.Status.Phase != v1.DiagnosisFailed {
		t.Errorf("status = %+v", d.Status)
	}
}

func TestNoAgent(t *testing.T) {
	t.Parallel()
	w := newDiagnosisWorld(t, boundTo("node-1", ""), newNode("node-1"))
	if again := w.reconcileOnce(t); again != time.Second {
		t.Errorf("again after %s", again)
	}
	d := w.diagnosis(t)
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted)
	if d.Status.Phase != v1.DiagnosisPending || c == nil || c.Reason != v1.ReasonNoAgent || !strings.Contains(c.Message, "node-1") {
		t.Fatalf("status = %+v", d.Status)
	}
	w.clock.Step(10 * time.Second)
	w.setLease(t, "node-1", "node-1", w.clock.Now())
	w.reconcileOnce(t)
	if d := w.diagnosis(t); meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted) != nil {
		t.Errorf("the agent is there, and the status says %+v", d.Status)
	}
}

func TestAgentOfAnotherNameDoesNotCount(t *testing.T) {
	t.Parallel()
	w := newDiagnosisWorld(t, boundTo("node-1", ""), newNode("node-1"))
	w.setLease(t, "node-1", "somebody", w.clock.Now())
	w.reconcileOnce(t)
	if d := w.diagnosis(t); d.Status.Phase != v1.DiagnosisPending {
		t.Errorf("status = %+v", d.Status)
	}
}

func TestAgentLostAndBack(t *testing.T) {
	t.Parallel()
	w := newDiagnosisWorld(t, boundTo("node-1", v1.DiagnosisRunning), newNode("node-1"))
	renewed := w.clock.Now().Add(-5 * time.Hour) // the clock of the node is wrong
	w.setLease(t, "node-1", "node-1", renewed)
	for range 4 {
		if again := w.reconcileOnce(t); again != 10*time.Second {
			t.Fatalf("again after %s", again)
		}
		w.clock.Step(10 * time.Second)
	}
	if len(w.writes) != 0 {
		t.Fatalf("the agent had its 40 s: writes %q", w.writes)
	}
	w.reconcileOnce(t)
	diagnosis := w.diagnosis(t)
	c := meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionComplete)
	if diagnosis.Status.Phase != v1.DiagnosisUnknown || c == nil || c.Status != metav1.ConditionUnknown || c.Reason != v1.ReasonAgentLost {
		t.Fatalf("status = %+v", diagnosis.Status)
	}
	if !strings.Contains(c.Message, "node-1") || !strings.Contains(c.Message, "2026-11-21T07:00:00Z") {
		t.Errorf("message = %q", c.Message)
	}
	if !meta.IsStatusConditionTrue(diagnosis.Status.Conditions, v1.ConditionAccepted) || diagnosis.Status.OperationResults["k"] != "v" {
		t.Errorf("what the agent wrote is gone: %+v", diagnosis.Status)
	}
	w.clock.Step(10 * time.Second)
	w.reconcileOnce(t)
	if len(w.writes) != 1 {
		t.Errorf("writes %q: the loss is told once", w.writes)
	}
	w.clock.Step(10 * time.Second)
	w.setLease(t, "node-1", "node-1", renewed.Add(time.Minute))
	w.reconcileOnce(t)
	diagnosis = w.diagnosis(t)
	if diagnosis.Status.Phase != v1.DiagnosisRunning || meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionComplete) != nil {
		t.Errorf("status = %+v", diagnosis.Status)
	}
	if first, second := w.nextEvent(t), w.nextEvent(t); !strings.Contains(first, v1.ReasonAgentLost) || !strings.Contains(second, reasonAgentBack) {
		t.Errorf("events %q, %q", first, second)
	}
}

// A Lease that a user deleted comes back at the agent's next renewal; nothing is lost before that had to happen.
func TestLeaseDeleted(t *testing.T) {
	t.Parallel()
	w := newDiagnosisWorld(t, boundTo("node-1", v1.DiagnosisRunning), newNode("node-1"))
	w.reconcileOnce(t)
	if len(w.writes) != 0 {
		t.Fatalf("writes %q", w.writes)
	}
	w.clock.Step(40 * time.Second)
	w.reconcileOnce(t)
	if d := w.diagnosis(t); d.Status.Phase != v1.DiagnosisUnknown {
		t.Errorf("status = %+v", d.Status)
	}
}

func TestNodeGone(t *testing.T) {
	t.Parallel()
	for name, phase := range map[string]v1.DiagnosisPhase{"pending": "", "running": v1.DiagnosisRunning, "unknown": v1.DiagnosisUnknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDiagnosisWorld(t, boundTo("node-1", phase))
			w.reconcileOnce(t)
			d := w.diagnosis(t)
			c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete)
			if d.Status.Phase != v1.DiagnosisFailed || c.Reason != v1.ReasonNodeNotFound {
				t.Errorf("status = %+v", d.Status)
			}
			if phase == v1.DiagnosisRunning && !meta.IsStatusConditionTrue(d.Status.Conditions, v1.ConditionAccepted) {
				t.Error("it was accepted, and the status denies it")
			}
		})
	}
}

func TestOtherDiagnosesAreUntouched(t *testing.T) {
	t.Parallel()
	going := diagnosisOn("node-1", nil)
	going.Finalizers = []string{"example.com/x"}
	now := metav1.Now()
	going.DeletionTimestamp = &now
	succeeded, failed := diagnosisOn("", nil), diagnosisOn("", nil)
	succeeded.Status.Phase, failed.Status.Phase = v1.DiagnosisSucceeded, v1.DiagnosisFailed
	old := diagnosisOn("", webPod)
	old.Status.Phase = v1.DiagnosisRunning // left behind by an older release
	record := diagnosisOn("node-1", nil)
	record.Spec.Mode = v1.ModeRecord // whose status is not stored yet
	for name, d := range map[string]*v1.Diagnosis{
		"deleted": going, "succeeded": succeeded, "failed": failed, "running nowhere": old, "record": record,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDiagnosisWorld(t, d)
			if again := w.reconcileOnce(t); again != 0 || len(w.writes) != 0 || len(w.reads) != 1 {
				t.Errorf("again after %s, reads %q, writes %q", again, w.reads, w.writes)
			}
		})
	}
}

// A Diagnosis that an agent runs gets its label back, and is not judged again: its pod may be gone by now.
func TestLabelComesBack(t *testing.T) {
	t.Parallel()
	d := diagnosisOn("node-1", &v1.PodReference{Namespace: "apps", Name: "gone"})
	d.Status.Phase = v1.DiagnosisRunning
	w := newDiagnosisWorld(t, d)
	w.reconcileOnce(t)
	if d := w.diagnosis(t); !isBound(d) || d.Status.Phase != v1.DiagnosisRunning || len(w.writes) != 1 {
		t.Errorf("diagnosis = %+v, writes %q", d, w.writes)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: v1.Group, Resource: "diagnoses"}
	other := errors.New("connection refused")
	for name, tc := range map[string]struct {
		diagnosis *v1.Diagnosis
		at        string
		err       error
		want      error
		again     bool
	}{
		"conflict":           {diagnosisOn("node-1", nil), "object", apierrors.NewConflict(resource, "d", nil), nil, true},
		"deleted meanwhile":  {diagnosisOn("node-1", nil), "object", apierrors.NewNotFound(resource, "d"), nil, false},
		"write fails":        {diagnosisOn("node-1", nil), "object", other, other, false},
		"pod not legible":    {diagnosisOn("", webPod), "Pod", other, other, false},
		"node not legible":   {diagnosisOn("node-1", nil), "Node", other, other, false},
		"lease not legible":  {boundTo("node-1", v1.DiagnosisRunning), "Lease", other, other, false},
		"diagnosis not here": {diagnosisOn("node-1", nil), "Diagnosis", apierrors.NewNotFound(resource, "d"), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDiagnosisWorld(t, tc.diagnosis, podOnNode("node-1"), newNode("node-1"))
			w.failing[tc.at] = tc.err
			result, err := w.Reconcile(t.Context(), request)
			if !errors.Is(err, tc.want) || (result.RequeueAfter > 0) != tc.again {
				t.Errorf("result = %v, error = %v", result, err)
			}
			delete(w.failing, "Diagnosis")
			if d := w.diagnosis(t); d.Status.Phase == v1.DiagnosisFailed || w.nextEvent(t) != "" {
				t.Errorf("an error became a verdict: %+v", d.Status)
			}
		})
	}
}

func TestConcernsManager(t *testing.T) {
	t.Parallel()
	edited := diagnosisOn("node-1", nil)
	edited.Generation = 2
	results := boundTo("node-1", v1.DiagnosisRunning)
	results.Status.OperationResults = map[string]string{"more": "results"}
	unlabelled := diagnosisOn("node-1", nil)
	unlabelled.Status.Phase = v1.DiagnosisRunning
	for name, tc := range map[string]struct {
		was, is *v1.Diagnosis
		want    bool
	}{
		"bound":         {diagnosisOn("node-1", nil), boundTo("node-1", ""), false},
		"accepted":      {boundTo("node-1", ""), boundTo("node-1", v1.DiagnosisRunning), true},
		"results":       {boundTo("node-1", v1.DiagnosisRunning), results, false},
		"ended":         {boundTo("node-1", v1.DiagnosisRunning), boundTo("node-1", v1.DiagnosisSucceeded), false},
		"edited":        {diagnosisOn("", nil), edited, true},
		"label removed": {boundTo("node-1", v1.DiagnosisRunning), unlabelled, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := managerPredicate().Update(event.UpdateEvent{ObjectOld: tc.was, ObjectNew: tc.is}); got != tc.want {
				t.Errorf("lets through: %t, want %t", got, tc.want)
			}
		})
	}
	if managerPredicate().Create(event.CreateEvent{Object: boundTo("node-1", v1.DiagnosisFailed)}) {
		t.Error("a Diagnosis that has ended is looked at when the manager starts")
	}
}

// Each event is counted once, when it has been written. This test is not parallel: others count too.
func TestMetrics(t *testing.T) {
	refused := refusals.WithLabelValues(v1.ReasonNodeNotFound)
	bound, lost, none := testutil.ToFloat64(bindings), testutil.ToFloat64(losses), testutil.ToFloat64(refused)
	w := newDiagnosisWorld(t, diagnosisOn("node-1", nil), newNode("node-1"))
	w.failing["object"] = errors.New("connection refused")
	if _, err := w.Reconcile(t.Context(), request); err == nil || testutil.ToFloat64(bindings) != bound {
		t.Errorf("a binding that failed is counted, error %v", err)
	}
	delete(w.failing, "object")
	w.reconcileOnce(t)
	if got := testutil.ToFloat64(bindings) - bound; got != 1 {
		t.Errorf("%v bindings", got)
	}
	w = newDiagnosisWorld(t, boundTo("node-1", v1.DiagnosisRunning), newNode("node-1"))
	for range 3 {
		w.reconcileOnce(t)
		w.clock.Step(time.Minute)
	}
	if got := testutil.ToFloat64(losses) - lost; got != 1 {
		t.Errorf("%v losses", got)
	}
	w = newDiagnosisWorld(t, diagnosisOn("node-9", nil))
	w.reconcileOnce(t)
	w.reconcileOnce(t)
	if got := testutil.ToFloat64(refused) - none; got != 1 {
		t.Errorf("%v refusals", got)
	}
}

// The nodes that are remembered are those that are asked about.
func TestAgentsForget(t *testing.T) {
	t.Parallel()
	w := newDiagnosisWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		if _, err := w.Agents.stateOf(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	w.clock.Step(2 * forgetAfter)
	if _, err := w.Agents.stateOf(t.Context(), "d"); err != nil || len(w.Agents.observations) != 1 {
		t.Errorf("%d nodes are remembered, error %v", len(w.Agents.observations), err)
	}
	w.reads = nil
	for range 100 {
		if _, err := w.Agents.stateOf(t.Context(), "d"); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.reads) != 0 {
		t.Errorf("the API server was asked %d times", len(w.reads))
	}
}
