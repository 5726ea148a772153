// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of every kind in this package.
const Group = "diagnosis.kubediag.org"

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1"}

// AddToScheme registers the kinds of this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&Operation{}, &OperationList{},
		&OperationSet{}, &OperationSetList{},
		&Diagnosis{}, &DiagnosisList{},
		&Trigger{}, &TriggerList{},
		&MountFault{}, &MountFaultList{},
		&RecoveryPolicy{}, &RecoveryPolicyList{},
		&RecoveryApproval{}, &RecoveryApprovalList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
