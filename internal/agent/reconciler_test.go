// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/pipeline"
)

var key = types.NamespacedName{Namespace: "ns", Name: "d"}

func diagnosis(uid types.UID, phase v1.DiagnosisPhase) *v1.Diagnosis {
	return &v1.Diagnosis{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: uid, Generation: 2},
		Spec:       v1.DiagnosisSpec{NodeName: "n1", OperationSet: "set"},
		Status: v1.DiagnosisStatus{Phase: phase, Conditions: []metav1.Condition{
			{Type: v1.ConditionBound, Status: metav1.ConditionTrue, ObservedGeneration: 2, Message: "m"},
			{Type: v1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1.ReasonNoAgent},
		}},
	}
}

// oneDiagnosisCache is a cache with at most one Diagnosis in it.
type oneDiagnosisCache struct {
	mu sync.Mutex
	d  *v1.Diagnosis
}

func (s *oneDiagnosisCache) setDiagnosis(d *v1.Diagnosis) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.d = d
}

func (s *oneDiagnosisCache) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.d == nil || client.ObjectKeyFromObject(s.d) != key {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "diagnoses"}, key.Name)
	}
	s.d.DeepCopyInto(into.(*v1.Diagnosis))
	return nil
}

func (s *oneDiagnosisCache) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.d != nil {
		list.(*v1.DiagnosisList).Items = []v1.Diagnosis{*s.d}
	}
	return nil
}

// scriptedRunner is a pipeline that does as it is told and remembers what it was asked.
type scriptedRunner struct {
	mu     sync.Mutex
	ran    []types.UID
	kept   []map[types.UID]bool
	last   *v1.Diagnosis
	during func(ctx context.Context) error
}

func (s *scriptedRunner) Run(ctx context.Context, diagnosis *v1.Diagnosis) (*v1.Diagnosis, error) {
	s.mu.Lock()
	s.ran, s.last = append(s.ran, diagnosis.UID), diagnosis
	s.mu.Unlock()
	if s.during == nil {
		return diagnosis, nil
	}
	return diagnosis, s.during(ctx)
}

func (s *scriptedRunner) Forget(keep map[types.UID]bool) error {
	s.kept = append(s.kept, keep)
	return nil
}

func refuseNone(context.Context, *v1.Diagnosis) (bool, error) { return false, nil }

func newTestReconciler(d *v1.Diagnosis, p *scriptedRunner) (*reconciler, *oneDiagnosisCache) {
	s := &oneDiagnosisCache{d: d}
	return &reconciler{node: "n1", cache: s, live: s, refuse: refuseNone, runner: p, runs: newRuns(), done: func(types.UID) {}}, s
}

// reconcileOne has a reconciler look at its one Diagnosis.
func reconcileOne(ctx context.Context, r *reconciler) error {
	_, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: key})
	return err
}

func TestOnlyWhatIsDueRuns(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	for name, tc := range map[string]struct {
		change func(*v1.Diagnosis)
		want   int
	}{
		"new":                          {func(d *v1.Diagnosis) { d.Status.Phase = "" }, 1},
		"pending":                      {func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisPending }, 1},
		"running":                      {func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisRunning }, 1},
		"unknown":                      {func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisUnknown }, 1},
		"succeeded":                    {func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisSucceeded }, 0},
		"failed":                       {func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisFailed }, 0},
		"going away":                   {func(d *v1.Diagnosis) { d.DeletionTimestamp = &now }, 0},
		"for another node":             {func(d *v1.Diagnosis) { d.Spec.NodeName = "n2" }, 0},
		"for no node":                  {func(d *v1.Diagnosis) { d.Spec.NodeName = "" }, 0},
		"without a place":              {func(d *v1.Diagnosis) { d.Status.Conditions = nil }, 0}, // its label names this node
		"place with another spec":      {func(d *v1.Diagnosis) { d.Generation = 3 }, 0},
		"place taken back":             {func(d *v1.Diagnosis) { d.Status.Conditions[0].Status = metav1.ConditionFalse }, 0},
		"running, of an older manager": {func(d *v1.Diagnosis) { d.Status.Phase, d.Status.Conditions = v1.DiagnosisRunning, nil }, 1},
		"of another's name":            {func(d *v1.Diagnosis) { d.Name = "other" }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := diagnosis("u1", "")
			tc.change(d)
			p := &scriptedRunner{}
			r, _ := newTestReconciler(d, p)
			must(t, reconcileOne(t.Context(), r))
			if len(p.ran) != tc.want {
				t.Errorf("ran %d times, want %d", len(p.ran), tc.want)
			}
		})
	}
}

