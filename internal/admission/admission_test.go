// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/policy"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/manifests"
)

// installed are the policy and its binding as they ship.
func installed(t *testing.T) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	t.Helper()
	p, err := shippedPolicy()
	all, errBindings := manifests.Read[admissionv1.ValidatingAdmissionPolicyBinding](policy.Files, "ValidatingAdmissionPolicyBinding")
	if err := errors.Join(err, errBindings); err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		if b.Name == policyName {
			return &p, &b
		}
	}
	t.Fatal("no binding ships")
	return nil, nil
}

func about(namespace, podNamespace string) *v1.Diagnosis {
	d := &v1.Diagnosis{}
	d.Namespace, d.Spec.PodReference = namespace, &v1.PodReference{Namespace: podNamespace, Name: "web"}
	return d
}

// at is a time, in seconds after noon.
func at(second int) metav1.Time { return metav1.Date(2026, 11, 26, 12, 0, second, 0, time.UTC) }

// createdAt is a Diagnosis of a pod in another namespace.
func createdAt(second int) *v1.Diagnosis {
	d := about("a", "b")
	d.CreationTimestamp = at(second)
	return d
}

// TestPodsOfOtherNamespaces: a Diagnosis may be about them only if the policy of this release is in force, or if it is kubediag's.
func TestPodsOfOtherNamespaces(t *testing.T) {
	t.Parallel()
	type (
		pol  = admissionv1.ValidatingAdmissionPolicy
		bind = admissionv1.ValidatingAdmissionPolicyBinding
	)
	ignore := admissionv1.Ignore
	for name, tc := range map[string]struct {
		change   func(p *pol, b *bind) []client.Object
		fail     error
		diagnose *v1.Diagnosis
		refused  string // empty: it may
	}{
		"in force": {change: func(p *pol, b *bind) []client.Object { return []client.Object{p, b} }},
		"for kubediag in another namespace": {change: func(p *pol, b *bind) []client.Object {
			p.Spec.MatchConditions[1].Expression = "request.userInfo.username != 'system:serviceaccount:tools:kubediag-manager'"
			return []client.Object{p, b}
		}},
		"not installed": {refused: "there is no ValidatingAdmissionPolicy kubediag-diagnosis-rights, which config/policy/diagnosis-rights.yaml has"},
		"not bound": {change: func(p *pol, _ *bind) []client.Object { return []client.Object{p} },
			refused: "there is no ValidatingAdmissionPolicyBinding kubediag-diagnosis-rights"},
		"a binding alone": {change: func(_ *pol, b *bind) []client.Object { return []client.Object{b} }, refused: "there is no ValidatingAdmissionPolicy "},
		"of an older release": {change: func(p *pol, b *bind) []client.Object {
			for i := range p.Spec.Validations {
				v := &p.Spec.Validations[i]
				v.Expression = strings.ReplaceAll(v.Expression, "namespace(variables.podNamespace).name(variables.set)", "namespace(request.namespace).name(variables.set)")
			}
			return []client.Object{p, b}
		}, refused: "is not that of this release: apply config/policy/diagnosis-rights.yaml"},
		"another policy is bound": {change: func(p *pol, b *bind) []client.Object {
			b.Spec.PolicyName = "other"
			return []client.Object{p, b}
		}, refused: "does not deny all that its policy refuses"},
		"only audited": {change: func(p *pol, b *bind) []client.Object {
			b.Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Audit}
			return []client.Object{p, b}
		}, refused: "does not deny all"},
		"not everywhere": {change: func(p *pol, b *bind) []client.Object {
			b.Spec.MatchResources = &admissionv1.MatchResources{}
			return []client.Object{p, b}
		}, refused: "does not deny all"},
		"ignored if it fails": {change: func(p *pol, b *bind) []client.Object {
			p.Spec.FailurePolicy = &ignore
			return []client.Object{p, b}
		}, refused: "is not that of this release"},
		"of updates alone": {change: func(p *pol, b *bind) []client.Object {
			p.Spec.MatchConstraints.ResourceRules[0].Operations = []admissionv1.OperationType{admissionv1.Update}
			return []client.Object{p, b}
		}, refused: "is not that of this release"},
		"of other resources": {change: func(p *pol, b *bind) []client.Object {
			p.Spec.MatchConstraints.ResourceRules[0].Resources = []string{"triggers"}
			return []client.Object{p, b}
		}, refused: "is not that of this release"},
		"of some objects": {change: func(p *pol, b *bind) []client.Object {
			p.Spec.MatchConstraints.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
			return []client.Object{p, b}
		}, refused: "is not that of this release"},
		"of no request": {change: func(p *pol, b *bind) []client.Object {
			p.Spec.MatchConditions = append(p.Spec.MatchConditions, admissionv1.MatchCondition{Name: "never", Expression: "false"})
			return []client.Object{p, b}
		}, refused: "is not that of this release"},
		"not of other agents": {change: func(p *pol, b *bind) []client.Object {
			p.Spec.MatchConditions[1].Expression = "request.userInfo.username != 'system:serviceaccount:tools:other'"
			return []client.Object{p, b}
		}, refused: "is not that of this release"},
		"as the API server has it": {change: func(p *pol, b *bind) []client.Object {
			m := p.Spec.MatchConstraints
			m.MatchPolicy, m.NamespaceSelector, m.ObjectSelector = new(admissionv1.Equivalent), &metav1.LabelSelector{}, &metav1.LabelSelector{}
			m.ResourceRules[0].Scope = new(admissionv1.AllScopes)
			return []client.Object{p, b}
		}},
		"older than the policy": {change: func(p *pol, b *bind) []client.Object {
			p.CreationTimestamp = at(1)
			return []client.Object{p, b}
		}, diagnose: createdAt(0), refused: "the policy is in force only since 2026-11-26T12:00:01Z. Create the Diagnosis in namespace b"},
		"older than its binding": {change: func(p *pol, b *bind) []client.Object {
			p.CreationTimestamp, b.CreationTimestamp = at(0), at(2)
			return []client.Object{p, b}
		}, diagnose: createdAt(1), refused: "only since 2026-11-26T12:00:02Z"},
		"as old as both": {change: func(p *pol, b *bind) []client.Object {
			p.CreationTimestamp, b.CreationTimestamp = at(0), at(1)
			return []client.Object{p, b}
		}, diagnose: createdAt(1)},
		"not visible":               {fail: apierrors.NewForbidden(schema.GroupResource{}, policyName, errors.New("no")), refused: "kubediag may not see ValidatingAdmissionPolicy"},
		"in the pod's namespace":    {diagnose: about("b", "b"), fail: errors.New("must not be asked")},
		"in kubediag's namespace":   {diagnose: about("kubediag", "b"), fail: errors.New("must not be asked")},
		"of a node":                 {diagnose: &v1.Diagnosis{}, fail: errors.New("must not be asked")},
		"of kubediag's own pod":     {diagnose: about("a", "kubediag"), refused: "Create the Diagnosis in namespace kubediag"},
		"without its own namespace": {diagnose: about("", "b"), refused: "there is no ValidatingAdmissionPolicy "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, b := installed(t)
			var objects []client.Object
			if tc.change != nil {
				objects = tc.change(p, b)
			}
			d := tc.diagnose
			if d == nil {
				d = about("a", "b")
			}
			why, err := rightsOf(t, tc.fail, objects...).Refusal(t.Context(), d)
			if err != nil || !strings.Contains(why, tc.refused) || (why == "") != (tc.refused == "") {
				t.Errorf("%q, %v, want %q", why, err, tc.refused)
			}
		})
	}
}

// rightsOf asks an API server that has these objects, or answers with an error.
func rightsOf(t *testing.T, fail error, objects ...client.Object) *Rights {
	t.Helper()
	reader := kubeclienttest.Builder(t).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, next client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if fail != nil {
				return fail
			}
			return next.Get(ctx, key, o, opts...)
		},
	}).Build()
	return &Rights{Reader: reader, Namespace: "kubediag"}
}

// TestServerAway: nothing is allowed or refused while it is not known.
func TestServerAway(t *testing.T) {
	t.Parallel()
	away := errors.New("no route to host")
	if why, err := rightsOf(t, away).Refusal(t.Context(), about("a", "b")); !errors.Is(err, away) || why != "" {
		t.Errorf("%q, %v", why, err)
	}
}
