// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package admission says if the API server asks for the rights of the people who create Diagnoses: if it serves the
// ValidatingAdmissionPolicy of this release, and a binding puts it in force. It checks no right itself.
package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/policy"
	"kubediag.org/kubediag/internal/manifests"
	"kubediag.org/kubediag/internal/printable"
)

// policyName is that of the policy that asks for the rights of a Diagnosis, and of its binding.
const policyName = "kubediag-diagnosis-rights"

// Rights knows if the policy is in force.
type Rights struct {
	// Reader asks the API server itself.
	Reader client.Reader
	// Namespace is that of kubediag, whose Diagnoses may be about every pod.
	Namespace string
}

// Refusal says why a Diagnosis may not be about its pod; empty: it may. In its own namespace the author of a Diagnosis has the right to
// create it. Only the policy asks if the author has rights in another one.
func (r *Rights) Refusal(ctx context.Context, d *v1.Diagnosis) (string, error) {
	ref := d.Spec.PodReference
	if ref == nil || ref.Namespace == d.Namespace || d.Namespace == r.Namespace {
		return "", nil
	}
	absent, since, err := r.absent(ctx)
	if err == nil && absent == "" && d.CreationTimestamp.Time.Before(since) {
		absent = "the policy is in force only since " + printable.Time(since)
	}
	if err != nil || absent == "" {
		return "", err
	}
	return fmt.Sprintf("spec.podReference: the Diagnosis is not in the namespace of Pod %s/%s, and no policy asks for the rights of its author "+
		"there: %s. Create the Diagnosis in namespace %s", ref.Namespace, ref.Name, absent, ref.Namespace), nil
}

// absent says why the policy is not in force; empty: it is, and since when. The API server does not ask about older objects.
func (r *Rights) absent(ctx context.Context) (why string, since time.Time, err error) {
	want, err := shippedPolicy()
	if err != nil {
		return "", since, err
	}
	var have admissionv1.ValidatingAdmissionPolicy
	if absent, err := r.readNamed(ctx, "ValidatingAdmissionPolicy", &have); err != nil || absent != "" {
		return absent, since, err
	}
	if !policy.Same(want, have) || have.Spec.FailurePolicy != nil && *have.Spec.FailurePolicy != admissionv1.Fail {
		return "ValidatingAdmissionPolicy " + policyName + " is not that of this release: apply config/policy/diagnosis-rights.yaml", since, nil
	}
	var binding admissionv1.ValidatingAdmissionPolicyBinding
	if absent, err := r.readNamed(ctx, "ValidatingAdmissionPolicyBinding", &binding); err != nil || absent != "" {
		return absent, since, err
	}
	if s := binding.Spec; s.PolicyName != policyName || s.MatchResources != nil || !slices.Contains(s.ValidationActions, admissionv1.Deny) {
		return "ValidatingAdmissionPolicyBinding " + policyName + " does not deny all that its policy refuses", since, nil
	}
	since = have.CreationTimestamp.Time
	if b := binding.CreationTimestamp.Time; b.After(since) {
		since = b
	}
	return "", since, nil
}

// readNamed reads the object of a kind that has the name of the policy, or says why there is none to be seen.
func (r *Rights) readNamed(ctx context.Context, kind string, into client.Object) (absent string, err error) {
	err = r.Reader.Get(ctx, types.NamespacedName{Name: policyName}, into)
	switch {
	case apierrors.IsNotFound(err): // also of an API server that has no such kind
		return "there is no " + kind + " " + policyName + ", which config/policy/diagnosis-rights.yaml has for Kubernetes 1.30 and later", nil
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("kubediag may not see %s %s: apply config/rbac", kind, policyName), nil
	case err != nil:
		return "", fmt.Errorf("reading %s %q: %w", kind, policyName, err)
	}
	return "", nil
}

var errNotShipped = errors.New("this program has no such policy")

func shippedPolicy() (admissionv1.ValidatingAdmissionPolicy, error) {
	all, err := manifests.Read[admissionv1.ValidatingAdmissionPolicy](policy.Files, "ValidatingAdmissionPolicy")
	if err != nil {
		return admissionv1.ValidatingAdmissionPolicy{}, err
	}
	i := slices.IndexFunc(all, func(p admissionv1.ValidatingAdmissionPolicy) bool { return p.Name == policyName })
	if i < 0 {
		return admissionv1.ValidatingAdmissionPolicy{}, fmt.Errorf("reading policy %q: %w", policyName, errNotShipped)
	}
	return all[i], nil
}
