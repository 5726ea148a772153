// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy holds the ValidatingAdmissionPolicies of this release.
package policy

import (
	"embed"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// Files are all manifests of this directory.
//
//go:embed *.yaml
var Files embed.FS

// Same reports whether two policies check the same. The requests that they leave out may differ: they name the namespace of kubediag.
func Same(a, b admissionv1.ValidatingAdmissionPolicy) bool {
	expressions := func(p admissionv1.ValidatingAdmissionPolicy) (all []string) {
		for _, v := range p.Spec.Validations {
			all = append(all, strings.TrimSpace(v.Expression))
		}
		for _, v := range p.Spec.Variables {
			all = append(all, v.Name+" "+strings.TrimSpace(v.Expression))
		}
		return all
	}
	return slices.Equal(expressions(a), expressions(b))
}
