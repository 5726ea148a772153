// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/install"
)

// large is how many of the largest Diagnoses a tenant makes of one node, and as many an agent of another.
const large = 226

// malloryRole lets a user view a namespace and repair its pods, as view and kubediag-pod-repairer do: the latter comes with the policies.
const malloryRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: mallory}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
- {apiGroups: [` + v1.Group + `], resources: [diagnoses], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: [` + v1.Group + `], resources: [operationsets], verbs: [use]}
---
`

const malloryBinding = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mallory, namespace: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: mallory}]
---
`

// reachesNoOther has a user with pod-repairer in one namespace and view in that of the pod, and then the agent of another node that was
// taken over, do what they may: neither of them repairs, evicts or stops anything of others. The pod's bind is stale meanwhile, and
// healed in the end.
func (e *env) reachesNoOther(t *testing.T, pod *corev1.Pod, policies bool) {
	dir := filepath.Join(e.KubeletRoot(), "pods", string(pod.UID))
	point := filepath.Join(dir, "volume-subpaths/logrotateconf/debian/0")
	e.makeStale(t, pod, fmt.Sprint("of others, policies ", policies))
	stale := e.mountedAt(t, point)
	mallory := e.userOfTwo(t, pod.Namespace)
	for name, set := range map[string]string{"repaired": "subpath-remount-op-set", "evicted": "pod-evict-op-set", "by-auto": "auto"} {
		t.Run(name, func(t *testing.T) {
			d := diagnosisOf(tenants, "two-"+name, set, e.NodeName(), pod)
			err := mallory.Create(t.Context(), d)
			if policies {
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
					t.Errorf("the policies do not refuse it: %v", err)
				}
				return
			}
			must(t, err)
			t.Cleanup(func() { must(t, e.Delete(context.WithoutCancel(t.Context()), d)) })
			e.awaitEnd(t, d)
			c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted)
			if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonPodInOtherNamespace {
				t.Errorf("it is not refused for its pod: %+v", d.Status)
			}
		})
	}
	agent := e.podOfComponent(t, "agent")
	t.Run("large ones", func(t *testing.T) {
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			must(t, e.DeleteAllOf(ctx, &v1.Diagnosis{}, client.InNamespace(tenants)))
			must(t, e.DeleteAllOf(ctx, &v1.Diagnosis{}, client.InNamespace(install.Namespace)))
		})
		e.largeOnes(t, mallory, policies)
		if now := e.podOfComponent(t, "agent"); now.UID != agent.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("the agent was started again: %+v", now.Status.ContainerStatuses)
		}
		must(t, e.Delete(t.Context(), agent)) // the next one meets them at its start
		e.Wait(t, "another agent", func(ctx context.Context) bool {
			var pods corev1.PodList
			must(t, e.List(ctx, &pods, client.InNamespace(install.Namespace), client.MatchingLabels{"app.kubernetes.io/component": "agent"}))
			return len(pods.Items) == 1 && pods.Items[0].UID != agent.UID && running(&pods.Items[0]) && pods.Items[0].Status.ContainerStatuses[0].Ready
		})
		e.Wait(t, "it to see the stale bind", func(ctx context.Context) bool {
			var all v1.MountFaultList
			must(t, e.List(ctx, &all, client.InNamespace(pod.Namespace)))
			for _, f := range all.Items {
				if f.Status.Code == "StaleSubPath" && f.Status.Pod != nil && string(f.Status.Pod.UID) == string(pod.UID) {
					return true
				}
			}
			return false
		})
	})
	for _, component := range []string{"agent", "manager"} {
		if now := e.podOfComponent(t, component).Status.ContainerStatuses[0]; now.RestartCount != 0 {
			t.Errorf("the %s was started again: %+v", component, now)
		}
	}
	if now := e.podOf(t.Context(), "core2"); now == nil || now.UID != pod.UID || now.DeletionTimestamp != nil {
		t.Errorf("the pod is not what it was: %+v", now)
	}
	if now := e.mountedAt(t, point); now.id != stale.id {
		t.Errorf("the pod's bind was changed, from %+v to %+v", stale, now)
	}
	d := diagnosisOf(pod.Namespace, fmt.Sprint("rightful-", policies), "subpath-remount-op-set", e.NodeName(), pod)
	must(t, e.Create(t.Context(), d))
	if e.awaitEnd(t, d); d.Status.Outcome != v1.OutcomeHealed {
		t.Errorf("a rightful Diagnosis ended with %+v", d.Status)
	}
}

// userOfTwo is a client of a user who may make Diagnoses in one namespace, as with kubediag-pod-repairer, and view another one.
func (e *env) userOfTwo(t *testing.T, other string) client.Client {
	t.Helper()
	manifest := malloryRole
	for namespace, role := range map[string]string{tenants: "mallory", other: "view"} {
		manifest += fmt.Sprintf(malloryBinding, namespace, role)
	}
	e.Kubectl(t, manifest, "apply", "-f", "-")
	c := e.as(t, rest.ImpersonationConfig{UserName: "mallory"})
	own := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: tenants, Name: "flood"}}
	e.Wait(t, "the rights to be known", func(ctx context.Context) bool {
		return c.Create(ctx, diagnosisOf(tenants, "own", "auto", e.NodeName(), own), client.DryRunAll) == nil
	})
	return c
}

func (e *env) as(t *testing.T, who rest.ImpersonationConfig) client.Client {
	t.Helper()
	config := rest.CopyConfig(e.RESTConfig())
	config.Impersonate, config.QPS = who, -1
	c, err := client.New(config, client.Options{Scheme: e.Scheme()})
	must(t, err)
	return c
}

// largeOnes has the user, and the agent of another node, make Diagnoses that the agent of the node is to keep.
func (e *env) largeOnes(t *testing.T, mallory client.Client, policies bool) {
	t.Helper()
	parameters := map[string]string{"p": strings.Repeat("x", v1.MaxParameterCharacters-1)}
	other := e.as(t, rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + install.Namespace + ":kubediag-agent",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + install.Namespace, "system:authenticated"},
		Extra:    map[string][]string{"authentication.kubernetes.io/node-name": {"another"}},
	})
	missing := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: tenants, Name: "missing"}}
	for i := range large {
		d := diagnosisOf(tenants, fmt.Sprint("large-", i), "auto", e.NodeName(), missing)
		d.Spec.Parameters = parameters
		must(t, client.IgnoreNotFound(mallory.Create(t.Context(), d)))
		record := diagnosisOf(install.Namespace, fmt.Sprint("large-", i), "", "another", nil)
		record.Labels = map[string]string{v1.LabelNode: e.NodeName(), v1.LabelOrigin: v1.OriginSentinel}
		record.Spec.Mode, record.Spec.Parameters = v1.ModeRecord, parameters
		err := other.Create(t.Context(), record)
		if refused := apierrors.IsForbidden(err); refused != policies || !refused && err != nil {
			t.Fatalf("a record of another agent, with the label of this node: %v", err)
		}
	}
}
