// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package waking

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 5000, time.UTC)

const (
	setIt  = `{"metadata":{"annotations":{"diagnosis.kubediag.org/woken-at":"2026-11-22T12:00:00.000005Z"},"uid":"pod-uid"}}`
	takeIt = `{"metadata":{"annotations":{"diagnosis.kubediag.org/woken-at":null},"uid":"pod-uid"}}`
)

var key = types.NamespacedName{Namespace: "team", Name: "d"}

// world is a reconciler whose API server gives errors on demand. What a real one does with the patches is shown in package
// manager.
type world struct {
	*Reconciler
	patches []string // of the pod
	errs    []error  // of those, one after the other
	reading error
	// meanwhile happens to the Diagnosis with the first patch.
	meanwhile func(*v1.Diagnosis)
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(v1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	w := &world{}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1.Diagnosis{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if _, ok := o.(*corev1.Pod); ok && w.reading != nil {
					return w.reading
				}
				return c.Get(ctx, key, o, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if _, ok := o.(*corev1.Pod); ok {
					return errors.Join(w.disturb(ctx, c), w.patch(o, p))
				}
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
	w.Reconciler = New(c, c, testclock.NewFakePassiveClock(now))
	return w
}

// disturb changes the Diagnosis once.
func (w *world) disturb(ctx context.Context, c client.Client) error {
	change := w.meanwhile
	if w.meanwhile = nil; change == nil {
		return nil
	}
	d := &v1.Diagnosis{}
	if err := c.Get(ctx, key, d); err != nil {
		return err
	}
	change(d)
	status := d.Status
	if err := c.Update(ctx, d); err != nil {
		return err
	}
	d.Status = status
	return c.Status().Update(ctx, d)
}

func (w *world) patch(o client.Object, p client.Patch) error {
	text, err := p.Data(o)
	w.patches = append(w.patches, string(text))
	if len(w.errs) == 0 {
		return err
	}
	err, w.errs = w.errs[0], w.errs[1:]
	return err
}

// asking is a Diagnosis of the pod on node-1 whose agent asks to wake its kubelet.
func asking() *v1.Diagnosis {
	d := &v1.Diagnosis{}
	d.Namespace, d.Name, d.Finalizers = "team", "d", []string{"a/b"}
	d.Spec = v1.DiagnosisSpec{NodeName: "node-1", PodReference: &v1.PodReference{Namespace: "apps", Name: "web-0"}}
	d.Status.Phase = v1.DiagnosisRunning
	d.Status.Conditions = []metav1.Condition{
		{Type: v1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1.ReasonAccepted},
		{Type: v1.ConditionKubeletWoken, Status: metav1.ConditionUnknown, Reason: v1.ReasonWakeRequested, Message: "since then"},
	}
	return d
}

func pod(node string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID, p.Spec.NodeName = "apps", "web-0", "pod-uid", node
	return p
}

// answer reconciles and gives the condition of then.
func (w *world) answer(t *testing.T) metav1.Condition {
	t.Helper()
	if _, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	d := &v1.Diagnosis{}
	if err := w.client.Get(t.Context(), key, d); err != nil {
		t.Fatal(err)
	}
	if len(d.Status.Conditions) != 2 {
		t.Fatalf("conditions %+v", d.Status.Conditions)
	}
	return *meta.FindStatusCondition(d.Status.Conditions, v1.ConditionKubeletWoken)
}

// TestNotWoken: what is not to be woken is not changed, and the agent hears why at once.
func TestNotWoken(t *testing.T) {
	t.Parallel()
	bare, shown := asking(), pod("node-1")
	bare.Spec.PodReference = nil
	shown.Spec.Volumes = []corev1.Volume{showing("metadata.annotations")}
	for name, c := range map[string]struct {
		d       *v1.Diagnosis
		pod     *corev1.Pod
		reading error
		want    string
	}{
		"without a pod":        {bare, pod("node-1"), nil, "no podReference"},
		"the pod is gone":      {asking(), pod("node-1"), apierrors.NewNotFound(schema.GroupResource{}, "web-0"), "not found"},
		"a namesake":           {asking(), pod("node-2"), nil, `is on node "node-2", the Diagnosis on "node-1"`},
		"on no node":           {asking(), pod(""), nil, `is on node ""`},
		"a volume shows it":    {asking(), shown, nil, "would be written anew"},
		"it could not be read": {asking(), pod("node-1"), errors.New("no answer"), "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.d, c.pod)
			w.reading = c.reading
			got := w.answer(t)
			if got.Status != metav1.ConditionFalse || got.Reason != v1.ReasonNotWoken || !strings.Contains(got.Message, c.want) {
				t.Errorf("condition = %+v, want %q", got, c.want)
			}
			if len(w.patches) != 0 {
				t.Errorf("the pod was changed: %q", w.patches)
			}
		})
	}
}

// TestAnnotationGoes whatever becomes of the requests, unless nothing can have come of the first.
func TestAnnotationGoes(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection reset")
	broken := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError, Message: "etcdserver: leader changed"}}
	busy := apierrors.NewTooManyRequests("busy", 1)
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web-0", errors.New("no role"))
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "web-0")
	for name, c := range map[string]struct {
		errs    []error
		patches []string
		want    string // none: woken
	}{
		"all is well":             {nil, []string{setIt, takeIt}, ""},
		"forbidden":               {[]error{forbidden}, []string{setIt}, "config/overlays/waking"},
		"another pod by now":      {[]error{apierrors.NewInvalid(schema.GroupKind{}, "web-0", nil)}, []string{setIt}, "invalid"},
		"the first is lost":       {[]error{lost}, []string{setIt, takeIt}, "connection reset"},
		"the first is broken":     {[]error{broken}, []string{setIt, takeIt}, "leader changed"},
		"the first is put off":    {[]error{busy}, []string{setIt, takeIt}, "busy"},
		"the second is lost":      {[]error{nil, lost, broken, busy}, []string{setIt, takeIt, takeIt, takeIt, takeIt}, ""},
		"the pod is gone by then": {[]error{nil, gone}, []string{setIt, takeIt}, "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, asking(), pod("node-1"))
			w.errs = c.errs
			got := w.answer(t)
			if (got.Status == metav1.ConditionTrue) != (c.want == "") || !strings.Contains(got.Message, c.want) {
				t.Errorf("condition = %+v, want %q", got, c.want)
			}
			if !slices.Equal(w.patches, c.patches) {
				t.Errorf("patches %q, want %q", w.patches, c.patches)
			}
		})
	}
}

