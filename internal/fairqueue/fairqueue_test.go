// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fairqueue

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kubediag.org/kubediag/internal/share"
)

// TestObjectsOfATenantDelayNoOther: a tenant has a thousand objects in the queue of a controller. The object of another namespace comes last, and
// has its turn next but one; the second of its two comes after one more of the tenant.
func TestObjectsOfATenantDelayNoOther(t *testing.T) {
	t.Parallel()
	queue := InTurns(func(r reconcile.Request) share.Owner { return share.Owner{Namespace: r.Namespace} })
	q := queue("test", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute))
	defer q.ShutDown()
	add := func(namespace string, i int) {
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(i)}})
	}
	for i := range 1000 {
		add("tenant", i)
	}
	add("shop", 0)
	add("shop", 1)
	add("shop", 1) // waits already
	var got []string
	for range 5 {
		r, _ := q.Get()
		got = append(got, r.String())
		q.Done(r)
	}
	if want := "[tenant/0 shop/0 tenant/1 shop/1 tenant/2]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
