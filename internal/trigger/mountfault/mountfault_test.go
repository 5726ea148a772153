// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/trigger"
)

// start is when the fault of the tests began.
var start = time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC)

// offers keeps the offered causes, and may have no room.
type offers struct {
	causes []trigger.Cause
	full   error
}

func (o *offers) Offer(_ string, c trigger.Cause) error {
	o.causes = append(o.causes, c)
	return o.full
}

func (o *offers) Reject(string, trigger.Kind, *trigger.Rejection) {}

// world is an API server that is none, with a namespace, a pod, a node and a fault of the pod, and a source before it.
type world struct {
	*Source
	clock *testclock.FakeClock
	got   *offers
	reads []string
	fails error // of reads of labels
}

func newWorld(t *testing.T, faults ...client.Object) *world {
	t.Helper()
	w := &world{clock: testclock.NewFakeClock(start), got: &offers{}}
	objects := append(faults,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"heal": "yes"}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "pod-uid", Labels: map[string]string{"app": "web"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"pool": "blue"}}},
	)
	c := kubeclienttest.Builder(t).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, partial := o.(*metav1.PartialObjectMetadata); partial {
				w.reads = append(w.reads, o.GetObjectKind().GroupVersionKind().Kind)
				if w.fails != nil {
					return w.fails
				}
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	w.Source = New(c, c, w.got, w.clock)
	return w
}

// look compares a fault.
func (w *world) look(t *testing.T, f *v1.MountFault) (reconcile.Result, error) {
	t.Helper()
	return w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(f)})
}

// staleSubPath is a fault of the pod, which began a minute before it was written.
func staleSubPath(change func(*v1.MountFault)) *v1.MountFault {
	f := &v1.MountFault{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-0123456789", CreationTimestamp: metav1.NewTime(start)}}
	f.Status = v1.MountFaultStatus{
		Code: "StaleSubPath", Impact: v1.ImpactNextStart, Heal: v1.HealSafe, Node: "n1", Container: "app", Volume: "conf",
		Pod: &v1.FaultPod{Namespace: "team", Name: "web", UID: "pod-uid"}, Since: metav1.NewTime(start.Add(-time.Minute)),
		LastSeen: metav1.NewTime(start),
	}
	if change != nil {
		change(f)
	}
	return f
}

func ofNode(f *v1.MountFault) {
	f.Status.Code, f.Status.Pod, f.Status.Container = "OrphanedPodVolumes", nil, ""
}

func faultTrigger(name string, template v1.MountFaultTemplate) *v1.Trigger {
	t := &v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", Generation: 1}}
	t.Spec.SourceTemplate.MountFaultTemplate = &template
	return t
}

func label(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	everything := &metav1.LabelSelector{}
	for name, tc := range map[string]struct {
		template v1.MountFaultTemplate
		change   func(*v1.MountFault)
		want     bool
		reads    []string
	}{
		"everything":          {v1.MountFaultTemplate{}, nil, true, nil},
		"its code":            {v1.MountFaultTemplate{Codes: []string{"HungMount", "StaleSubPath"}}, nil, true, nil},
		"another code":        {v1.MountFaultTemplate{Codes: []string{"HungMount"}, PodSelector: everything}, nil, false, nil},
		"its labels":          {v1.MountFaultTemplate{NamespaceSelector: label("heal", "yes"), PodSelector: label("app", "web"), NodeSelector: label("pool", "blue")}, nil, true, []string{"Namespace", "Pod", "Node"}},
		"another namespace":   {v1.MountFaultTemplate{NamespaceSelector: label("heal", "no"), PodSelector: label("app", "web")}, nil, false, []string{"Namespace"}},
		"another pod":         {v1.MountFaultTemplate{PodSelector: label("app", "db")}, nil, false, []string{"Pod"}},
		"another node":        {v1.MountFaultTemplate{NodeSelector: label("pool", "red")}, nil, false, []string{"Node"}},
		"pod of the name":     {v1.MountFaultTemplate{PodSelector: everything}, func(f *v1.MountFault) { f.Status.Pod.UID = "earlier" }, false, []string{"Pod"}},
		"pod is gone":         {v1.MountFaultTemplate{PodSelector: everything}, func(f *v1.MountFault) { f.Status.Pod.Name = "gone" }, false, []string{"Pod"}},
		"of the node":         {v1.MountFaultTemplate{NodeSelector: everything}, ofNode, true, []string{"Node"}},
		"node, pods wanted":   {v1.MountFaultTemplate{PodSelector: everything}, ofNode, false, nil},
		"node, teams wanted":  {v1.MountFaultTemplate{NamespaceSelector: everything}, ofNode, false, nil},
		"of no catalogue":     {v1.MountFaultTemplate{}, func(f *v1.MountFault) { f.Status.Code = "Other" }, false, nil},
		"unlisted":            {v1.MountFaultTemplate{}, func(f *v1.MountFault) { f.Status.Code = v1.UnlistedFaults }, false, nil},
		"unlisted, asked for": {v1.MountFaultTemplate{Codes: []string{v1.UnlistedFaults}}, func(f *v1.MountFault) { f.Status.Code = v1.UnlistedFaults }, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := staleSubPath(tc.change)
			w := newWorld(t, f)
			must(t, w.Install(faultTrigger("t", tc.template)))
			if _, err := w.look(t, f); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.reads, w.reads); diff != "" || (len(w.got.causes) == 1) != tc.want {
				t.Errorf("%d causes, reads (-want +got):\n%s", len(w.got.causes), diff)
			}
		})
	}
}