// TestAnnotationMayStay: it is not tried for ever to take it away, and whoever asked hears of it.
func TestAnnotationMayStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, asking(), pod("node-1"))
	w.errs = []error{nil}
	for range 20 {
		w.errs = append(w.errs, errors.New("connection refused"))
	}
	got := w.answer(t)
	if got.Status != metav1.ConditionFalse || got.Message != "the annotation may still be there: annotating pod apps/web-0 with "+
		annotation+": connection refused" || len(w.patches) < 3 || len(w.patches) > 1+removals.Steps {
		t.Errorf("condition = %+v after %d patches", got, len(w.patches))
	}
}

// TestRequestIsServedOnce, whatever happens to the Diagnosis meanwhile. What the agent does not ask any more, or asks anew,
// is not answered by what was done before.
func TestRequestIsServedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		meanwhile func(*v1.Diagnosis)
		want      string // reason of the condition
	}{
		"labelled":   {func(d *v1.Diagnosis) { d.Labels = map[string]string{"a": "b"} }, v1.ReasonWoken},
		"lost":       {func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisUnknown }, v1.ReasonWoken},
		"asks again": {func(d *v1.Diagnosis) { d.Status.Conditions[1].Message = "since later" }, v1.ReasonWakeRequested},
		"ended":      {func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisFailed }, v1.ReasonWakeRequested},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, asking(), pod("node-1"))
			w.meanwhile = c.meanwhile
			if got := w.answer(t); got.Reason != c.want {
				t.Errorf("condition = %+v, want %s", got, c.want)
			}
			if !slices.Equal(w.patches, []string{setIt, takeIt}) {
				t.Errorf("patches %q", w.patches)
			}
		})
	}
}

