// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/trigger"
)

var start = time.Date(2026, 11, 23, 2, 59, 0, 0, time.UTC)

// fakeDispatcher records what it is asked for.
type fakeDispatcher struct {
	ensured, forgotten []string
	offered            []trigger.Cause
	rejected           []string
	progress           trigger.Progress
	settled            int
}

func (d *fakeDispatcher) Ensure(t *v1.Trigger) { d.ensured = append(d.ensured, t.Name) }
func (d *fakeDispatcher) Forget(name string)   { d.forgotten = append(d.forgotten, name) }
func (d *fakeDispatcher) Settle(string, trigger.Tally) {
	d.settled++
	d.progress.Tally = trigger.Tally{}
}
func (d *fakeDispatcher) Progress(string) trigger.Progress { return d.progress }

func (d *fakeDispatcher) Offer(_ string, c trigger.Cause) error {
	d.offered = append(d.offered, c)
	return nil
}

func (d *fakeDispatcher) Reject(_ string, _ trigger.Kind, r *trigger.Rejection) {
	d.rejected = append(d.rejected, r.Reason)
}

// fakeSource takes Triggers for Events, and fails for one called bad.
type fakeSource map[string]bool

func (s fakeSource) Install(t *v1.Trigger) error {
	if t.Name == "bad" {
		return errors.New("does not compile")
	}
	s[t.Name] = true
	return nil
}

func (s fakeSource) Remove(name string) { delete(s, name) }

type triggerWorld struct {
	client.Client
	*Reconciler
	clock  *testclock.FakeClock
	d      *fakeDispatcher
	source fakeSource
}

func newTriggerWorld(t *testing.T, objects ...client.Object) *triggerWorld {
	t.Helper()
	c := kubeclienttest.Builder(t).WithObjects(objects...).WithStatusSubresource(&v1.Trigger{}).
		WithIndex(&v1.Diagnosis{}, ownerIndex, ownerNames).Build()
	w := &triggerWorld{Client: c, clock: testclock.NewFakeClock(start), d: &fakeDispatcher{}, source: fakeSource{}}
	w.Reconciler = &Reconciler{
		Client: c, Clock: w.clock, Namespace: "kubediag", Dispatcher: w.d, Sources: []trigger.Source{w.source}, Every: 5 * time.Second,
	}
	return w
}

// reconcileOnce reconciles once and returns the Trigger as it is then.
func (w *triggerWorld) reconcileOnce(t *testing.T, name string) (*v1.Trigger, time.Duration) {
	t.Helper()
	key := types.NamespacedName{Name: name}
	result, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	must(t, err)
	var got v1.Trigger
	if err := w.Get(t.Context(), key, &got); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return &got, result.RequeueAfter
}

func newTrigger(name string, template v1.SourceTemplate) *v1.Trigger {
	t := &v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", CreationTimestamp: metav1.NewTime(start)}}
	t.Spec = v1.TriggerSpec{OperationSet: "set", NodeName: "node", SourceTemplate: template}
	return t
}

func cronTrigger(schedule string) *v1.Trigger {
	return newTrigger("nightly", v1.SourceTemplate{CronTemplate: &v1.CronTemplate{Schedule: schedule}})
}