// TestRunsWhatTheServerHas: the cache has neither parameters nor results, so a run takes its Diagnosis from the API server, unless it is
// another one there, or over.
func TestRunsWhatTheServerHas(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*v1.Diagnosis)
		want   int
	}{
		"the same":     {func(*v1.Diagnosis) {}, 1},
		"ended":        {func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisFailed }, 0},
		"another":      {func(d *v1.Diagnosis) { d.UID = "u2" }, 0},
		"gone":         {func(d *v1.Diagnosis) { d.Name = "other" }, 0},
		"of this name": {func(d *v1.Diagnosis) { d.Annotations = map[string]string{v1.AnnotationApproval: "a"} }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			full := diagnosis("u1", "")
			full.Spec.Parameters, full.Status.OperationResults = map[string]string{"p": "v"}, map[string]string{"k": "v"}
			kept, err := reduceObject(full.DeepCopy())
			if d := kept.(*v1.Diagnosis); err != nil || d.Spec.Parameters != nil || d.Status.OperationResults != nil || len(d.Status.Conditions) != 1 {
				t.Fatalf("the cache keeps %+v, %v", kept, err)
			}
			p := &scriptedRunner{}
			r, _ := newTestReconciler(kept.(*v1.Diagnosis), p)
			tc.change(full)
			r.live = &oneDiagnosisCache{d: full}
			must(t, reconcileOne(t.Context(), r))
			if len(p.ran) != tc.want || tc.want > 0 && p.last.Spec.Parameters["p"] != "v" {
				t.Errorf("ran %d times, want %d: %+v", len(p.ran), tc.want, p.last)
			}
		})
	}
}

// TestStaleCacheStartsNothing has the cache show a Diagnosis as Running that has ended: what every resync and every
// restart of a watch can do.
func TestStaleCacheStartsNothing(t *testing.T) {
	t.Parallel()
	p := &scriptedRunner{}
	r, cache := newTestReconciler(diagnosis("u1", v1.DiagnosisRunning), p)
	for range 3 {
		must(t, reconcileOne(t.Context(), r))
	}
	cache.setDiagnosis(diagnosis("u2", ""))
	must(t, reconcileOne(t.Context(), r))
	if diff := cmp.Diff([]types.UID{"u1", "u2"}, p.ran); diff != "" {
		t.Errorf("ran (-want +got):\n%s", diff)
	}
}

func TestWhatCouldNotBeStoredComesBack(t *testing.T) {
	t.Parallel()
	fail := errors.New("storing status: etcd is full")
	p := &scriptedRunner{during: func(context.Context) error { return fail }}
	r, _ := newTestReconciler(diagnosis("u1", ""), p)
	if err := reconcileOne(t.Context(), r); !errors.Is(err, fail) {
		t.Errorf("error %v", err)
	}
	fail = nil
	if err := reconcileOne(t.Context(), r); err != nil {
		t.Errorf("error %v", err)
	}
	if len(p.ran) != 2 {
		t.Errorf("ran %d times", len(p.ran))
	}
}

// TestWaitingGivesTheWorkerBack: a Diagnosis that waits for its approval comes again when that ends, and whenever it
// changes.
func TestWaitingGivesTheWorkerBack(t *testing.T) {
	t.Parallel()
	p := &scriptedRunner{during: func(context.Context) error { return &pipeline.WaitingError{Until: time.Now().Add(time.Hour)} }}
	r, _ := newTestReconciler(diagnosis("u1", v1.DiagnosisRunning), p)
	for range 2 {
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		if err != nil || result.RequeueAfter != approvalInterval {
			t.Errorf("%+v, %v", result, err)
		}
	}
	if len(p.ran) != 2 || r.runs.countRunning() != 0 {
		t.Errorf("ran %v, %d under way", p.ran, r.runs.countRunning())
	}
}

