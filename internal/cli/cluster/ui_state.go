// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// followedList has the objects of one kind in one namespace as a watch reports them, reduced to the fields of the first page. So a page
// need not list them. An object in it never changes: a new one takes its place.
type followedList[O ctrlclient.Object] struct {
	namespace string        // empty: all
	answered  chan struct{} // is closed by the first answer of the API server, or by its absence

	mu       sync.Mutex
	byUID    map[types.UID]O
	complete bool // byUID has all objects
}

// follow fills the list until ctx ends, or until the API server says that the user may not watch. It calls changed after each change.
func (l *followedList[O]) followList(ctx context.Context, server ctrlclient.WithWatch, newList func() ctrlclient.ObjectList, changed func()) {
	answer := sync.OnceFunc(func() { close(l.answered) })
	w := &objectWatcher{
		server: server, newList: newList, options: []ctrlclient.ListOption{ctrlclient.InNamespace(l.namespace)}, reduce: reduceForPage,
		listed: func() {
			l.locked(func() { l.complete = true })
			answer()
			changed()
		},
		connectionLost: func(error) { // the page asks, and has the error
			answer()
			changed()
		},
	}
	_ = w.followChanges(ctx, func(now objectChange) error { // the page has the error of a right
		if o, ok := now.object.(O); ok && now.kind == watch.Deleted {
			l.locked(func() { delete(l.byUID, o.GetUID()) })
		} else if ok {
			l.locked(func() { l.byUID[o.GetUID()] = o })
		}
		changed()
		return nil
	})
	l.locked(func() { l.complete, l.byUID = false, nil })
	answer()
	changed()
}

func (l *followedList[O]) locked(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
}

// followedState are the faults and Diagnoses that the pages show. It asks the API server for those that cannot be followed.
type followedState struct {
	listSource

	faultLists     []*followedList[*v1.MountFault]
	diagnosisLists []*followedList[*v1.Diagnosis]
}

// followState follows the faults and the Diagnoses of a namespace, and the records of repairs in kubediag's own, until ctx ends.
func followState(ctx context.Context, c *client, namespace, home string, changed func()) *followedState {
	s := &followedState{listSource: listSource{c}}
	places := []string{namespace}
	if namespace != "" && namespace != home {
		places = append(places, home)
	}
	l := &followedList[*v1.MountFault]{namespace: namespace, answered: make(chan struct{}), byUID: map[types.UID]*v1.MountFault{}}
	s.faultLists = append(s.faultLists, l)
	go l.followList(ctx, c.server, func() ctrlclient.ObjectList { return &v1.MountFaultList{} }, changed)
	for _, place := range places {
		l := &followedList[*v1.Diagnosis]{namespace: place, answered: make(chan struct{}), byUID: map[types.UID]*v1.Diagnosis{}}
		s.diagnosisLists = append(s.diagnosisLists, l)
		go l.followList(ctx, c.server, func() ctrlclient.ObjectList { return &v1.DiagnosisList{} }, changed)
	}
	return s
}

func (s *followedState) listFaults(ctx context.Context, namespace string) ([]*v1.MountFault, error) {
	return itemsOrAsk(ctx, s.asked, namespace, s.faultLists, &v1.MountFaultList{})
}

func (s *followedState) listDiagnoses(ctx context.Context, namespace string) ([]*v1.Diagnosis, error) {
	return itemsOrAsk(ctx, s.asked, namespace, s.diagnosisLists, &v1.DiagnosisList{})
}

// itemsOrAsk are the objects of a namespace from a list that is followed, after the first answer of the API server, or from the API server if
// there is no such list or it does not have all.
func itemsOrAsk[O ctrlclient.Object](ctx context.Context, c *client, namespace string, lists []*followedList[O], list ctrlclient.ObjectList) ([]O, error) {
	for _, l := range lists {
		if l.namespace != namespace {
			continue
		}
		select {
		case <-ctx.Done():
		case <-l.answered:
		}
		var all []O
		complete := false
		l.locked(func() { all, complete = slices.Collect(maps.Values(l.byUID)), l.complete })
		if complete {
			return all, nil
		}
	}
	return listForPage[O](ctx, c, list, namespace)
}
