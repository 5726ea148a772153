// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
)

// causeIn is a cause about a pod of a namespace.
func causeIn(namespace, pod string, i int) Cause {
	return Cause{Kind: KindMountFault, Key: fmt.Sprint(namespace, pod, i), Time: time.Now(), Pod: &v1.PodReference{Namespace: namespace, Name: pod}}
}

// podOf is a pod of a namespace on the first node.
func podOf(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{NodeName: "n1"}}
}

// TestOnePodFillsNoQueue: a pod has thousands of faults, and a namespace thousands of pods. Causes of others find room, and their turn
// comes next.
func TestOnePodFillsNoQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var made []string
		create := func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if d, ok := o.(*v1.Diagnosis); ok {
				made = append(made, d.Spec.PodReference.Namespace+"/"+d.Spec.PodReference.Name)
			}
			return c.Create(ctx, o, opts...)
		}
		var pods []client.Object
		for i := range 500 {
			pods = append(pods, podOf("tenant", fmt.Sprint("many-", i)))
		}
		pods = append(pods, podOf("shop", "full"), podOf("shop", "web"))
		c := newCluster(t, interceptor.Funcs{Create: create}, pods...)
		c.add(t, "t", nil)
		offered := map[string]int{}
		offer := func(cause Cause) {
			if err := c.d.Offer("t", cause); err == nil {
				offered[cause.Pod.Namespace+"/"+cause.Pod.Name]++
			} else if !errors.Is(err, errFull) {
				t.Error(err)
			}
		}
		for i := range 10_000 {
			offer(causeIn("tenant", fmt.Sprint("many-", i%500), i))
			offer(causeIn("shop", "full", i))
		}
		offer(causeIn("shop", "web", 0))
		offer(causeIn("bank", "one", 0))
		if offered["shop/web"] != 1 || offered["bank/one"] != 1 {
			t.Errorf("there is no room for others: %v", offered)
		}
		if n := c.d.lane("t").queue.Len(); n > maxWaiting/2 {
			t.Errorf("%d causes of two namespaces wait", n)
		}
		drop := c.d.Progress("t").Tally.Dropped[v1.ReasonQueueFull]
		if drop.Count == 0 || !strings.Contains(drop.Message, "of namespace shop, or of its pod full") {
			t.Errorf("%+v", drop)
		}
		c.start(t)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		web := -1
		for i, pod := range made {
			if pod == "shop/web" {
				web = i
			}
		}
		if web < 0 || web > 4 {
			t.Errorf("the turn of shop/web was number %d: %v", web, made)
		}
	})
}

// TestOneNamespaceTakesNoPace: a tenant has more causes than the pace of the Trigger allows, and most have a Diagnosis that has not
// ended. Such a cause takes nothing of the pace. A cause of another namespace that comes later has its Diagnosis at once.
func TestOneNamespaceTakesNoPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pods := []client.Object{podOf("tenant", "running"), podOf("shop", "web")}
		for i := range 50 {
			pods = append(pods, podOf("tenant", fmt.Sprint("many-", i)))
		}
		var mu sync.Mutex
		counts := map[string]int{}
		made := func(namespace string) int {
			mu.Lock()
			defer mu.Unlock()
			return counts[namespace]
		}
		create := func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if d, ok := o.(*v1.Diagnosis); ok {
				mu.Lock()
				counts[d.Spec.PodReference.Namespace]++
				mu.Unlock()
			}
			return c.Create(ctx, o, opts...)
		}
		c := newCluster(t, interceptor.Funcs{Create: create}, pods...)
		c.add(t, "t", func(s *v1.TriggerSpec) { s.DiagnosesPerMinute = new(int32(1)) })
		c.start(t)
		for i := range 100 {
			c.offer(t, "t", causeIn("tenant", "running", i))
		}
		if made("tenant") != 1 {
			t.Errorf("%d Diagnoses of one pod", made("tenant"))
		}
		for i := range 50 {
			c.offer(t, "t", causeIn("tenant", fmt.Sprint("many-", i), 0))
		}
		if made("tenant") != burst {
			t.Errorf("%d Diagnoses of the tenant at once", made("tenant"))
		}
		c.offer(t, "t", causeIn("shop", "web", 0))
		if made("shop") != 1 {
			t.Error("the other namespace waits for the pace of the tenant")
		}
		time.Sleep(5*time.Minute + time.Second)
		synctest.Wait()
		if n := made("tenant"); n < burst+3 || n > burst+5 {
			t.Errorf("%d Diagnoses of the tenant after five minutes", n)
		}
	})
}