func TestReady(t *testing.T) {
	t.Parallel()
	event := v1.SourceTemplate{KubernetesEventTemplate: &v1.KubernetesEventTemplate{}}
	suspended := newTrigger("t", event)
	suspended.Spec.Suspend = true
	for name, tc := range map[string]struct {
		trigger *v1.Trigger
		reason  string
		again   time.Duration
	}{
		"event":                {newTrigger("t", event), v1.ReasonReady, 5 * time.Second},
		"clock":                {cronTrigger("@daily"), v1.ReasonReady, 5 * time.Second},
		"clock, soon":          {cronTrigger("0 3 * * *"), v1.ReasonReady, 5 * time.Second},
		"suspended":            {suspended, v1.ReasonSuspended, 5 * time.Second},
		"does not compile":     {newTrigger("bad", event), v1.ReasonInvalidSpec, 0},
		"invalid":              {cronTrigger("@never"), v1.ReasonInvalidSpec, 0},
		"31st of February":     {cronTrigger("0 0 31 2 *"), v1.ReasonNeverFires, 0},
		"alerts, off":          {newTrigger("t", v1.SourceTemplate{PrometheusAlertTemplate: &v1.PrometheusAlertTemplate{}}), v1.ReasonReceiverOff, 0},
		"common event":         {newTrigger("t", v1.SourceTemplate{CommonEventTemplate: &v1.CommonEventTemplate{}}), v1.ReasonSourceNotSupported, 0},
		"mount fault":          {newTrigger("t", v1.SourceTemplate{MountFaultTemplate: &v1.MountFaultTemplate{}}), v1.ReasonReady, 5 * time.Second},
		"an expression of 5 k": {newTrigger("t", v1.SourceTemplate{KubernetesEventTemplate: &v1.KubernetesEventTemplate{Regexp: v1.KubernetesEventRegexp{Reason: strings.Repeat("x", 5000)}}}), v1.ReasonInvalidSpec, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTriggerWorld(t, tc.trigger)
			got, again := w.reconcileOnce(t, tc.trigger.Name)
			ready := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionReady)
			if ready == nil || ready.Reason != tc.reason || (ready.Status == metav1.ConditionTrue) != (tc.reason == v1.ReasonReady) || again != tc.again {
				t.Errorf("condition = %+v, again in %s", ready, again)
			}
			if installed := w.source[tc.trigger.Name]; installed != (tc.reason == v1.ReasonReady) {
				t.Errorf("installed: %t", installed)
			}
		})
	}
}

// The samples are valid, but for the receiver that one of them needs.
func TestSamples(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("../../../config/samples/triggers/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("list samples: %q, %v", names, err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		must(t, err)
		if strings.Count(string(text), "\nkind: ") != 1 {
			t.Errorf("%s turns on more than one thing", name)
		}
		tr := &v1.Trigger{}
		must(t, yaml.UnmarshalStrict(text, tr))
		w := newTriggerWorld(t, tr)
		w.AlertsReceived = true
		got, _ := w.reconcileOnce(t, tr.Name)
		if !meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionReady) {
			t.Errorf("%s: %+v", tr.Name, got.Status.Conditions)
		}
	}
}

func TestDeleted(t *testing.T) {
	t.Parallel()
	tr := newTrigger("t", v1.SourceTemplate{KubernetesEventTemplate: &v1.KubernetesEventTemplate{}})
	w := newTriggerWorld(t, tr)
	w.reconcileOnce(t, "t")
	must(t, w.Delete(t.Context(), tr))
	w.reconcileOnce(t, "t")
	if len(w.source) != 0 || !slices.Equal(w.d.forgotten, []string{"t"}) {
		t.Errorf("installed %v, forgotten %v", w.source, w.d.forgotten)
	}
}

// The clock fires once for each time of the schedule, also over restarts, jumps and hundreds of missed runs.
func TestClock(t *testing.T) {
	t.Parallel()
	w := newTriggerWorld(t, cronTrigger("0 3 * * *"))
	step := func(name string, at time.Time, want ...string) {
		t.Helper()
		w.clock.SetTime(at)
		w.d.offered = nil
		got, again := w.reconcileOnce(t, "nightly")
		var keys []string
		for _, c := range w.d.offered {
			keys = append(keys, c.Key)
			w.d.progress.Completed = c.Scheduled // its node has its Diagnosis
		}
		if diff := cmp.Diff(want, keys); diff != "" || again <= 0 || again > 5*time.Second {
			t.Errorf("%s: again in %s, runs (-want +got):\n%s%+v", name, again, diff, got.Status)
		}
	}
	day := 24 * time.Hour
	three := start.Add(time.Minute)
	step("before", start)
	step("a moment before", three.Add(-time.Millisecond))
	step("in time", three, "2026-11-23T03:00:00Z")
	step("the same minute", three.Add(30*time.Second))
	w.d.progress = trigger.Progress{} // another manager, which knows nothing
	step("after a restart", three.Add(time.Minute))
	step("late", three.Add(day+3*time.Hour), "2026-11-24T03:00:00Z")
	step("defect 27: 200 days missed", three.Add(200*day+time.Hour), "2027-06-11T03:00:00Z")
	step("the clock goes back", three.Add(2*day-time.Hour))
	step("and goes on", three.Add(2*day), "2026-11-25T03:00:00Z")
}

