// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
)

func faultOf(node string, number int) *v1.MountFault {
	f := &v1.MountFault{Status: v1.MountFaultStatus{Code: "StaleSubPath", Node: node}}
	f.Namespace, f.Name = "shop", fmt.Sprintf("%s-%d", node, number)
	return f
}

func newCollector(t *testing.T, funcs interceptor.Funcs) *Collector {
	t.Helper()
	there := &corev1.Node{}
	there.Name = "there"
	c := kubeclienttest.Builder(t).WithInterceptorFuncs(funcs).
		WithObjects(there, faultOf("there", 1), faultOf("gone", 1), faultOf("gone", 2), faultOf("lost", 1)).Build()
	return &Collector{Client: c, Reader: c, Clock: clock.RealClock{}}
}

func (c *Collector) faultsLeft(t *testing.T) (names []string) {
	t.Helper()
	var list v1.MountFaultList
	must(t, c.Client.List(t.Context(), &list))
	for _, f := range list.Items {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return names
}

func TestPass(t *testing.T) {
	t.Parallel()
	asked := map[string]int{}
	c := newCollector(t, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			asked[key.Name]++
			return c.Get(ctx, key, o, opts...)
		},
	})
	must(t, c.collectAll(t.Context()))
	if diff := cmp.Diff([]string{"there-1"}, c.faultsLeft(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"there": 1, "gone": 1, "lost": 1}, asked); diff != "" {
		t.Errorf("nodes that were asked for (-want +got):\n%s", diff)
	}
}

// TestNodesThatCannotBeAskedFor keep their MountFaults, and the others are deleted.
func TestNodesThatCannotBeAskedFor(t *testing.T) {
	t.Parallel()
	c := newCollector(t, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if key.Name == "gone" {
				return errors.New("no route")
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	if err := c.collectAll(t.Context()); err == nil || !strings.Contains(err.Error(), `reading node "gone": no route`) {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{"gone-1", "gone-2", "there-1"}, c.faultsLeft(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// An object that cannot be deleted is named.
func TestDeletionsThatFail(t *testing.T) {
	t.Parallel()
	c := newCollector(t, interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
			return errors.New("no")
		},
	})
	if err := c.collectAll(t.Context()); err == nil || !strings.Contains(err.Error(), "deleting mountfault shop/") {
		t.Errorf("error %v", err)
	}
}
