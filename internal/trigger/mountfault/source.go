// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package mountfault compares the MountFaults that the agents write with Triggers, and offers those that match. It watches
// nothing else: labels of pods, namespaces and nodes are read when a template has a selector for them and the rest matches.
//
// A fault is compared when it appears, when it changes, when a Trigger changes, when it has lasted long enough, and again and again
// while it stays. So nothing is remembered, and a fault whose Diagnosis could not be made yet is not lost.
package mountfault

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fairqueue"
	"kubediag.org/kubediag/internal/trigger"
)

const (
	// workers is how many faults are compared at once.
	workers = 4
	// readTimeout bounds the requests of one comparison.
	readTimeout = 10 * time.Second
	// fullDelay is when a fault is compared again for which a Trigger had no room.
	fullDelay = time.Minute
)

// Source compares MountFaults.
type Source struct {
	// Faults reads MountFaults from a cache.
	Faults client.Reader
	// Reader asks the API server itself for labels.
	Reader client.Reader
	Clock  clock.PassiveClock
	// To takes the causes that Triggers match.
	To trigger.Offerer

	rules   trigger.Rules[*signal]
	changed chan event.GenericEvent // holds one when the rules have changed

	installed sync.Map // the version of the Trigger, by its name
}

// version is that of a Trigger's spec.
type version struct {
	uid        types.UID
	generation int64
}

// New makes a source that offers the causes that Triggers match. SetupWithManager begins to watch.
func New(c client.Client, reader client.Reader, to trigger.Offerer, clock clock.PassiveClock) *Source {
	return &Source{Faults: c, Reader: reader, To: to, Clock: clock, changed: make(chan event.GenericEvent, 1)}
}

// SetupWithManager adds the source to a manager. It works on the leader only.
func (s *Source) SetupWithManager(m manager.Manager) error {
	return builder.ControllerManagedBy(m).Named("trigger-mountfault").
		For(&v1.MountFault{}, builder.WithPredicates(predicate.Funcs{
			UpdateFunc: changes, DeleteFunc: func(event.DeleteEvent) bool { return false },
		})).
		WatchesRawSource(source.Channel(s.changed, handler.EnqueueRequestsFromMapFunc(s.all))).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: fairqueue.InTurns(fairqueue.FaultOwner(s.Faults))}).
		Complete(s)
}

// changes reports whether an update may match where the earlier state did not. Agents write more into a MountFault than is
// compared.
func changes(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1.MountFault)
	now, ok2 := e.ObjectNew.(*v1.MountFault)
	return !ok || !ok2 || !reflect.DeepEqual(compared(before), compared(now))
}

// compared is the part of a MountFault that decides whether it matches, and names the target of the Diagnosis.
func compared(f *v1.MountFault) v1.MountFaultStatus {
	s := &f.Status
	return v1.MountFaultStatus{Code: s.Code, Node: s.Node, Pod: s.Pod, Since: s.Since}
}

// Install takes a Trigger, and forgets it if it is of another source.
func (s *Source) Install(t *v1.Trigger) error {
	installed, err := s.rules.Install(t, compile)
	if !installed {
		s.Remove(t.Name)
		return err
	}
	now := version{t.UID, t.Generation}
	if before, _ := s.installed.Swap(t.Name, now); before == now { // a Trigger is installed at each look at it
		return nil
	}
	select {
	case s.changed <- event.GenericEvent{Object: &v1.MountFault{}}: // which has every fault compared
	default:
	}
	return nil
}

// Remove forgets a Trigger.
func (s *Source) Remove(name string) {
	s.rules.Remove(name)
	s.installed.Delete(name)
}

// all asks for a comparison of every fault.
func (s *Source) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var faults v1.MountFaultList
	if err := s.Faults.List(ctx, &faults, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is not filled yet: each fault comes by itself
	}
	requests := make([]reconcile.Request, 0, len(faults.Items))
	for i := range faults.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&faults.Items[i])})
	}
	return requests
}

// Reconcile compares one fault with all Triggers.
func (s *Source) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	if s.rules.Empty() {
		return reconcile.Result{}, nil
	}
	var f v1.MountFault
	if err := s.Faults.Get(ctx, r.NamespacedName, &f); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	trigger.Seen(trigger.KindMountFault)
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	now := &signal{fault: &f, labels: &labels{ctx: ctx, reader: s.Reader, read: map[string]*metav1.PartialObjectMetadata{}}, now: s.Clock.Now()}
	if _, full := s.rules.Apply(s.To, now); full != nil {
		now.later(fullDelay)
	}
	if now.err != nil {
		return reconcile.Result{}, fmt.Errorf("comparing mountfault %s: %w", r.NamespacedName, now.err)
	}
	return reconcile.Result{RequeueAfter: now.again}, nil
}