// A manager that ended after it had written the status, and before the nodes had their Diagnoses, is followed by one
// that begins the run again.
func TestRunIsResumed(t *testing.T) {
	t.Parallel()
	tr := cronTrigger("0 3 * * *")
	at := metav1.NewTime(start.Add(time.Minute))
	tr.Status.LastScheduleTime, tr.Status.PendingNodes = &at, 7
	w := newTriggerWorld(t, tr)
	w.clock.SetTime(at.Add(time.Hour))
	got, _ := w.reconcileOnce(t, "nightly")
	if len(w.d.offered) != 1 || !w.d.offered[0].Scheduled.Equal(at.Time) || got.Status.PendingNodes != 7 {
		t.Errorf("offered %+v, status %+v", w.d.offered, got.Status)
	}
	w.d.progress = trigger.Progress{Busy: true, Pending: 3}
	if got, _ = w.reconcileOnce(t, "nightly"); len(w.d.offered) != 1 || got.Status.PendingNodes != 3 {
		t.Errorf("offered %d times, status %+v", len(w.d.offered), got.Status)
	}
	w.d.progress = trigger.Progress{Completed: at.Time}
	if got, _ = w.reconcileOnce(t, "nightly"); len(w.d.offered) != 1 || got.Status.PendingNodes != 0 {
		t.Errorf("offered %d times, status %+v", len(w.d.offered), got.Status)
	}
}

func TestStartingDeadline(t *testing.T) {
	t.Parallel()
	tr := cronTrigger("0 3 * * *")
	tr.Spec.SourceTemplate.CronTemplate.StartingDeadlineSeconds = new(int32(600))
	w := newTriggerWorld(t, tr)
	w.clock.SetTime(start.Add(time.Hour))
	got, _ := w.reconcileOnce(t, "nightly")
	if len(w.d.offered) != 0 || !slices.Equal(w.d.rejected, []string{v1.ReasonDeadlineMissed}) || got.Status.LastScheduleTime == nil {
		t.Errorf("offered %v, rejected %v", w.d.offered, w.d.rejected)
	}
	w.reconcileOnce(t, "nightly")
	if len(w.d.rejected) != 1 {
		t.Errorf("rejected %v", w.d.rejected)
	}
	w.clock.SetTime(start.Add(24*time.Hour + 9*time.Minute))
	if w.reconcileOnce(t, "nightly"); len(w.d.offered) != 1 {
		t.Errorf("offered %v", w.d.offered)
	}
}

