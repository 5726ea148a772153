// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/crd"
	"kubediag.org/kubediag/config/policy"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/manifests"
)

const (
	applyDefault  = "kubectl apply -k config/default"
	applyPolicies = "kubectl apply -f config/policy"
)

// definition is what is compared of a CustomResourceDefinition.
type definition struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Versions []struct {
			Name   string `json:"name"`
			Schema struct {
				Root fieldSchema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

// fieldSchema is the part of a schema that names fields.
type fieldSchema struct {
	Properties map[string]fieldSchema `json:"properties"`
	Items      *fieldSchema           `json:"items"`
}

// kinds checks that the API server has all kinds, with all fields of this release.
func (d *doctor) kinds(ctx context.Context) (results []checked) {
	wanted, err := manifests.Read[definition](crd.Files, "CustomResourceDefinition")
	if err != nil {
		return []checked{unseen("CustomResourceDefinitions are", err)}
	}
	current := 0
	for _, want := range wanted {
		text, err := d.raw(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+want.Name)
		if errors.Is(err, errNotServed) {
			results = append(results, fail("install it: "+applyDefault, "CustomResourceDefinition %s is missing", want.Name))
			continue
		}
		var have definition
		if err == nil {
			err = json.Unmarshal(text, &have)
		}
		if err != nil {
			return []checked{unseen("CustomResourceDefinitions are", err)}
		}
		if missing := want.lacking(have); len(missing) > 0 {
			results = append(results, fail("apply those of this release: "+applyDefault, "CustomResourceDefinition %s is of another release: it has no field %s", want.Name, listed(missing)))
			continue
		}
		current++
	}
	if current > 0 {
		results = slices.Insert(results, 0, good("%s of %s are there and have all fields of this release", verb.Count(current, "CustomResourceDefinition"), v1.Group))
	}
	return results
}

// lacking are the fields that only want has.
func (want definition) lacking(have definition) (missing []string) {
	for _, version := range want.Spec.Versions {
		for _, other := range have.Spec.Versions {
			if other.Name == version.Name {
				version.Schema.Root.lacking(other.Schema.Root, "", &missing)
			}
		}
	}
	slices.Sort(missing)
	return missing
}

func (s fieldSchema) lacking(have fieldSchema, at string, missing *[]string) {
	for name, field := range s.Properties {
		other, ok := have.Properties[name]
		if !ok {
			*missing = append(*missing, at+name)
			continue
		}
		field.lacking(other, at+name+".", missing)
	}
	if s.Items != nil && have.Items != nil {
		s.Items.lacking(*have.Items, at, missing)
	}
}

// policies checks that the policies that ship are there, current and bound.
func (d *doctor) policies(ctx context.Context) (results []checked) {
	wanted, err := manifests.Read[admissionv1.ValidatingAdmissionPolicy](policy.Files, "ValidatingAdmissionPolicy")
	if err != nil {
		return []checked{unseen("policies are", err)}
	}
	var bound admissionv1.ValidatingAdmissionPolicyBindingList
	err = d.list(ctx, bindings.in(""), metav1.ListOptions{}, &bound)
	if errors.Is(err, errNotServed) {
		return []checked{warn("update to Kubernetes 1.30 or later, or let only those create Diagnoses who may repair any node",
			"no policies: this API server has no ValidatingAdmissionPolicies, as 1.%d has", policyServer)}
	}
	if err != nil {
		return []checked{unseen("policies are", err)}
	}
	var inForce []string
	for _, want := range wanted {
		var have admissionv1.ValidatingAdmissionPolicy
		err := d.get(ctx, policies.in(""), want.Name, &have)
		switch {
		case errors.Is(err, errMissing):
			results = append(results, warn("recommended: "+applyPolicies, "policy %s is not installed", want.Name))
		case err != nil:
			results = append(results, unseen("policy "+want.Name+" is", err))
		case !samePolicy(want, have):
			results = append(results, warn("if you did not change it: "+applyPolicies, "policy %s is not that of this release", want.Name))
		case !slices.ContainsFunc(bound.Items, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool { return b.Spec.PolicyName == want.Name }):
			results = append(results, warn(applyPolicies, "policy %s is in force nowhere: no binding names it", want.Name))
		default:
			inForce = append(inForce, want.Name)
		}
	}
	if len(inForce) > 0 {
		results = slices.Insert(results, 0, good("policies in force: %s", strings.Join(inForce, ", ")))
	}
	return results
}

// samePolicy compares what two policies check.
func samePolicy(a, b admissionv1.ValidatingAdmissionPolicy) bool {
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

// sets checks that the OperationSets can be used.
func (d *doctor) sets(ctx context.Context) []checked {
	var list v1.OperationSetList
	if err := d.list(ctx, sets.in(""), metav1.ListOptions{}, &list); err != nil {
		return []checked{unseen("OperationSets are", err)}
	}
	var results []checked
	ready, auto := 0, false
	for i := range list.Items {
		s := &list.Items[i]
		auto = auto || s.Name == v1.DefaultOperationSet
		if s.Status.Ready {
			ready++
			continue
		}
		why := "the manager has not looked at it"
		if c := meta.FindStatusCondition(s.Status.Conditions, v1.ConditionReady); c != nil {
			why = c.Message
		}
		results = append(results, warn("kubectl get operationset "+s.Name+" -o yaml", "OperationSet %s is not ready: %s", s.Name, why))
	}
	if !auto {
		results = append(results, fail("the manager installs it: look at the manager", "OperationSet %s is missing, which Diagnoses use that name none", v1.DefaultOperationSet))
	}
	if ready > 0 {
		results = slices.Insert(results, 0, good("%s ready", verb.Count(ready, "OperationSet")))
	}
	return results
}

// rights asks what the caller may do.
func (d *doctor) rights(ctx context.Context) []checked {
	var missing []string
	var unknown error
	for _, r := range []authorizationv1.ResourceAttributes{
		{Group: v1.Group, Resource: mountFaults.name, Verb: "list"},
		{Group: v1.Group, Resource: mountFaults.name, Verb: "watch"},
		{Group: v1.Group, Resource: diagnoses.name, Verb: "create", Namespace: d.namespace},
		{Group: v1.Group, Resource: diagnoses.name, Verb: "watch", Namespace: d.namespace},
		{Group: v1.Group, Resource: diagnoses.name, Verb: "delete", Namespace: d.namespace},
		{Group: v1.Group, Resource: sets.name, Verb: "use", Name: v1.DefaultOperationSet, Namespace: d.namespace},
		{Group: v1.Group, Resource: "nodes", Verb: "repair"},
		{Resource: pods.name, Verb: "get", Namespace: d.namespace},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r}}
		text := r.Verb + " " + resource{GroupVersion: v1.GroupVersion, name: r.Resource}.String()
		if r.Group == "" {
			text = r.Verb + " " + r.Resource
		}
		if r.Namespace != "" {
			text += " in namespace " + r.Namespace
		}
		if err := d.create(ctx, reviews.in(""), review); err != nil {
			unknown = err
		} else if !review.Status.Allowed {
			missing = append(missing, text)
		}
	}
	switch {
	case unknown != nil:
		return []checked{unseen("your rights are", unknown)}
	case len(missing) > 0:
		return []checked{warn("bind kubediag-view, kubediag-operator, kubediag-pod-repairer or kubediag-node-repairer, see docs/permissions.md",
			"you may not: %s", strings.Join(missing, "; "))}
	}
	return []checked{good("you may see faults, run and cancel Diagnoses in namespace %s, and repair any node", d.namespace)}
}
