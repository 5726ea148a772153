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
)

// The most Diagnoses that are bound and have not ended.
const (
	maxOfNamespace = 64
	maxOfNode      = 256
)

// boundIndex finds the Diagnoses that are bound and have not ended, by namespace and by node.
const boundIndex = "diagnosis.bound"

// Prefixes of the values of boundIndex.
const (
	ofNamespace = "namespace/"
	ofNode      = "node/"
)

// places has the Diagnoses that were bound, and that the cache may not show as bound yet.
type places struct {
	mu    sync.Mutex
	taken map[types.UID]*v1.Diagnosis
}

// boundValues returns the values of boundIndex.
func (r *Reconciler) boundValues(o client.Object) []string {
	if d, ok := o.(*v1.Diagnosis); ok && isBound(d) && !isOver(d) {
		return r.shares(d)
	}
	return nil
}

// shares returns the limits for which a Diagnosis counts: of its node, and of its namespace. Triggers and policies make Diagnoses of all
// pods in kubediag's own namespace: these count for the namespace of the pod.
func (r *Reconciler) shares(d *v1.Diagnosis) []string {
	namespace := d.Namespace
	if namespace == r.Agents.Namespace {
		if namespace = ""; d.Spec.PodReference != nil {
			namespace = d.Spec.PodReference.Namespace
		}
	}
	var all []string
	if namespace != "" {
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
		if err != nil || now.UID != uid || isBound(&now) || isOver(&now) {
			delete(r.places.taken, uid)
		}
	}
	for _, share := range r.shares(d) {
		most, whose := maxOfNode, "node "+d.Spec.NodeName
		if name, ok := strings.CutPrefix(share, ofNamespace); ok {
			most, whose = maxOfNamespace, "namespace "+name
		}
		var list v1.DiagnosisList
		if err := r.Client.List(ctx, &list, client.MatchingFields{boundIndex: share}, client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("listing bound diagnoses of %s: %w", share, err)
		}
		counted := map[types.UID]bool{} // the other Diagnoses that have a place of the share
		for i := range list.Items {
			counted[list.Items[i].UID] = true
		}
		for uid, taken := range r.places.taken {
			if slices.Contains(r.shares(taken), share) {
				counted[uid] = true
			}
		}
		delete(counted, d.UID)
		if n := len(counted); n >= most {
			return fmt.Sprintf("%d Diagnoses of %s have not ended, and more are not run at once: this one waits until one of them ends", n, whose), nil
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