// The status adds up, and holds one drop for each reason.
func TestReport(t *testing.T) {
	t.Parallel()
	tr := newTrigger("t", v1.SourceTemplate{KubernetesEventTemplate: &v1.KubernetesEventTemplate{}})
	w := newTriggerWorld(t, tr)
	when := metav1.NewTime(start)
	for i := range 3 {
		w.d.progress = trigger.Progress{Pending: int32(i), Tally: trigger.Tally{
			Matched: 5, Fired: 1, Repeated: 2, LastFired: start, LastDiagnosis: fmt.Sprint("d", i),
			Dropped: map[string]v1.TriggerDrop{
				v1.ReasonQueueFull: {Reason: v1.ReasonQueueFull, Count: 1, LastTime: when, Message: "m"}, v1.ReasonNoNode: {Reason: v1.ReasonNoNode, Count: 1, LastTime: when},
			},
		}}
		w.reconcileOnce(t, "t")
	}
	got, _ := w.reconcileOnce(t, "t")
	got.Status.Conditions = nil
	want := v1.TriggerStatus{
		Matched: 15, Fired: 3, Repeated: 6, PendingNodes: 2, LastDiagnosis: "d2", LastFiredTime: &when,
		Dropped: []v1.TriggerDrop{
			{Reason: v1.ReasonNoNode, Count: 3, LastTime: when}, {Reason: v1.ReasonQueueFull, Count: 3, LastTime: when, Message: "m"},
		},
	}
	if diff := cmp.Diff(want, got.Status, cmp.Comparer(func(a, b metav1.Time) bool { return a.Time.Equal(b.Time) })); diff != "" || w.d.settled != 4 {
		t.Errorf("settled %d times, status (-want +got):\n%s", w.d.settled, diff)
	}
}

// The limits hold for each node and phase; what has not ended, or guards a cause, stays.
func TestHistory(t *testing.T) {
	t.Parallel()
	tr := newTrigger("t", v1.SourceTemplate{KubernetesEventTemplate: &v1.KubernetesEventTemplate{}})
	tr.Spec.SuccessfulHistoryLimit, tr.Spec.FailedHistoryLimit, tr.Spec.RepeatIntervalSeconds = new(int32(2)), new(int32(0)), new(int32(600))
	objects := []client.Object{tr}
	add := func(node, name string, phase v1.DiagnosisPhase, age time.Duration, owner types.UID) {
		d := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: "kubediag", Name: name, UID: types.UID(name)}}
		d.CreationTimestamp = metav1.NewTime(start.Add(-age))
		d.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Trigger", Name: "t", UID: owner}}
		d.Spec.NodeName, d.Status.Phase = node, phase
		objects = append(objects, d)
	}
	for i := range 4 {
		age := time.Duration(i+1) * time.Hour
		add("n1", fmt.Sprint("n1-", i), v1.DiagnosisSucceeded, age, "uid")
		add("n2", fmt.Sprint("n2-", i), v1.DiagnosisFailed, age, "uid")
		add("n3", fmt.Sprint("other-", i), v1.DiagnosisSucceeded, age, "another trigger")
	}
	add("n2", "guard", v1.DiagnosisFailed, time.Minute, "uid")
	add("n1", "running", v1.DiagnosisRunning, 99*time.Hour, "uid")
	w := newTriggerWorld(t, objects...)
	w.reconcileOnce(t, "t")
	w.reconcileOnce(t, "t") // too early for another look
	var left v1.DiagnosisList
	must(t, w.List(t.Context(), &left))
	var names []string
	for _, d := range left.Items {
		names = append(names, d.Name)
	}
	want := []string{"guard", "n1-0", "n1-1", "other-0", "other-1", "other-2", "other-3", "running"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// While a run of the clock is not complete, what it made stays: it would be made again.
func TestHistoryOfARunUnderWay(t *testing.T) {
	t.Parallel()
	tr := cronTrigger("0 3 * * *")
	tr.Spec.SuccessfulHistoryLimit = new(int32(0))
	at := metav1.NewTime(start)
	tr.Status.LastScheduleTime, tr.Status.PendingNodes = &at, 3
	made := v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(start.Add(time.Second))}}
	made.Status.Phase = v1.DiagnosisSucceeded
	earlier := made
	earlier.CreationTimestamp = metav1.NewTime(start.Add(-time.Second))
	if n := len(surplusOf(tr, []v1.Diagnosis{made, earlier}, start.Add(time.Hour))); n != 1 {
		t.Errorf("%d are over the limit", n)
	}
	tr.Status.PendingNodes = 0
	if n := len(surplusOf(tr, []v1.Diagnosis{made, earlier}, start.Add(time.Hour))); n != 2 {
		t.Errorf("%d are over the limit", n)
	}
}

var must = kerneltest.Must
