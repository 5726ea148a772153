// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// leaseOf is the Lease of the agent of a node, renewed so long ago.
func leaseOf(node string, ago time.Duration, change ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	l := &coordinationv1.Lease{}
	l.Namespace, l.Name = "kubediag", v1.AgentLeaseName(node)
	l.Labels = map[string]string{v1.LabelAgent: v1.NodeLabelValue(node)}
	l.CreationTimestamp = metav1.NewTime(now.Add(-ago))
	l.Spec.HolderIdentity, l.Spec.RenewTime = &node, &metav1.MicroTime{Time: now.Add(-ago)}
	for _, c := range change {
		c(l)
	}
	return l
}

func newSweeper(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *Sweeper {
	t.Helper()
	for i, o := range objects { // the client writes to them, and tests share them
		objects[i] = o.DeepCopyObject().(client.Object)
	}
	c := kubeclienttest.Builder(t).WithInterceptorFuncs(funcs).WithObjects(objects...).Build()
	return &Sweeper{Client: c, Reader: c, Clock: testclock.NewFakeClock(now), Namespace: "kubediag"}
}

func (s *Sweeper) leasesLeft(t *testing.T) []string {
	t.Helper()
	var list coordinationv1.LeaseList
	must(t, s.Client.List(t.Context(), &list))
	var names []string
	for _, l := range list.Items {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names
}

func TestPass(t *testing.T) {
	t.Parallel()
	there := &corev1.Node{}
	there.Name = "there"
	const old = 2 * time.Hour
	for name, tc := range map[string]struct {
		lease *coordinationv1.Lease
		goes  bool
	}{
		"gone for long":         {leaseOf("gone", old), true},
		"gone for an hour":      {leaseOf("gone", time.Hour), false},
		"silent":                {leaseOf("there", old), false},
		"renewed in the future": {leaseOf("gone", old, func(l *coordinationv1.Lease) { l.Spec.RenewTime.Time = now.Add(1e6 * time.Hour) }), true},
		"never renewed":         {leaseOf("gone", old, func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }), true},
		"made just now":         {leaseOf("gone", 0, func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }), false},
		"no agent's":            {leaseOf("gone", old, func(l *coordinationv1.Lease) { l.Labels = nil }), false},
		"another node's label":  {leaseOf("gone", old, func(l *coordinationv1.Lease) { l.Labels[v1.LabelAgent] = "other" }), false},
		"another name":          {leaseOf("gone", old, func(l *coordinationv1.Lease) { l.Name = "kubediag-manager" }), false},
		"held by nobody":        {leaseOf("gone", old, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }), false},
		"of another namespace":  {leaseOf("gone", old, func(l *coordinationv1.Lease) { l.Namespace = "kube-node-lease" }), false},
		"a name that is hashed": {leaseOf("a-node-whose-name-is-longer-than-what-a-label-can-hold-of-it.example.org", old), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSweeper(t, interceptor.Funcs{}, there, tc.lease)
			must(t, s.deleteOldLeases(t.Context()))
			if left := s.leasesLeft(t); (len(left) == 0) != tc.goes {
				t.Errorf("left: %q, want it gone: %v", left, tc.goes)
			}
		})
	}
}

// A deletion that fails ends no pass, and nothing is deleted that has changed since it was read.
func TestPassMeetsErrors(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	s := newSweeper(t, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			p := (&client.DeleteOptions{}).ApplyOptions(opts).Preconditions
			if p == nil || p.UID == nil || p.ResourceVersion == nil {
				t.Error("what has changed since would be deleted")
			}
			if o.GetName() == v1.AgentLeaseName("a") {
				return refused
			}
			return c.Delete(ctx, o, opts...)
		},
	}, leaseOf("a", 2*time.Hour), leaseOf("b", 2*time.Hour))
	if err := s.deleteOldLeases(t.Context()); !errors.Is(err, refused) {
		t.Errorf("error = %v, want %v", err, refused)
	}
	if diff := cmp.Diff([]string{v1.AgentLeaseName("a")}, s.leasesLeft(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// A node that cannot be asked about is not gone.
func TestNodeThatCannotBeRead(t *testing.T) {
	t.Parallel()
	other := errors.New("connection refused")
	s := newSweeper(t, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return other
		},
	}, leaseOf("gone", 2*time.Hour))
	if err := s.deleteOldLeases(t.Context()); !errors.Is(err, other) {
		t.Errorf("error = %v", err)
	}
	if left := s.leasesLeft(t); len(left) != 1 {
		t.Errorf("left: %q", left)
	}
}

// slotOf is a slot of a budget in a period, made so long ago.
func slotOf(budget string, i int, holder string, ago time.Duration) *coordinationv1.Lease {
	l := &coordinationv1.Lease{}
	l.Namespace, l.Name = "kubediag", fmt.Sprintf("kubediag-slot-%s-%d", budget, i)
	l.Labels = map[string]string{v1.LabelRepairSlot: "key"}
	l.CreationTimestamp = metav1.NewTime(now.Add(-ago))
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = &holder, new(int32(600))
	l.Spec.RenewTime = &metav1.MicroTime{Time: now.Add(1e6 * time.Hour)} // an agent may write any
	return l
}

// TestSlotsAreSwept: a slot goes after its period by the API server's clock, whatever its agent has written.
func TestSlotsAreSwept(t *testing.T) {
	t.Parallel()
	endless := slotOf("endless", 0, "n", (1000*60+6)*time.Minute)
	endless.Spec.LeaseDurationSeconds = new(int32(math.MaxInt32))
	s := newSweeper(t, interceptor.Funcs{}, endless, slotOf("old", 0, "n", 16*time.Minute), slotOf("kept", 0, "n", 14*time.Minute))
	must(t, s.deleteOldSlots(t.Context()))
	if left := s.leasesLeft(t); !slices.Equal(left, []string{"kubediag-slot-kept-0"}) {
		t.Errorf("left %v", left)
	}
}