// A cause names the pod and its node; or the node.
func TestCause(t *testing.T) {
	t.Parallel()
	f := staleSubPath(nil)
	c := causeOf(f, start)
	want := &v1.PodReference{Namespace: "team", Name: "web"}
	if diff := cmp.Diff(want, c.Pod); diff != "" || c.PodUID != "pod-uid" || c.Node != "n1" || c.Key != "team/web-0123456789" {
		t.Errorf("cause = %+v, pod (-want +got):\n%s", c, diff)
	}
	if text := c.Annotations[v1.AnnotationMountFault]; !strings.Contains(text, `"code":"StaleSubPath"`) || !strings.Contains(text, `"since":"2026-11-23T05:59:00Z"`) {
		t.Errorf("annotation = %s", text)
	}
	if c := causeOf(staleSubPath(ofNode), start); c.Pod != nil || c.Node != "n1" {
		t.Errorf("cause of the node = %+v", c)
	}
}

// A fault fires when it has lasted long enough, and is compared at that moment without being written again.
func TestLasting(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		since time.Duration // after the object was made
		wait  time.Duration
	}{
		"since a minute":             {-time.Minute, 4 * time.Minute},
		"the clock of n1 is ahead":   {time.Hour, 5 * time.Minute},
		"the clock of n1 is in 1970": {-50 * 365 * 24 * time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := staleSubPath(func(f *v1.MountFault) { f.Status.Since = metav1.NewTime(start.Add(tc.since)) })
			w := newWorld(t, f)
			must(t, w.Install(faultTrigger("t", v1.MountFaultTemplate{LastingSeconds: new(int32(300))})))
			result, err := w.look(t, f)
			if err != nil || tc.wait > 0 && (result.RequeueAfter != tc.wait || len(w.got.causes) > 0) {
				t.Fatalf("%+v, %v, %d causes", result, err, len(w.got.causes))
			}
			w.clock.Step(tc.wait)
			if _, err := w.look(t, f); err != nil || len(w.got.causes) == 0 {
				t.Errorf("%v, %d causes", err, len(w.got.causes))
			}
		})
	}
}

