// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// statusSource has the objects of a report. They are not changed.
type statusSource interface {
	api() *client
	listFaults(ctx context.Context, namespace string) ([]*v1.MountFault, error)
	listDiagnoses(ctx context.Context, namespace string) ([]*v1.Diagnosis, error)
}

// listSource asks the API server for the objects.
type listSource struct{ asked *client }

func (s listSource) api() *client { return s.asked }

func (s listSource) listFaults(ctx context.Context, namespace string) ([]*v1.MountFault, error) {
	return listForPage[*v1.MountFault](ctx, s.asked, &v1.MountFaultList{}, namespace)
}

func (s listSource) listDiagnoses(ctx context.Context, namespace string) ([]*v1.Diagnosis, error) {
	return listForPage[*v1.Diagnosis](ctx, s.asked, &v1.DiagnosisList{}, namespace)
}

// listForPage asks the API server for the objects of a list, reduced for a page.
func listForPage[T runtime.Object](ctx context.Context, c *client, list ctrlclient.ObjectList, namespace string) (all []T, err error) {
	if err := c.server.List(ctx, list, ctrlclient.InNamespace(namespace)); err != nil {
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
