// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
)

// targetForms are how a target is written.
const targetForms = "pod/NAME, node/NAME, pvc/NAME or DEVICE@NODE"

// diagnosisTarget is what one Diagnosis is about.
type diagnosisTarget struct {
	name      string // as it is shown
	argument  string // as it is typed
	namespace string // of the Diagnosis
	spec      v1.DiagnosisSpec
}

// targetFinder finds the targets that a user means.
type targetFinder struct {
	api       *client
	container string // of a pod; empty: all
}

// find returns those that an argument means: one, or each pod that uses a claim.
func (f targetFinder) find(ctx context.Context, argument string) ([]diagnosisTarget, error) {
	if device, node, ok := strings.Cut(argument, "@"); ok && device != "" && node != "" {
		t := diagnosisTarget{name: "device " + device + " of " + node, argument: argument, namespace: f.api.namespace}
		t.spec = v1.DiagnosisSpec{NodeName: node, Parameters: map[string]string{v1.ParamDevice: device}}
		return []diagnosisTarget{t}, f.objectExists(ctx, "", node, &corev1.Node{})
	}
	kind, name, _ := strings.Cut(argument, "/")
	if name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q: must be %s", argument, targetForms)
	}
	switch kind {
	case "pod", "pods", "po":
		return []diagnosisTarget{f.podTarget(name)}, f.objectExists(ctx, f.api.namespace, name, &corev1.Pod{})
	case "node", "nodes", "no":
		t := diagnosisTarget{name: "node " + name, argument: "node/" + name, namespace: f.api.namespace, spec: v1.DiagnosisSpec{NodeName: name}}
		return []diagnosisTarget{t}, f.objectExists(ctx, "", name, &corev1.Node{})
	case "pvc", "persistentvolumeclaim", "persistentvolumeclaims":
		return f.podsUsingClaim(ctx, name)
	}
	return nil, fmt.Errorf("%q: must be %s", argument, targetForms)
}

// objectExists asks for an object, so that a wrong name is an error at once. Without the right to ask, the manager says
// it later.
func (f targetFinder) objectExists(ctx context.Context, namespace, name string, into ctrlclient.Object) error {
	err := f.api.server.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: name}, into)
	if errors.Is(err, verb.ErrRefused) {
		return nil
	}
	return err
}

func (f targetFinder) podTarget(name string) diagnosisTarget {
	return diagnosisTarget{
		name: "pod " + f.api.namespace + "/" + name, argument: "pod/" + name, namespace: f.api.namespace,
		spec: v1.DiagnosisSpec{PodReference: &v1.PodReference{Namespace: f.api.namespace, Name: name, Container: f.container}},
	}
}

// podsUsingClaim are the pods that use a claim.
func (f targetFinder) podsUsingClaim(ctx context.Context, claim string) (all []diagnosisTarget, err error) {
	if err := f.objectExists(ctx, f.api.namespace, claim, &corev1.PersistentVolumeClaim{}); err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := f.api.server.List(ctx, &list, ctrlclient.InNamespace(f.api.namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if p := &list.Items[i]; usesClaim(p, claim) {
			all = append(all, f.podTarget(p.Name))
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("pvc/%s: no pod in namespace %s uses it", claim, f.api.namespace)
	}
	return all, nil
}

// usesClaim reports whether a pod that has not ended uses a claim. The claim of an ephemeral volume is named after the
// pod and the volume.
func usesClaim(p *corev1.Pod, claim string) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim || v.Ephemeral != nil && p.Name+"-"+v.Name == claim {
			return true
		}
	}
	return false
}

// noName is all that may not be in the name of an object.
var noName = regexp.MustCompile(`[^a-z0-9]+`)

// newDiagnosis is a new Diagnosis of the target. The API server completes its name.
func (t diagnosisTarget) newDiagnosis(mode v1.DiagnosisMode, hash string) *v1.Diagnosis {
	const most = 50
	base := t.argument[strings.LastIndex(t.argument, "/")+1:]
	base = strings.Trim(noName.ReplaceAllString(strings.ToLower(base), "-"), "-")
	base = strings.TrimRight(base[:min(len(base), most)], "-")
	d := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, GenerateName: base + "-"}, Spec: *t.spec.DeepCopy()}
	d.Spec.Mode, d.Spec.PlanHash = mode, hash
	return d
}