func TestDeletionStopsARun(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *reconciler, cache *oneDiagnosisCache){
		"deleted": func(r *reconciler, cache *oneDiagnosisCache) {
			cache.setDiagnosis(nil)
			r.eventHandler().DeleteFunc(t.Context(), event.TypedDeleteEvent[*v1.Diagnosis]{Object: diagnosis("u1", "")}, nil)
		},
		"created again": func(r *reconciler, cache *oneDiagnosisCache) {
			cache.setDiagnosis(diagnosis("u2", ""))
			r.eventHandler().UpdateFunc(t.Context(), event.TypedUpdateEvent[*v1.Diagnosis]{
				ObjectOld: diagnosis("u1", ""), ObjectNew: diagnosis("u2", ""),
			}, newQueue(t))
		},
		"going away": func(r *reconciler, cache *oneDiagnosisCache) {
			d := diagnosis("u1", "")
			d.DeletionTimestamp = &metav1.Time{}
			cache.setDiagnosis(d)
			r.eventHandler().UpdateFunc(t.Context(), event.TypedUpdateEvent[*v1.Diagnosis]{ObjectOld: diagnosis("u1", ""), ObjectNew: d}, newQueue(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := make(chan struct{})
			p := &scriptedRunner{during: func(ctx context.Context) error {
				close(begun)
				<-ctx.Done()
				return context.Cause(ctx)
			}}
			r, cache := newTestReconciler(diagnosis("u1", ""), p)
			ended := make(chan error)
			go func() {
				ended <- reconcileOne(t.Context(), r)
			}()
			<-begun
			end(r, cache)
			if err := <-ended; err != nil {
				t.Errorf("error %v", err)
			}
			if len(r.runs.running)+len(r.runs.ended) != 0 {
				t.Errorf("remembered: %v %v", r.runs.running, r.runs.ended)
			}
		})
	}
}

// TestDeletionBeforeTheStart has the Diagnosis deleted after it was read and before its run could be stopped.
func TestDeletionBeforeTheStart(t *testing.T) {
	t.Parallel()
	p := &scriptedRunner{}
	r, cache := newTestReconciler(diagnosis("u1", ""), p)
	r.cache = &vanishing{oneDiagnosisCache: cache}
	must(t, reconcileOne(t.Context(), r))
	if len(p.ran) != 0 || r.runs.countRunning() != 0 {
		t.Errorf("ran %v, running %d", p.ran, r.runs.countRunning())
	}
}

// vanishing is a cache that loses its Diagnosis after the first look.
type vanishing struct{ *oneDiagnosisCache }

func (v *vanishing) Get(ctx context.Context, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	defer v.setDiagnosis(nil)
	return v.oneDiagnosisCache.Get(ctx, key, into, o...)
}

func TestStoppedAgentLeavesItsWork(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	p := &scriptedRunner{during: func(ctx context.Context) error {
		stop()
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), pipeline.ErrDeleted) {
			t.Error("the run was told that its Diagnosis was deleted")
		}
		return ctx.Err()
	}}
	r, _ := newTestReconciler(diagnosis("u1", ""), p)
	must(t, reconcileOne(ctx, r))
	if len(r.runs.ended) != 0 {
		t.Error("a run that was interrupted counts as ended")
	}
}

func TestEventsQueueWhatIsDue(t *testing.T) {
	t.Parallel()
	for phase, want := range map[v1.DiagnosisPhase]int{v1.DiagnosisUnknown: 1, v1.DiagnosisSucceeded: 0} {
		r, _ := newTestReconciler(nil, &scriptedRunner{})
		q, d := newQueue(t), diagnosis("u1", phase)
		r.eventHandler().CreateFunc(t.Context(), event.TypedCreateEvent[*v1.Diagnosis]{Object: d}, q)
		r.eventHandler().UpdateFunc(t.Context(), event.TypedUpdateEvent[*v1.Diagnosis]{ObjectOld: d, ObjectNew: d}, q)
		if q.Len() != want {
			t.Errorf("%s: %d queued, want %d", phase, q.Len(), want)
		}
	}
}

func newQueue(t *testing.T) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	t.Helper()
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(q.ShutDown)
	return q
}

func TestCleanupKeepsExistingAndRunning(t *testing.T) {
	t.Parallel()
	p := &scriptedRunner{}
	r, _ := newTestReconciler(diagnosis("listed", v1.DiagnosisSucceeded), p)
	if _, ok := r.runs.startRun(t.Context(), "running"); !ok {
		t.Fatal("the first run was refused")
	}
	must(t, r.forgetDeleted(t.Context()))
	want := []map[types.UID]bool{{"listed": true, "running": true}}
	if diff := cmp.Diff(want, p.kept); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

func TestRunsOfOneUIDExcludeEachOther(t *testing.T) {
	t.Parallel()
	r := newRuns()
	var wg sync.WaitGroup
	var mu sync.Mutex
	begun := 0
	for range 50 {
		wg.Go(func() {
			if _, ok := r.startRun(t.Context(), "u"); ok {
				mu.Lock()
				begun++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if begun != 1 {
		t.Errorf("%d runs began at once", begun)
	}
	r.endRun("u", false)
	if _, ok := r.startRun(t.Context(), "u"); !ok {
		t.Error("a run that did not end for good cannot begin again")
	}
	r.dropDeleted("u", fmt.Errorf("gone"))
	r.endRun("u", true)
	if len(r.ended) != 0 {
		t.Error("a Diagnosis that is gone is remembered")
	}
}
