// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package samples holds the manifests of this directory, so that the demo and the tests use those that users apply.
package samples

import _ "embed"

// Diagnosis is one that runs the OperationSet subpath-remount-op-set; its node and pod are to be filled in.
//
//go:embed diagnosis.yaml
var Diagnosis string
