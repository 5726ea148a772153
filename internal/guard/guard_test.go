// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/sentinel"
)

var _ sentinel.Guard = (*Guard)(nil)

// server answers requests for namespaces and nodes, and takes slots.
type server struct {
	client.Reader
	client.Writer

	mu          sync.Mutex
	annotations map[string]string // of each namespace
	gets        int
	slots       map[string]bool
	err         error
}

func (s *server) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	o.SetAnnotations(s.annotations)
	return s.err
}

func (s *server) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[o.GetName()] {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "leases"}, o.GetName())
	}
	s.slots[o.GetName()] = true
	return s.err
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.slots)
}

// begin starts a guard inside a bubble. Its knowledge is fresh.
func begin(t *testing.T, s *server) *Guard {
	t.Helper()
	return beginOn(t, s, "node")
}

// beginOn starts the guard of a node.
func beginOn(t *testing.T, s *server, node string) *Guard {
	t.Helper()
	if s.slots == nil {
		s.slots = map[string]bool{}
	}
	f := &Freshness{}
	f.opened()
	f.Answered()
	g := New(Options{
		Node: node, Namespace: "kubediag", Otherwise: v1.RecoveryObserve, Live: s, Client: s, Freshness: f, Log: logr.Discard(),
		EvictionRefusal: func(pod *corev1.Pod) string { return pod.Annotations["refused"] },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- g.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return g
}

func automatic(change func(*v1.RecoveryPolicySpec)) *v1.RecoveryPolicy {
	p := &v1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: v1.RecoveryPolicySpec{Mode: v1.RecoveryAutomatic}}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func budgeted(budgets v1.RecoveryBudgets) *v1.RecoveryPolicy {
	return automatic(func(s *v1.RecoveryPolicySpec) { s.Budgets = &budgets })
}

func podOf(i int) *corev1.Pod {
	yes := true
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprint("uid-", i)),
		OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "app", Controller: &yes}},
	}}
}

func faultOf(p *corev1.Pod) fault.Finding {
	return fault.Finding{Code: fault.StaleSubPath, Pod: fault.Pod{UID: string(p.UID)}, Container: "app", Volume: "v", Mount: fault.Mount{Point: "/p"}}
}

// repair has a repair of a pod end with err, and reports whether it was allowed.
func (g *Guard) repair(t *testing.T, pod *corev1.Pod, err error) bool {
	t.Helper()
	allowed := g.Acquire(t.Context(), faultOf(pod), pod)
	if allowed {
		g.Ended(faultOf(pod).Key(), faultOf(pod).Pod, err)
	}
	return allowed
}

// acquired counts the repairs of different pods that are allowed.
func acquired(t *testing.T, g *Guard, tries int) (n int) {
	t.Helper()
	for i := range tries {
		if g.repair(t, podOf(i), nil) {
			n++
		}
	}
	return n
}

func TestNoPolicyObserves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		g := begin(t, s)
		p := podOf(0)
		if mode := g.Mode(fault.StaleSubPath, p); mode != sentinel.Observe {
			t.Errorf("mode %s", mode)
		}
		if acquired(t, g, 3) != 0 || s.gets != 0 {
			t.Errorf("repairs, or %d requests", s.gets)
		}
		if r := g.Recovery([]fault.Finding{faultOf(p)}, p); r.Mode != v1.RecoveryObserve || r.Message != "no RecoveryPolicy selects the fault" {
			t.Errorf("%+v", r)
		}
	})
}

// TestLargePodIsNotRepaired: no policy can select a pod whose labels are not kept, so none allows a repair. A pod of the same name that is
// small is repaired.
func TestLargePodIsNotRepaired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		g.Set(automatic(nil))
		large := podOf(0)
		large.Spec.Volumes = make([]corev1.Volume, 5000)
		for pod, want := range map[*corev1.Pod]bool{extract.Pod(podOf(0)): true, extract.Pod(large): false} {
			if got := g.Acquire(t.Context(), faultOf(pod), pod); got != want {
				t.Errorf("repair allowed: %t, want %t", got, want)
			}
		}
		if r := g.Recovery([]fault.Finding{faultOf(large)}, extract.Pod(large)); r.Mode != v1.RecoveryObserve || !strings.Contains(r.Message, "so many volumes") {
			t.Errorf("%+v", r)
		}
	})
}

