// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/crd"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/manifests"
)

const applyDefault = "kubectl apply -k config/default, or -f install.yaml of a release"

// crdDefinition has the fields of a CustomResourceDefinition that are compared.
type crdDefinition struct {
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

// checkKinds checks that the API server has all kinds, with all fields of this release.
func (k *installationCheck) checkKinds(ctx context.Context) (results []checkResult) {
	wanted, err := manifests.Read[crdDefinition](crd.Files, "CustomResourceDefinition")
	if err != nil {
		return []checkResult{uncheckedResult("CustomResourceDefinitions are", err)}
	}
	current := 0
	var absent []string
	for _, want := range wanted {
		read := &unstructured.Unstructured{}
		read.SetGroupVersionKind(definitionKind)
		err := k.api.server.Get(ctx, ctrlclient.ObjectKey{Name: want.Name}, read)
		if errors.Is(err, errMissing) || errors.Is(err, errNotServed) {
			absent = append(absent, want.Name)
			continue
		}
		var have crdDefinition
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(read.Object, &have)
		}
		if err != nil {
			return []checkResult{uncheckedResult("CustomResourceDefinitions are", err)}
		}
		if k.helm == nil {
			k.helm = helmReleaseOf(&have.ObjectMeta)
		}
		if missing := want.missingFields(have); len(missing) > 0 {
			results = append(results, failResult("apply those of this release: "+applyDefault,
				"CustomResourceDefinition %s is of another release: it has no field %s", want.Name, joinNames(missing)))
			continue
		}
		current++
	}
	if len(absent) == len(wanted) {
		k.absent = true
		return []checkResult{failResult(applyDefault+", or helm install: see docs/install.md",
			"kubediag is not installed: the API server has none of its %s", verb.Count(len(absent), "CustomResourceDefinition"))}
	}
	switch len(absent) {
	case 0:
	case 1:
		results = append(results, failResult("install it: "+applyDefault, "CustomResourceDefinition %s is missing", absent[0]))
	default:
		results = append(results, failResult(applyDefault, "%s are missing: %s", verb.Count(len(absent), "CustomResourceDefinition"), strings.ReplaceAll(joinNames(absent), "."+v1.Group, "")))
	}
	if current > 0 {
		results = slices.Insert(results, 0, okResult("%s of %s are there and have all fields of this release", verb.Count(current, "CustomResourceDefinition"), v1.Group))
	}
	return results
}

// missingFields are the fields that only want has.
func (want crdDefinition) missingFields(have crdDefinition) (missing []string) {
	for _, version := range want.Spec.Versions {
		for _, other := range have.Spec.Versions {
			if other.Name == version.Name {
				version.Schema.Root.missingFields(other.Schema.Root, "", &missing)
			}
		}
	}
	slices.Sort(missing)
	return missing
}

func (s fieldSchema) missingFields(have fieldSchema, at string, missing *[]string) {
	for name, field := range s.Properties {
		other, ok := have.Properties[name]
		if !ok {
			*missing = append(*missing, at+name)
			continue
		}
		field.missingFields(other, at+name+".", missing)
	}
	if s.Items != nil && have.Items != nil {
		s.Items.missingFields(*have.Items, at, missing)
	}
}

// checkOperationSets checks that the OperationSets can be used.
func (k *installationCheck) checkOperationSets(ctx context.Context) []checkResult {
	var list v1.OperationSetList
	if err := k.api.server.List(ctx, &list); err != nil {
		return []checkResult{uncheckedResult("OperationSets are", err)}
	}
	var results []checkResult
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
		results = append(results, warnResult("kubectl get operationset "+s.Name+" -o yaml", "OperationSet %s is not ready: %s", s.Name, why))
	}
	if !auto {
		results = append(results, failResult("wait a few seconds; then look at the manager, which installs it",
			"OperationSet %s is missing: Diagnoses that name no OperationSet use it", v1.DefaultOperationSet))
	}
	if ready > 0 {
		results = slices.Insert(results, 0, okResult("%s ready", verb.Count(ready, "OperationSet")))
	}
	return results
}

// checkRights asks for the rights of the caller.
func (k *installationCheck) checkRights(ctx context.Context) []checkResult {
	var missing, missingHere []string // in the whole cluster, and in the namespace
	var unknown error
	for _, r := range []authorizationv1.ResourceAttributes{
		{Group: v1.Group, Resource: "mountfaults", Verb: "list"},
		{Group: v1.Group, Resource: "mountfaults", Verb: "watch"},
		{Group: v1.Group, Resource: "diagnoses", Verb: "create", Namespace: k.api.namespace},
		{Group: v1.Group, Resource: "diagnoses", Verb: "watch", Namespace: k.api.namespace},
		{Group: v1.Group, Resource: "diagnoses", Verb: "delete", Namespace: k.api.namespace},
		{Group: v1.Group, Resource: "operationsets", Verb: "use", Name: v1.DefaultOperationSet, Namespace: k.api.namespace},
		{Group: v1.Group, Resource: "nodes", Verb: "repair"},
		{Resource: "pods", Verb: "get", Namespace: k.api.namespace},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r}}
		switch err := k.api.server.Create(ctx, review); {
		case err != nil:
			unknown = err
		case review.Status.Allowed:
		case r.Namespace == "":
			missing = append(missing, r.Verb+" "+r.Resource)
		default:
			missingHere = append(missingHere, r.Verb+" "+r.Resource)
		}
	}
	if len(missingHere) > 0 {
		missingHere[0] = "in namespace " + k.api.namespace + ": " + missingHere[0]
	}
	missing = append(missing, missingHere...)
	switch {
	case unknown != nil:
		return []checkResult{uncheckedResult("your rights are", unknown)}
	case len(missing) > 0:
		return []checkResult{warnResult("bind kubediag-view, kubediag-operator, kubediag-pod-repairer or kubediag-node-repairer, see docs/permissions.md",
			"you may not: %s", strings.Join(missing, "; "))}
	}
	return []checkResult{okResult("you may see faults, run and cancel Diagnoses in namespace %s, and repair any node", k.api.namespace)}
}
