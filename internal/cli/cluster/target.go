// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
)

// targetForms are how a target is written.
const targetForms = "NAME or pod/NAME, deploy/NAME (sts, ds, rs, job), node/NAME, pvc/NAME or DEVICE@NODE"

// maxWorkloadPods bounds the pods of a workload in one call, so that the answers fit the screen.
const maxWorkloadPods = 3

// diagnosisTarget is the subject of one Diagnosis.
type diagnosisTarget struct {
	name      string // as it is shown
	argument  string // as it is typed
	namespace string // of the Diagnosis
	spec      v1.DiagnosisSpec
	left      int // how many pods of the same workload are not among the targets
}

// targetFinder finds the targets that a user means.
type targetFinder struct {
	api       *client
	container string // of a pod; empty: all
}

// find returns those that an argument means: one, or each pod that uses a claim, or some pods of a workload.
func (f targetFinder) find(ctx context.Context, argument string) ([]diagnosisTarget, error) {
	if device, node, ok := strings.Cut(argument, "@"); ok && device != "" && node != "" {
		t := diagnosisTarget{name: "device " + device + " of " + node, argument: argument, namespace: f.api.namespace}
		t.spec = v1.DiagnosisSpec{NodeName: node, Parameters: map[string]string{v1.ParamDevice: device}}
		return []diagnosisTarget{t}, f.objectExists(ctx, "", node, &corev1.Node{})
	}
	kind, name, typed := strings.Cut(argument, "/")
	if !typed {
		kind, name = "pod", argument
	}
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
	case "deploy", "deployment", "deployments":
		d := &appsv1.Deployment{}
		return f.podsOfWorkload(ctx, name, d, &d.Spec.Selector)
	case "sts", "statefulset", "statefulsets":
		s := &appsv1.StatefulSet{}
		return f.podsOfWorkload(ctx, name, s, &s.Spec.Selector)
	case "ds", "daemonset", "daemonsets":
		d := &appsv1.DaemonSet{}
		return f.podsOfWorkload(ctx, name, d, &d.Spec.Selector)
	case "rs", "replicaset", "replicasets":
		r := &appsv1.ReplicaSet{}
		return f.podsOfWorkload(ctx, name, r, &r.Spec.Selector)
	case "job", "jobs":
		j := &batchv1.Job{}
		return f.podsOfWorkload(ctx, name, j, &j.Spec.Selector)
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

// podsOfWorkload are the pods that the selector of a workload has: the first of those that are not ready, and then of the others.
// The last of them says how many are left.
func (f targetFinder) podsOfWorkload(ctx context.Context, name string, workload ctrlclient.Object, selector **metav1.LabelSelector) (all []diagnosisTarget, err error) {
	if err := f.api.server.Get(ctx, f.api.keyOf(name), workload); err != nil {
		return nil, err
	}
	labels, err := metav1.LabelSelectorAsSelector(*selector)
	if err != nil {
		return nil, fmt.Errorf("selector of %s: %w", name, err)
	}
	var list corev1.PodList
	if err := f.api.server.List(ctx, &list, ctrlclient.InNamespace(f.api.namespace), ctrlclient.MatchingLabelsSelector{Selector: labels}); err != nil {
		return nil, err
	}
	list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	ready := func(p corev1.Pod) int {
		return len(slices.DeleteFunc(slices.Clone(p.Status.Conditions), func(c corev1.PodCondition) bool { return c.Type != corev1.PodReady || c.Status != corev1.ConditionTrue }))
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Pod) int { return ready(a) - ready(b) })
	for _, p := range list.Items[:min(len(list.Items), maxWorkloadPods)] {
		all = append(all, f.podTarget(p.Name))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no pod of it in namespace %s is there or has work to do", name, f.api.namespace)
	}
	all[len(all)-1].left = len(list.Items) - len(all)
	return all, nil
}

// usesClaim reports whether a pod that has not ended uses a claim.
func usesClaim(p *corev1.Pod, claim string) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return claimOf(p, v) == claim })
}

// claimOf is the PersistentVolumeClaim of a volume; empty if it has none. The claim of an ephemeral volume has the names of the pod and the volume.
func claimOf(p *corev1.Pod, v corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	}
	return ""
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
	if mode == v1.ModePlan {
		d.Labels = map[string]string{v1.LabelPlan: ""}
	}
	return d
}