// TestPolicyIsObeyedAtOnce: a policy that is set, paused, resumed and deleted counts from the next question on.
func TestPolicyIsObeyedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		g := begin(t, s)
		changed := g.Subscribe()
		g.Set(automatic(nil))
		<-changed
		if acquired(t, g, 10) != 10 || s.gets != 1 {
			t.Errorf("%d requests", s.gets)
		}
		g.Set(automatic(func(s *v1.RecoveryPolicySpec) { s.Paused = true }))
		if acquired(t, g, 1) != 0 || g.Mode(fault.StaleSubPath, podOf(0)) != sentinel.Observe {
			t.Error("paused")
		}
		for _, by := range []Consent{NoConsent, PlanApproved, MadeByPerson} {
			if held, err := g.Hold(t.Context(), fault.StaleSubPath, podOf(0), by); err != nil || held.Why != "policy p is paused" {
				t.Errorf("%q, %v", held, err)
			}
		}
		g.Set(automatic(nil))
		if acquired(t, g, 1) != 1 {
			t.Error("resumed")
		}
		g.Delete("p")
		if acquired(t, g, 1) != 0 {
			t.Error("deleted")
		}
	})
}

// TestPolicyIsDeletedDuringRepair: the repair that is under way ends as one that the policy allowed, and counts. No other begins.
func TestPolicyIsDeletedDuringRepair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		p := automatic(func(s *v1.RecoveryPolicySpec) {
			s.Breaker = &v1.RecoveryBreaker{FailedRepairs: number(1)}
			s.Budgets = &v1.RecoveryBudgets{Node: &v1.RepairBudget{AtOnce: 2, PerHour: 2}, Cluster: &v1.RepairBudget{AtOnce: 2, PerHour: 2}}
		})
		g.Set(p)
		pod := podOf(0)
		f := faultOf(pod)
		if !g.Acquire(t.Context(), f, pod) {
			t.Fatal("not allowed")
		}
		g.Delete(p.Name)
		if g.Acquire(t.Context(), faultOf(podOf(1)), podOf(1)) {
			t.Error("another repair begins")
		}
		if held, err := g.AcquireRequested(t.Context(), Request{Code: f.Code, Pod: pod, Approved: true}); held.Why == "" || err != nil {
			t.Errorf("an approved repair begins: %q, %v", held, err)
		}
		if d := g.Allowed(f); len(d.Policies) != 1 || d.Policies[0] != p.Name {
			t.Errorf("what allowed the repair is forgotten: %+v", d)
		}
		g.Ended(f.Key(), f.Pod, errors.New("busy"))
		if r := g.Recovery([]fault.Finding{f}, pod); r.Mode != v1.RecoveryObserve || r.FailedRepairs != 1 {
			t.Errorf("%+v", r)
		}
		g.Set(p)
		if d := g.Decide(f.Code, pod); d.Mode != v1.RecoveryObserve || !strings.Contains(d.Why, "1 repairs of StaleSubPath in a row have failed") {
			t.Errorf("the policy that is back does not know of the failed repair: %+v", d)
		}
	})
}

func TestNamespaceOptsOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{annotations: map[string]string{v1.AnnotationRecovery: "off"}}
		g := begin(t, s)
		g.Set(automatic(nil))
		if acquired(t, g, 1) != 0 {
			t.Error("repaired")
		}
		// A person's Diagnosis is not held, that of a Trigger is.
		if held, err := g.Hold(t.Context(), fault.StaleSubPath, podOf(0), MadeByPerson); held.Why != "" || err != nil {
			t.Errorf("%q, %v", held, err)
		}
		if held, err := g.Hold(t.Context(), fault.StaleSubPath, podOf(0), NoConsent); !strings.Contains(held.Why, "the namespace has") || err != nil {
			t.Errorf("%q, %v", held, err)
		}
		s.mu.Lock()
		s.annotations = nil
		s.mu.Unlock()
		time.Sleep(objectAge + time.Nanosecond)
		if acquired(t, g, 1) != 1 {
			t.Error("not repaired")
		}
	})
}

