// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fairqueue"
	"kubediag.org/kubediag/internal/share"
)

func requestIn(namespace string, i int) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(i)}}
}

// ofNamespace has a request run on the account of its namespace.
func ofNamespace(r reconcile.Request) share.Owner { return share.Owner{Namespace: r.Namespace} }

// TestDiagnosesRunOnTheAccountOfTheirPod: the pod for those in kubediag's own namespace, and else the namespace that made it.
func TestDiagnosesRunOnTheAccountOfTheirPod(t *testing.T) {
	t.Parallel()
	r, s := newTestReconciler(nil, nil)
	owner := fairqueue.DiagnosisOwner(r.cache, "kubediag")
	for name, want := range map[string]share.Owner{
		"kubediag": {Namespace: "shop", Pod: "web"},
		"tenant":   {Namespace: "tenant"},
	} {
		d := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "d"}}
		d.Spec.PodReference = &v1.PodReference{Namespace: "shop", Name: "web"}
		s.setDiagnosis(d)
		if got := owner(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d)}); got != want {
			t.Errorf("in %s: %+v, want %+v", name, got, want)
		}
	}
	if got := owner(requestIn("kubediag", 7)); got != (share.Owner{Namespace: "kubediag"}) {
		t.Errorf("one that is gone: %+v", got)
	}
}

// A tenant has 3,000 Diagnoses wait that take three minutes each. The Diagnosis of another tenant comes later and
// begins at once.
func TestOneTenantDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, each, many = 16, 3 * time.Minute, 3000
		f := newFairQueue(workers, ofNamespace)
		q := fairqueue.New("test", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute), f)
		var running, most, ended atomic.Int32
		var over atomic.Bool
		started := map[string]time.Time{}
		begun := make(chan reconcile.Request, 2*many)
		for range workers {
			go func() {
				for {
					r, shutdown := q.Get()
					if shutdown || over.Load() {
						return
					}
					begun <- r
					most.Store(max(most.Load(), running.Add(1)))
					time.Sleep(each)
					running.Add(-1)
					ended.Add(1)
					f.release(r)
					q.Done(r)
				}
			}()
		}
		for i := range many {
			q.Add(requestIn("tenant", i))
		}
		time.Sleep(10 * each)
		if most.Load() != workers*3/4 || ended.Load() < 9*workers*3/4 {
			t.Errorf("a tenant alone had %d workers, and %d runs ended", most.Load(), ended.Load())
		}
		for _, namespace := range []string{"a", "b", "c"} {
			q.Add(requestIn(namespace, 0))
			started[namespace] = time.Now()
		}
		synctest.Wait()
		for len(begun) > 0 {
			delete(started, (<-begun).Namespace)
		}
		if len(started) > 0 {
			t.Errorf("these others wait: %v", started)
		}
		over.Store(true)
		q.ShutDown()
		time.Sleep(2 * each)
	})
}

func TestFairQueue(t *testing.T) {
	t.Parallel()
	f := newFairQueue(8, ofNamespace)
	for i := range 10 {
		f.Push(requestIn("b", i))
	}
	f.Push(requestIn("a", 0))
	f.Push(requestIn("c", 0))
	var got []string
	for f.Len() > 0 {
		got = append(got, f.Pop().String())
	}
	// All three at once, then b's second place; then b alone has no more than three quarters.
	if diff := cmp.Diff([]string{"b/0", "a/0", "c/0", "b/1", "b/2", "b/3"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if f.release(requestIn("a", 0)); f.Len() != 1 || f.Pop().Name != "4" || f.Len() != 0 {
		t.Error("the worker of a that has ended is not used")
	}
	one := newFairQueue(1, ofNamespace)
	one.Push(requestIn("b", 0))
	one.Push(requestIn("a", 0))
	if one.Len() != 1 || one.Pop().Namespace != "b" {
		t.Error("with one worker the first does not run")
	}
	if one.release(requestIn("b", 0)); one.Len() != 1 {
		t.Error("with one worker the second does not run")
	}
}

// The place of a run is free again however the run ends.
func TestThePlaceOfARunIsFreed(t *testing.T) {
	t.Parallel()
	f := newFairQueue(4, ofNamespace)
	r := fairReconciler{f, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { panic("broken") })}
	f.Push(requestIn("a", 0))
	func() {
		defer func() { _ = recover() }()
		_, _ = r.Reconcile(t.Context(), f.Pop())
	}()
	if len(f.taken) != 0 || len(f.running) != 0 {
		t.Errorf("%v have workers, for %v", f.taken, f.running)
	}
}
