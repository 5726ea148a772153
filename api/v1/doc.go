// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1 holds the KubeDiag API, group diagnosis.kubediag.org, version v1: Operation, OperationSet, Diagnosis,
// Trigger and MountFault. Objects written for the releases v0.2.0 to v0.3.1 of KubeDiag decode and validate without change.
//
// The package imports apimachinery only, so that anybody can import it. The rules about a single object are checked
// twice: by the schema and CEL rules of the CustomResourceDefinition, and by the Validate methods here. The
// controllers call these, because API servers before 1.25 drop CEL rules in silence.
//
// +kubebuilder:object:generate=true
// +groupName=diagnosis.kubediag.org
package v1