// TestServerIsGone: as long as it is not known what the namespace says, nothing is repaired, and nothing waits for long.
func TestServerIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{err: errors.New("no route to host")})
		g.Set(automatic(nil))
		start := time.Now()
		if acquired(t, g, 100) != 0 || time.Since(start) > 2*maxWait {
			t.Errorf("after %s", time.Since(start))
		}
		if _, err := g.Hold(t.Context(), fault.StaleSubPath, podOf(0), MadeByPerson); err == nil {
			t.Error("a Diagnosis repairs without knowing")
		}
	})
}

func TestStaleKnowledgeRepairsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		g.Set(automatic(func(s *v1.RecoveryPolicySpec) { s.MaximumStalenessSeconds = number(60) }))
		if acquired(t, g, 1) != 1 {
			t.Fatal("not repaired")
		}
		time.Sleep(61 * time.Second)
		if acquired(t, g, 1) != 0 {
			t.Error("the Lease was not renewed")
		}
		g.Freshness.Answered()
		if acquired(t, g, 1) != 1 {
			t.Error("the Lease was renewed")
		}
		g.Freshness.begin() // the watch ended
		time.Sleep(61 * time.Second)
		g.Freshness.Answered()
		if acquired(t, g, 1) != 0 {
			t.Error("there is no watch")
		}
		if d := g.Decide(fault.StaleSubPath, podOf(0)); !strings.Contains(d.Why, "may have missed changes") {
			t.Errorf("%q", d.Why)
		}
		g.Freshness.opened()
		if acquired(t, g, 1) != 1 {
			t.Error("there is a watch again")
		}
	})
}

func TestFreshnessFollowsRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &Freshness{}
		f.Answered()
		fails := false
		lw := cache.ToListerWatcherWithContext(f.Follow(&cache.ListWatch{
			ListWithContextFunc: func(_ context.Context, _ metav1.ListOptions) (runtime.Object, error) {
				return &v1.RecoveryPolicyList{}, nil
			},
			WatchFuncWithContext: func(_ context.Context, _ metav1.ListOptions) (watch.Interface, error) {
				if fails {
					return nil, errors.New("refused")
				}
				return watch.NewFake(), nil
			},
		}))
		if _, known := f.Age(time.Now()); known {
			t.Error("known before the first watch")
		}
		if _, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if age, known := f.Age(time.Now()); !known || age != 0 {
			t.Errorf("%s, %t", age, known)
		}
		fails = true
		for range 3 {
			_, _ = lw.WatchWithContext(t.Context(), metav1.ListOptions{})
			time.Sleep(10 * time.Second)
			f.Answered()
		}
		if age, _ := f.Age(time.Now()); age != 30*time.Second {
			t.Errorf("age %s", age)
		}
	})
}

func number(n int32) *int32 { return &n }

// TestRequestsOfNamespacesTakeTurns: a tenant has many requests waiting, as one whose repairs ask for slots of many budgets. The request of
// another namespace comes last, and is the second to be made.
func TestRequestsOfNamespacesTakeTurns(t *testing.T) {
	t.Parallel()
	const many = 100
	r := newRequests()
	var made []string
	add := func(key, namespace string) {
		r.add(key, namespace, func(context.Context) error {
			made = append(made, namespace+"/"+key)
			return nil
		})
	}
	for i := range many {
		add(fmt.Sprint(i), "tenant")
	}
	add("0", "shop")
	add("0", "shop") // waits already
	ctx, cancel := context.WithCancel(t.Context())
	answers := 0
	r.run(ctx, logr.Discard(), func() {
		if answers++; answers == many+1 {
			cancel()
			r.queue.ShutDown()
		}
	})
	if len(made) != many+1 || made[1] != "shop/0" {
		t.Errorf("%d requests were made: %q…, want that of shop to be the second of %d", len(made), made[:min(3, len(made))], many+1)
	}
}
