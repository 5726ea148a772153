// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	v1 "kubediag.org/kubediag/api/v1"
)

// NewScheme makes a scheme of the groups that kubediag reads and writes: its own, core, coordination, storage and the
// policies of admission.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme, admissionv1.AddToScheme, storagev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering kinds: %w", err)
		}
	}
	return scheme, nil
}

// newMapper knows the few kinds that are used. It sends no request to the API server. So no process reads all
// kinds of a server, and no process stops because the CustomResourceDefinitions come after it.
func newMapper(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, k := range []struct {
		group            schema.GroupVersion
		kind             string
		plural, singular string
		scope            meta.RESTScope
	}{
		{v1.GroupVersion, "Diagnosis", "diagnoses", "diagnosis", meta.RESTScopeNamespace},
		{v1.GroupVersion, "Operation", "operations", "operation", meta.RESTScopeRoot},
		{v1.GroupVersion, "OperationSet", "operationsets", "operationset", meta.RESTScopeRoot},
		{v1.GroupVersion, "Trigger", "triggers", "trigger", meta.RESTScopeRoot},
		{v1.GroupVersion, "RecoveryApproval", "recoveryapprovals", "recoveryapproval", meta.RESTScopeNamespace},
		{v1.GroupVersion, "MountFault", "mountfaults", "mountfault", meta.RESTScopeNamespace},
		{v1.GroupVersion, "RecoveryPolicy", "recoverypolicies", "recoverypolicy", meta.RESTScopeRoot},
		{corev1.SchemeGroupVersion, "Pod", "pods", "pod", meta.RESTScopeNamespace},
		{corev1.SchemeGroupVersion, "Node", "nodes", "node", meta.RESTScopeRoot},
		{corev1.SchemeGroupVersion, "Namespace", "namespaces", "namespace", meta.RESTScopeRoot},
		{corev1.SchemeGroupVersion, "PersistentVolumeClaim", "persistentvolumeclaims", "persistentvolumeclaim", meta.RESTScopeNamespace},
		{corev1.SchemeGroupVersion, "PersistentVolume", "persistentvolumes", "persistentvolume", meta.RESTScopeRoot},
		{storagev1.SchemeGroupVersion, "CSIDriver", "csidrivers", "csidriver", meta.RESTScopeRoot},
		{storagev1.SchemeGroupVersion, "CSINode", "csinodes", "csinode", meta.RESTScopeRoot},
		{storagev1.SchemeGroupVersion, "VolumeAttachment", "volumeattachments", "volumeattachment", meta.RESTScopeRoot},
		{admissionv1.SchemeGroupVersion, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "validatingadmissionpolicy", meta.RESTScopeRoot},
		{
			admissionv1.SchemeGroupVersion, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings",
			"validatingadmissionpolicybinding", meta.RESTScopeRoot,
		},
		{coordinationv1.SchemeGroupVersion, "Lease", "leases", "lease", meta.RESTScopeNamespace},
	} {
		mapper.AddSpecific(k.group.WithKind(k.kind), k.group.WithResource(k.plural), k.group.WithResource(k.singular), k.scope)
	}
	return mapper, nil
}
