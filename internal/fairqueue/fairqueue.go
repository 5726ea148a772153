// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package fairqueue makes work queues of controllers in which tenants take turns. It reads owners from caches, and asks no server.
package fairqueue

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/share"
)

// Maker makes the work queue of a controller, as an option of it.
type Maker = func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request]

// InTurns has owners take turns in the work queue of a controller: the objects of a tenant that has many delay one of another tenant
// by one turn.
func InTurns(owner func(reconcile.Request) share.Owner) Maker {
	return func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		return New(name, limiter, share.NewStore(owner))
	}
}

// New makes the work queue of a controller on top of a store, which orders the requests. It keeps each request once, and those that are
// to be tried later.
func New(name string, limiter workqueue.TypedRateLimiter[reconcile.Request], store workqueue.Queue[reconcile.Request],
) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	type request = reconcile.Request
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[request]{Name: name, Queue: store})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[request]{Name: name, Queue: queue})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[request]{
		Name: name, DelayingQueue: delaying,
	})
}

// DiagnosisOwner returns on whose account a Diagnosis is worked on: its namespace. All that is made without a person is in kubediag's own,
// for the pods of all others, so the pod counts there. In other namespaces the creator chooses the pod.
func DiagnosisOwner(cache client.Reader, own string) func(reconcile.Request) share.Owner {
	return func(r reconcile.Request) share.Owner {
		owner := share.Owner{Namespace: r.Namespace}
		if r.Namespace != own {
			return owner
		}
		d := &v1.Diagnosis{}
		if err := cache.Get(context.Background(), r.NamespacedName, d); err == nil && d.Spec.PodReference != nil {
			owner = share.Owner{Namespace: d.Spec.PodReference.Namespace, Pod: d.Spec.PodReference.Name}
		}
		return owner
	}
}

// FaultOwner returns on whose account a MountFault is worked on: its namespace, and there the node that shows it. So an agent that was taken
// over delays no fault of another node.
func FaultOwner(cache client.Reader) func(reconcile.Request) share.Owner {
	return func(r reconcile.Request) share.Owner {
		owner, f := share.Owner{Namespace: r.Namespace}, &v1.MountFault{}
		if err := cache.Get(context.Background(), r.NamespacedName, f); err == nil {
			owner.Pod = f.Status.Node
		}
		return owner
	}
}

// NamespaceOwner is the namespace of an object.
func NamespaceOwner(r reconcile.Request) share.Owner { return share.Owner{Namespace: r.Namespace} }
