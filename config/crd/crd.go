// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package crd holds the CustomResourceDefinitions of this release.
package crd

import "embed"

// Files are all manifests of this directory.
//
//go:embed diagnosis.kubediag.org_*.yaml
var Files embed.FS
