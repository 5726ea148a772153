// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy holds the ValidatingAdmissionPolicies of this release.
package policy

import (
	"cmp"
	"embed"
	"regexp"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Files are all manifests of this directory.
//
//go:embed *.yaml
var Files embed.FS

// Same reports whether two policies check the same requests in the same way. The namespace of kubediag's own service accounts may differ.
func Same(a, b admissionv1.ValidatingAdmissionPolicy) bool {
	return equality.Semantic.DeepEqual(meaning(a), meaning(b))
}

// meaning is the part of a policy that decides, with the defaults of the API server.
func meaning(p admissionv1.ValidatingAdmissionPolicy) (decides struct {
	Checks []string
	Asked  admissionv1.MatchResources
}) {
	for _, v := range p.Spec.Validations {
		decides.Checks = append(decides.Checks, strings.TrimSpace(v.Expression))
	}
	for _, v := range p.Spec.Variables {
		decides.Checks = append(decides.Checks, v.Name+" "+strings.TrimSpace(v.Expression))
	}
	for _, c := range p.Spec.MatchConditions {
		decides.Checks = append(decides.Checks, c.Name+" "+ownAccount.ReplaceAllString(strings.TrimSpace(c.Expression), "own:$1"))
	}
	if p.Spec.ParamKind != nil {
		decides.Checks = append(decides.Checks, p.Spec.ParamKind.String())
	}
	if p.Spec.MatchConstraints != nil {
		p.Spec.MatchConstraints.DeepCopyInto(&decides.Asked)
	}
	m := &decides.Asked
	m.MatchPolicy = cmp.Or(m.MatchPolicy, new(admissionv1.Equivalent))
	m.NamespaceSelector, m.ObjectSelector = cmp.Or(m.NamespaceSelector, &metav1.LabelSelector{}), cmp.Or(m.ObjectSelector, &metav1.LabelSelector{})
	for i := range m.ResourceRules {
		m.ResourceRules[i].Scope = cmp.Or(m.ResourceRules[i].Scope, new(admissionv1.AllScopes))
	}
	return decides
}

// ownAccount is a service account of kubediag, in any namespace.
var ownAccount = regexp.MustCompile(`system:serviceaccount:[a-z0-9-]+:(kubediag-(?:manager|agent))`)
