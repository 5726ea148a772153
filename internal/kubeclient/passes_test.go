// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient_test

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
)

var (
	operations = schema.GroupResource{Group: v1.Group, Resource: "operations"}
	errRefused = errors.New("connection refused")
)

// TestPasses: the leader makes a pass at once and after each interval, also if one fails.
func TestPasses(t *testing.T) {
	t.Parallel()
	made, clock := make(chan bool), testclock.NewFakeClock(time.Now())
	passes := kubeclient.Passes{Clock: clock, Interval: time.Minute, Pass: func(context.Context) error {
		made <- true
		return errRefused
	}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- passes.Start(ctx) }()
	<-made // its ticker is there by now
	for range 2 {
		clock.Step(time.Minute)
		<-made
	}
	stop()
	if err := <-ended; err != nil || !passes.NeedLeaderElection() {
		t.Errorf("%v, only the leader: %t", err, passes.NeedLeaderElection())
	}
}

// TestDeletions: an object that has changed, or is another one, is left alone, and one that is gone is no error.
func TestDeletions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ err, want error }{
		"deleted":       {},
		"gone already":  {apierrors.NewNotFound(operations, "op"), nil},
		"changed since": {apierrors.NewConflict(operations, "op", nil), nil},
		"refused":       {errRefused, errRefused},
	} {
		op := &v1.Operation{}
		op.Name, op.UID, op.ResourceVersion = "op", "u", "7"
		var p *client.Preconditions
		c := interceptor.NewClient(kubeclienttest.Builder(t).Build(), interceptor.Funcs{
			Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
				p = (*client.Preconditions)((&client.DeleteOptions{}).ApplyOptions(opts).Preconditions)
				return tc.err
			},
		})
		done, err := kubeclient.DeleteUnchanged(t.Context(), c, op)
		if !errors.Is(err, tc.want) || done != (tc.err == nil) || *p.UID != "u" || *p.ResourceVersion != "7" {
			t.Errorf("%s: %t, %v, with %+v", name, done, err, p)
		}
		if err := kubeclient.DeleteSame(t.Context(), c, op); !errors.Is(err, tc.want) || *p.UID != "u" || p.ResourceVersion != nil {
			t.Errorf("%s: %v, with %+v", name, err, p)
		}
	}
}

// TestPatchStatus: a conflict is tried again, an object that is gone is no error, and a status that is as it was is not written.
func TestPatchStatus(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err, want error
		again     bool
	}{
		"written":   {},
		"conflict":  {apierrors.NewConflict(operations, "op", nil), nil, true},
		"gone":      {apierrors.NewNotFound(operations, "op"), nil, false},
		"refused":   {errRefused, errRefused, false},
		"unchanged": {},
	} {
		old, writes := &v1.Operation{}, 0
		old.Name = "op"
		c := interceptor.NewClient(kubeclienttest.Builder(t).Build(), interceptor.Funcs{
			SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
				writes++
				return tc.err
			},
		})
		now, want := old.DeepCopy(), 0
		if name != "unchanged" {
			now.Status.Target, want = "x", 1
		}
		result, err := kubeclient.PatchStatus(t.Context(), c, old, now)
		if !errors.Is(err, tc.want) || (result.RequeueAfter > 0) != tc.again || writes != want {
			t.Errorf("%s: %+v, %v, %d writes", name, result, err, writes)
		}
	}
}
