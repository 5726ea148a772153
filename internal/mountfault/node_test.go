// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/sentinel"
)

// testNode is a node whose faults a test sets, with a fake API server.
type testNode struct {
	*Writer
	store  client.WithWatch
	client client.Client // that of the agent
	began  time.Time

	mu      sync.Mutex
	pods    map[string]*corev1.Pod
	present []*sentinel.Fault
	unknown []fault.Code
	asked   []string // requests, with their times
	events  []string
	refuse  error         // of the next writes
	older   bool          // whether the CustomResourceDefinition does not know the impact Terminating
	slow    time.Duration // that each write takes
}

func newNode(t *testing.T, objects ...client.Object) *testNode {
	t.Helper()
	n := &testNode{began: time.Now(), pods: map[string]*corev1.Pod{}}
	n.store = kubeclienttest.Builder(t).WithObjects(objects...).Build()
	n.client = interceptor.NewClient(n.store, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return n.ask("create", o, func() error { return c.Create(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return n.ask("patch", o, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return n.ask("delete", o, func() error { return c.Delete(ctx, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if _, ok := l.(*v1.MountFaultList); ok {
				return n.ask("list", nil, func() error { return c.List(ctx, l, opts...) })
			}
			return c.List(ctx, l, opts...)
		},
	})
	n.Writer = n.writer()
	return n
}

// writer returns a Writer as an agent that starts has it.
func (n *testNode) writer() *Writer {
	return New(Options{
		Node: "n1", Namespace: "kubediag", Client: n.client, Reader: n.client, Diagnoses: n.client, Pods: n, Events: n,
		Log: logr.Discard(), Faults: n.faults, Interval: Interval,
	})
}

func (n *testNode) ask(verb string, o client.Object, do func() error) error {
	if verb != "list" {
		<-time.After(n.slow)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	f, ours := o.(*v1.MountFault)
	switch {
	case verb == "list":
		n.asked = append(n.asked, fmt.Sprint(verb, " ", n.at()))
		return do()
	case !ours:
		return do()
	}
	n.asked = append(n.asked, fmt.Sprintf("%s %s %s", verb, f.Status.Code, n.at()))
	if n.refuse != nil {
		return n.refuse
	}
	if n.older && f.Status.Impact == v1.ImpactTerminating {
		return apierrors.NewInvalid(schema.GroupKind{Group: v1.Group, Kind: "MountFault"}, f.Name, nil)
	}
	return do()
}

func (n *testNode) at() time.Duration { return time.Since(n.began).Round(time.Second) }

func (n *testNode) faults() ([]*sentinel.Fault, []fault.Code) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.present), slices.Clone(n.unknown)
}

func (n *testNode) PodByUID(uid string) *corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods[uid]
}

func (n *testNode) Event(about runtime.Object, kind, reason, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ref := about.(*corev1.ObjectReference)
	n.events = append(n.events, fmt.Sprintf("%s %s/%s %s %s %s: %s", ref.Kind, ref.Namespace, ref.Name, ref.UID, kind, reason, message))
}

// answer has the next writes fail with err; nil: they go as they do.
func (n *testNode) answer(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = err
}

// looking sets the codes of which nothing is known yet.
func (n *testNode) looking(codes ...fault.Code) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unknown = codes
}

// set changes the faults as the sentinel does.
func (n *testNode) set(present ...*sentinel.Fault) {
	n.mu.Lock()
	n.present = present
	n.mu.Unlock()
	n.Changed()
}

// requests returns what was asked of the API server since the last call, and said the Events.
func (n *testNode) requests() (asked []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	asked, n.asked = n.asked, nil
	return asked
}

func (n *testNode) said() (events []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	events, n.events = n.events, nil
	return events
}

// objects are those that the API server has, by name.
func (n *testNode) objects(t *testing.T) map[string]v1.MountFault {
	t.Helper()
	var list v1.MountFaultList
	must(t, n.store.List(context.WithoutCancel(t.Context()), &list))
	all := map[string]v1.MountFault{}
	for _, f := range list.Items {
		all[f.Namespace+"/"+f.Name] = f
	}
	return all
}

// pod makes a pod that the node knows.
func (n *testNode) pod(name string, volumes ...corev1.Volume) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: "n1", Volumes: volumes},
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods[string(p.UID)] = p
	return p
}

func stale(p *corev1.Pod, container string) *sentinel.Fault {
	return &sentinel.Fault{
		Finding: fault.Finding{
			Code: fault.StaleSubPath, Pod: fault.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}, Container: container, Volume: "config",
			Mount: fault.Mount{ID: 7, Device: "0:93", Point: "/pods/it's/0"}, Evidence: []string{"link count is 0"},
			Details: fault.Details{Container: fault.ContainerRuns, Repair: fault.Replace},
		},
		Enter: fault.EnterFirst,
	}
}

func dead(p *corev1.Pod, container string) *sentinel.Fault {
	f := stale(p, container)
	f.Code, f.Volume, f.Mount.Point = fault.DisconnectedFUSE, "pv-1", "/pods/u/volumes/pv-1"+container
	f.Mount.FSType = "fuse.bindfs"
	f.Details = fault.Details{Driver: "csi.example.org", Place: fault.PlaceVolume, Refusal: fault.Refuse(fault.AwaitsDriver, "nothing is staged")}
	return f
}

func orphan(uid string) *sentinel.Fault {
	return &sentinel.Fault{Finding: fault.Finding{
		Code: fault.OrphanedPodVolumes, Pod: fault.Pod{UID: uid}, Evidence: []string{"no pod has that UID"},
		Details: fault.Details{Path: "/var/lib/kubelet/pods/" + uid, Repair: fault.RemoveDirectory},
	}}
}

// down is the fault with a container that does not run.
func down(f *sentinel.Fault) *sentinel.Fault {
	return changed(f, func(f *sentinel.Fault) { f.Details.Container = fault.ContainerDown })
}

func changed(f *sentinel.Fault, change func(*sentinel.Fault)) *sentinel.Fault {
	other := *f
	change(&other)
	return &other
}

var must = kerneltest.Must