// While a fault stays, it is compared four times in the repeat interval, and every five minutes in a long one. Its time is that of the interval since it began, so a
// second manager, or one that is started again, gives it the same.
func TestFaultThatStays(t *testing.T) {
	t.Parallel()
	f := staleSubPath(nil)
	w := newWorld(t, f)
	tr := faultTrigger("t", v1.MountFaultTemplate{})
	tr.Spec.RepeatIntervalSeconds = new(int32(600))
	must(t, w.Install(tr))
	for range 6 {
		result, err := w.look(t, f)
		if err != nil || result.RequeueAfter != 150*time.Second {
			t.Fatalf("%+v, %v", result, err)
		}
		w.clock.Step(result.RequeueAfter)
	}
	tr.Spec.RepeatIntervalSeconds, tr.Generation = nil, 2
	must(t, w.Install(tr))
	if result, err := w.look(t, f); err != nil || result.RequeueAfter != maxRepeat {
		t.Errorf("six hours: %+v, %v", result, err)
	}
	w.got.causes = w.got.causes[:6]
	times := map[time.Duration]int{}
	for _, c := range w.got.causes {
		times[c.Time.Sub(start)]++
	}
	if diff := cmp.Diff(map[time.Duration]int{-time.Minute: 4, 9 * time.Minute: 2}, times); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
}

// A fault is not lost if a queue is full, or if labels cannot be read. One that is gone is forgotten.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	f := staleSubPath(nil)
	w := newWorld(t, f)
	must(t, w.Install(faultTrigger("t", v1.MountFaultTemplate{NodeSelector: label("pool", "blue")})))
	w.got.full = errors.New("queue is full")
	if result, err := w.look(t, f); err != nil || result.RequeueAfter != fullDelay {
		t.Errorf("full: %+v, %v", result, err)
	}
	w.fails = errors.New("down")
	if _, err := w.look(t, f); err == nil {
		t.Error("labels that cannot be read are no error")
	}
	before := len(w.got.causes)
	gone := staleSubPath(func(f *v1.MountFault) { f.Name = "gone" })
	if result, err := w.look(t, gone); err != nil || result.RequeueAfter != 0 || len(w.got.causes) != before {
		t.Errorf("gone: %+v, %v", result, err)
	}
}

// A Trigger that is new or has changed has all faults compared, and one that is only looked at again has none.
func TestInstall(t *testing.T) {
	t.Parallel()
	f := staleSubPath(nil)
	w := newWorld(t, f)
	woken := func() bool {
		select {
		case <-w.changed:
			return true
		default:
			return false
		}
	}
	tr := faultTrigger("t", v1.MountFaultTemplate{})
	for i, step := range []struct {
		change func()
		want   bool
	}{
		{func() {}, true}, {func() {}, false}, {func() { tr.Generation++ }, true}, {func() { tr.UID = "another" }, true}, {func() { w.Remove("t") }, true},
	} {
		step.change()
		if err := w.Install(tr); err != nil || woken() != step.want {
			t.Errorf("step %d: %v, want woken: %t", i, err, step.want)
		}
	}
	want := []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: "team", Name: f.Name}}}
	if diff := cmp.Diff(want, w.all(t.Context(), nil)); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if err := w.Install(&v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: "t"}}); err != nil || !w.rules.Empty() {
		t.Errorf("another source: %v", err)
	}
	if _, err := w.look(t, f); err != nil || len(w.got.causes) > 0 {
		t.Errorf("without a Trigger: %v, %d causes", err, len(w.got.causes))
	}
	for name, bad := range map[string]v1.MountFaultTemplate{
		"code": {Codes: []string{"StaleSubpath"}}, "selector": {PodSelector: label("a", "b c")},
	} {
		if err := w.Install(faultTrigger("t", bad)); err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An update is compared if it changes a field that decides about a match.
func TestChanges(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*v1.MountFault)
		want   bool
	}{
		"nothing": {nil, false},
		"written": {func(f *v1.MountFault) { f.Status.LastSeen, f.Status.Plan = metav1.Now(), "another" }, false},
		"since":   {func(f *v1.MountFault) { f.Status.Since = metav1.NewTime(start.Add(-time.Hour)) }, true},
		"pod":     {func(f *v1.MountFault) { f.Status.Pod.UID = "another" }, true},
	} {
		if got := changes(event.UpdateEvent{ObjectOld: staleSubPath(nil), ObjectNew: staleSubPath(tc.change)}); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

var must = kerneltest.Must
