// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/share"
)

// The most Diagnoses that are bound and have not ended: of a namespace, and of a node, where a namespace without any may have one more.
const (
	maxOfNamespace = 64
	maxOfNode      = 256
)

// placeIndex finds the Diagnoses that have a place and have not ended, by namespace and by node.
const placeIndex = "diagnosis.place"

// Prefixes of the values of placeIndex.
const (
	ofNamespace = "namespace/"
	ofNode      = "node/"
)

// places has the Diagnoses that were given a place, and that the cache may not show with it yet.
type places struct {
	mu    sync.Mutex
	taken map[types.UID]*v1.Diagnosis
}

// placeValues returns the values of placeIndex.
func (r *Reconciler) placeValues(o client.Object) []string {
	if d, ok := o.(*v1.Diagnosis); ok && d.HasPlace() && !isOver(d) {
		return r.shares(d)
	}
	return nil
}

// countsFor returns the namespace for which a Diagnosis counts. Triggers and policies make Diagnoses of all pods in kubediag's own namespace: those
// count for the namespace of the pod, but apart from those that the tenant makes.
func (r *Reconciler) countsFor(d *v1.Diagnosis) share.Owner {
	if ref := d.Spec.PodReference; ref != nil && d.Namespace == r.Agents.Namespace {
		return share.Owner{Namespace: d.Namespace + "/" + ref.Namespace}
	}
	return share.Owner{Namespace: d.Namespace}
}

// shares returns the limits for which a Diagnosis counts: of its owner, and of its node.
func (r *Reconciler) shares(d *v1.Diagnosis) []string {
	var all []string
	if namespace := r.countsFor(d).Namespace; namespace != r.Agents.Namespace {
		all = append(all, ofNamespace+namespace)
	}
	if d.Spec.NodeName != "" {
		all = append(all, ofNode+d.Spec.NodeName)
	}
	return all
}

// findPlace says why there is no place for a Diagnosis, if so. It takes one if the Diagnosis is to be bound now. It sends no request to
// the API server, however many Diagnoses wait.
func (r *Reconciler) findPlace(ctx context.Context, d *v1.Diagnosis, take bool) (why string, err error) {
	r.places.mu.Lock()
	defer r.places.mu.Unlock()
	for uid, taken := range r.places.taken { // forget places that the cache shows, and places of Diagnoses that are gone or over
		var now v1.Diagnosis
		err := r.Client.Get(ctx, client.ObjectKeyFromObject(taken), &now)
		if client.IgnoreNotFound(err) != nil {
			return "", fmt.Errorf("reading diagnosis %s/%s: %w", taken.Namespace, taken.Name, err)
		}
		if err != nil || now.UID != uid || now.HasPlace() || isOver(&now) {
			delete(r.places.taken, uid)
		}
	}
	owner := r.countsFor(d)
	namespace := strings.TrimPrefix(owner.Namespace, r.Agents.Namespace+"/")
	for _, limit := range r.shares(d) {
		others, err := r.others(ctx, d, limit)
		if err != nil {
			return "", err
		}
		if strings.HasPrefix(limit, ofNamespace) {
			if n := len(others); n >= maxOfNamespace {
				return fmt.Sprintf("%d Diagnoses of namespace %s have not ended, and more are not run at once: this one waits until one of them ends",
					n, namespace), nil
			}
			continue
		}
		room := share.Room{Places: maxOfNode, PerNamespace: 1}
		for _, other := range others {
			room.Add(r.countsFor(other))
		}
		if !room.May(owner) {
			return fmt.Sprintf("%d Diagnoses of node %s have not ended, and namespace %s has its share of them: this one waits until one of them ends",
				len(others), d.Spec.NodeName, namespace), nil
		}
	}
	if !take {
		return "", nil
	}
	if r.places.taken == nil {
		r.places.taken = map[types.UID]*v1.Diagnosis{}
	}
	r.places.taken[d.UID] = d.DeepCopy()
	return "", nil
}

// others returns the other Diagnoses that have a place of a limit.
func (r *Reconciler) others(ctx context.Context, d *v1.Diagnosis, limit string) (map[types.UID]*v1.Diagnosis, error) {
	var list v1.DiagnosisList
	if err := r.Client.List(ctx, &list, client.MatchingFields{placeIndex: limit}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing diagnoses with a place of %s: %w", limit, err)
	}
	others := map[types.UID]*v1.Diagnosis{}
	for i := range list.Items {
		others[list.Items[i].UID] = &list.Items[i]
	}
	for uid, taken := range r.places.taken {
		if slices.Contains(r.shares(taken), limit) {
			others[uid] = taken
		}
	}
	delete(others, d.UID)
	return others, nil
}
