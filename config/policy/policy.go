// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy holds the ValidatingAdmissionPolicies of this release.
package policy

import "embed"

// Files are all manifests of this directory.
//
//go:embed *.yaml
var Files embed.FS
