// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// statusSource has the objects of a report. They are not changed.
type statusSource struct {
	api *client
	// followed are the lists that need not be asked for, by listName.
	followed map[string]*followedList
}

// listName names the objects of a kind of list in a namespace.
func listName(list ctrlclient.ObjectList, namespace string) string {
	return fmt.Sprintf("%T in %s", list, namespace)
}

// followedList has the objects of one kind in one namespace as a watch reports them, reduced to the fields of a report. An object in it never
// changes: a new one takes its place.
type followedList struct {
	objectWatcher

	ready chan struct{} // is closed by the first answer of the API server, or by its absence
}

// followList fills the list until ctx ends, or until the API server says that the user may not watch. It calls changed after each change.
func (l *followedList) followList(ctx context.Context, changed func()) {
	answer := sync.OnceFunc(func() { close(l.ready) })
	l.listed = func() {
		answer()
		changed()
	}
	l.connectionLost = func(error) { l.listed() }       // a report asks, and has the error
	_ = l.followChanges(ctx, func(objectChange) error { // a report has the error of a right
		changed()
		return nil
	})
	l.know(nil, false)
	l.listed()
}

// followState follows the faults and the Diagnoses of a namespace, and the records of repairs in kubediag's own, until ctx ends.
func followState(ctx context.Context, c *client, namespace, home string, changed func()) statusSource {
	s := statusSource{c, map[string]*followedList{}}
	follow := func(place string, newList func() ctrlclient.ObjectList) {
		l := &followedList{ready: make(chan struct{}), objectWatcher: objectWatcher{
			server: c.server, newList: newList, options: []ctrlclient.ListOption{ctrlclient.InNamespace(place)}, reduce: reduceForPage,
		}}
		l.know(nil, false)
		s.followed[listName(newList(), place)] = l
		go l.followList(ctx, changed)
	}
	diagnoses := func() ctrlclient.ObjectList { return &v1.DiagnosisList{} }
	follow(namespace, func() ctrlclient.ObjectList { return &v1.MountFaultList{} })
	follow(namespace, diagnoses)
	if namespace != "" && namespace != home {
		follow(home, diagnoses)
	}
	return s
}

// listForPage are the objects of a list in a namespace, reduced for a page: those that are followed, after the first answer of the API server,
// or those that the API server lists if they are not followed or not all known.
func listForPage[T runtime.Object](ctx context.Context, s statusSource, list ctrlclient.ObjectList, namespace string) (all []T, err error) {
	if l := s.followed[listName(list, namespace)]; l != nil {
		select {
		case <-ctx.Done():
		case <-l.ready:
		}
		if known, complete := l.known(); complete {
			for _, o := range known {
				all = append(all, o.(T))
			}
			return all, nil
		}
	}
	if err := s.api.server.List(ctx, list, ctrlclient.InNamespace(namespace)); err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		reduceForPage(o)
		all = append(all, o.(T))
		return nil
	})
	return all, err
}

// reduceForPage frees the parts of a fault or a Diagnosis that a report does not show: a page keeps them for long.
func reduceForPage(o runtime.Object) {
	switch o := o.(type) {
	case *v1.MountFault:
		o.Status.Evidence, o.Status.Commands, o.Status.Plan = nil, nil, ""
		o.ObjectMeta = reducedMetadata(&o.ObjectMeta)
	case *v1.Diagnosis:
		st := v1.DiagnosisStatus{
			Phase: o.Status.Phase, Outcome: o.Status.Outcome, CompletionTime: o.Status.CompletionTime, Target: o.Status.Target, Repeats: o.Status.Repeats,
		}
		if hasChanged(o) {
			st.Operations = []v1.OperationRun{{Actions: []v1.Action{{Phase: v1.ActionDone}}}}
		}
		for _, f := range o.Status.Faults {
			st.Faults = append(st.Faults, v1.Fault{Code: f.Code, Pod: f.Pod})
			if f.Pod != nil { // it names the namespace
				break
			}
		}
		parameters := map[string]string{}
		if device := o.Spec.Parameters[v1.ParamDevice]; device != "" {
			parameters[v1.ParamDevice] = device
		}
		o.Spec = v1.DiagnosisSpec{
			Mode: o.Spec.Mode, NodeName: o.Spec.NodeName, OperationSet: o.Spec.OperationSet, PodReference: o.Spec.PodReference, Parameters: parameters,
		}
		o.ObjectMeta, o.Status = reducedMetadata(&o.ObjectMeta), st
	}
}

// reducedMetadata has the names, the versions and the times of an object, and its origin.
func reducedMetadata(m *metav1.ObjectMeta) metav1.ObjectMeta {
	made := metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
	if origin := m.Labels[v1.LabelOrigin]; origin != "" {
		made.Labels = map[string]string{v1.LabelOrigin: origin}
	}
	return made
}