// TestBounded: who asks for all kubelets at once gets as many as are good for the API server, and hears so at once.
func TestBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, asking(), pod("node-1"))
	for range burst {
		if !w.limiter.TryAccept() { // by a clock that stands still
			t.Fatal("the burst is shorter than it is said to be")
		}
	}
	if got := w.answer(t); got.Status != metav1.ConditionFalse || !strings.Contains(got.Message, "more than 20 kubelets a second") || len(w.patches) != 0 {
		t.Errorf("condition = %+v, patches %q", got, w.patches)
	}
}

// TestOnlyRequestsAreHeard, each once.
func TestOnlyRequestsAreHeard(t *testing.T) {
	t.Parallel()
	change := func(change func(*v1.Diagnosis)) *v1.Diagnosis {
		d := asking()
		change(d)
		return d
	}
	none := change(func(d *v1.Diagnosis) { d.Status.Conditions = d.Status.Conditions[:1] })
	for name, c := range map[string]struct {
		was, is *v1.Diagnosis
		want    bool
	}{
		"the first":   {none, asking(), true},
		"the same":    {asking(), change(func(d *v1.Diagnosis) { d.Labels = map[string]string{"a": "b"} }), false},
		"another":     {asking(), change(func(d *v1.Diagnosis) { d.Status.Conditions[1].Message = "since later" }), true},
		"answered":    {asking(), change(func(d *v1.Diagnosis) { d.Status.Conditions[1].Status = metav1.ConditionTrue }), false},
		"none":        {none, none, false},
		"ended":       {none, change(func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisSucceeded }), false},
		"not taken":   {none, change(func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisPending }), false},
		"lost, maybe": {none, change(func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisUnknown }), true},
		"deleted":     {none, change(func(d *v1.Diagnosis) { d.DeletionTimestamp = &metav1.Time{Time: now} }), false},
	} {
		if got := requests().Update(event.UpdateEvent{ObjectOld: c.was, ObjectNew: c.is}); got != c.want {
			t.Errorf("%s: heard %v, want %v", name, got, c.want)
		}
		starts := c.want || name == "the same"
		if got := requests().Create(event.CreateEvent{Object: c.is}); got != starts {
			t.Errorf("%s when the manager starts: heard %v, want %v", name, got, starts)
		}
		if starts {
			continue
		}
		w := newWorld(t, c.is, pod("node-1"))
		_, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c.is)})
		if err != nil || len(w.patches) != 0 {
			t.Errorf("%s: %v, patches %q", name, err, w.patches)
		}
	}
}

// showing is a volume with a file of a field of the pod.
func showing(path string) corev1.Volume {
	return corev1.Volume{Name: "info", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		Items: []corev1.DownwardAPIVolumeFile{
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}},
			{Path: "file", FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}},
		},
	}}}
}

// TestVolumesAreNotWritten: a volume with the pod's annotations would be written anew, and what is bound of it be stale.
func TestVolumesAreNotWritten(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{"metadata.annotations": true, "metadata.labels": false, "metadata.annotations['a']": false} {
		plain := showing(path)
		projected := corev1.Volume{Name: "info", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: plain.DownwardAPI.Items}},
			},
		}}}
		for kind, volume := range map[string]corev1.Volume{"downwardAPI": plain, "projected": projected} {
			p := pod("node-1")
			p.Spec.Volumes = []corev1.Volume{{Name: "other"}, volume}
			if got := showsAnnotations(p); got != want {
				t.Errorf("%s of %s: %v, want %v", kind, path, got, want)
			}
		}
	}
}
