// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package agent is the part of kubediag that runs on every node: it takes the Diagnoses that are bound to its node from
// the API server, has the pipeline run them, and writes their results to the API server.
//
// It watches no more than its own node's work, so no watch of it grows with the cluster. It decides nothing about faults
// and repairs, and holds no state that a restart would lose: the work under way is in the pipeline's journal, and
// its results are in the status of the Diagnosis.
package agent

// The permissions of the agent in the API. They include no Secrets, and no change of a Pod or a spec. The Diagnoses
// that it creates are records of the repairs of its sentinel.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=create,namespace=kubediag
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses/status,verbs=patch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=operations;operationsets,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=mountfaults,verbs=create;delete;get;list;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,resourceNames=kubediag-diagnosis-rights,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=create;patch,namespace=kubediag
