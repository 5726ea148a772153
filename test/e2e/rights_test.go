// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/install"
)

// large is how many of the largest Diagnoses a tenant makes of one node, and as many an agent of another. The API server of this cluster refuses
// such as killed an agent by this number, because the CustomResourceDefinition bounds parameters: test/flood writes those to etcd.
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
	agent := e.Component(t, "agent")
	t.Run("large ones", func(t *testing.T) {
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			must(t, e.DeleteAllOf(ctx, &v1.Diagnosis{}, client.InNamespace(tenants)))
			must(t, e.DeleteAllOf(ctx, &v1.Diagnosis{}, client.InNamespace(install.Namespace)))
		})
		e.largeOnes(t, mallory, policies)
		if now := e.Component(t, "agent"); now.UID != agent.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
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
		if now := e.Component(t, component).Status.ContainerStatuses[0]; now.RestartCount != 0 {
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
		if policies && i == 0 { // the API server takes its time with a policy
			e.Wait(t, "the policies to refuse what agents of other nodes record", func(ctx context.Context) bool {
				return apierrors.IsForbidden(other.Create(ctx, record.DeepCopy(), client.DryRunAll))
			})
		}
		err := other.Create(t.Context(), record)
		if refused := apierrors.IsForbidden(err); refused != policies || !refused && err != nil {
			t.Fatalf("a record of another agent, with the label of this node: %v", err)
		}
	}
}

const (
	// wreckers are pods of the tenant with so many binds each that break again and again: there are 200 MountFaults of a node. The agent keeps
	// no volumes of a pod with 80.
	wreckers, wrecked = 4, 53
	atOnce            = 16 // repairs that the policy allows on the node
)

// policyOfShares has a budget of the node that the tenant uses up within its first minute. One repair comes back in half a minute. The budget
// of the cluster allows more at once, however few of its slots chance leaves to the node and the tenant.
const policyOfShares = policyOfTest + `
  budgets:
    node: {atOnce: 16, perHour: 120}
    cluster: {atOnce: 400, perHour: 4000}
  breaker: {failedRepairs: 3}
`

// wreck removes and makes the directories that all its binds are of.
const wreck = `while true; do for v in /data/*; do rm -r $v/a; mkdir $v/a; done; sleep 1; done`

// TestTenantUsesUpItsShareAlone has bare pods of a tenant break their binds again and again, as the default installation and as config/policy
// let them. Under a RecoveryPolicy with budgets the tenant uses up its share, fills its part of the MountFaults, and opens the breaker of its
// namespace. A pod of another namespace is healed all the time, and a fault of it that may not be repaired is seen.
func TestTenantUsesUpItsShareAlone(t *testing.T) {
	t.Parallel()
	e := start(t, withTheBug)
	victim := e.deploy(t)
	must(t, e.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenants}}))
	e.Kubectl(t, policyOfShares, "apply", "-f", "-")
	e.Kubectl(t, "", "wait", "--for=condition=Ready", "--timeout=1m", "recoverypolicy/stale-subpaths")
	var wrecker *corev1.Pod
	for i := range wreckers {
		wrecker = wreckerPod(fmt.Sprint("wrecker-", i))
		must(t, e.Create(t.Context(), wrecker))
	}
	e.Wait(t, "the budget to be used up for the tenant", func(context.Context) bool {
		return e.waiting(t) > wreckers*wrecked/2 && slices.ContainsFunc(e.staleOf(t, tenants), func(f v1.MountFault) bool {
			return f.Status.Recovery != nil && strings.Contains(f.Status.Recovery.Message, "the budget of policy stale-subpaths for the node is")
		})
	})
	t.Run("as installed", func(t *testing.T) { e.healsInItsShare(t, victim, "as-installed") })
	t.Run("failures of the tenant", func(t *testing.T) {
		other := e.as(t, rest.ImpersonationConfig{UserName: "system:serviceaccount:" + install.Namespace + ":kubediag-agent"})
		failing := &v1.MountFault{ObjectMeta: metav1.ObjectMeta{Namespace: tenants, Name: "another-failing", Labels: map[string]string{v1.LabelNode: "another"}}}
		failing.Status = v1.MountFaultStatus{
			Code: "StaleSubPath", Node: "another", Impact: v1.ImpactNow, Heal: v1.HealSafe, Since: metav1.Now(), LastSeen: metav1.Now(),
			Pod: &v1.FaultPod{Name: wrecker.Name, UID: wrecker.UID},
			Recovery: &v1.FaultRecovery{
				Mode: v1.RecoveryAutomatic, Policies: []string{"stale-subpaths"}, FailedRepairs: 1000, LastFailureTime: new(metav1.NewTime(time.Now().AddDate(70, 0, 0))),
			},
		}
		must(t, other.Create(t.Context(), failing))
		p := &v1.RecoveryPolicy{}
		e.Wait(t, "the breaker of the tenant to open", func(ctx context.Context) bool {
			must(t, e.Get(ctx, client.ObjectKey{Name: "stale-subpaths"}, p))
			return p.Status.OpenBreakers > 0
		})
		if len(p.Status.Breakers) != 1 || p.Status.Breakers[0].Namespace != tenants {
			t.Errorf("other breakers than that of the tenant are open: %+v", p.Status.Breakers)
		}
		e.healsInItsShare(t, victim, "beside-a-breaker")
	})
	t.Run("with the policies", func(t *testing.T) {
		for _, name := range []string{"agent-node", "diagnosis-rights"} {
			e.Kubectl(t, "", "apply", "-f", "../../config/policy/"+name+".yaml")
		}
		e.healsInItsShare(t, victim, "with-the-policies")
	})
	t.Run("what stays is seen", func(t *testing.T) {
		e.Kubectl(t, "", "annotate", "pod", "-n", victim.Namespace, victim.Name, v1.AnnotationRecovery+"=off")
		e.makeStale(t, victim, "without a repair")
		e.Wait(t, "its MountFault", func(context.Context) bool { return len(e.staleOf(t, victim.Namespace)) == 1 })
		if n := len(e.staleOf(t, tenants)); n < atOnce {
			t.Errorf("beside it, %d faults of the tenant are listed: it fills no list", n)
		}
	})
	if now := e.Component(t, "agent").Status.ContainerStatuses[0]; now.RestartCount != 0 {
		t.Errorf("the agent was started again: %+v", now)
	}
}

// healsInItsShare has the bind of a pod become stale, and waits until it is replaced. Nearly all binds of the tenant are stale meanwhile.
func (e *env) healsInItsShare(t *testing.T, pod *corev1.Pod, content string) {
	t.Helper()
	dir := filepath.Join(e.KubeletRoot(), "pods", string(pod.UID))
	point, source := filepath.Join(dir, "volume-subpaths/logrotateconf/debian/0"), filepath.Join(dir, "volumes/kubernetes.io~configmap/logrotateconf/nginx.log")
	stale := e.mountedAt(t, point)
	e.Kubectl(t, "", "patch", "configmap", "-n", pod.Namespace, "nginx-logrotate", "--type=merge", "-p", fmt.Sprintf(`{"data":{"nginx.log":%q}}`, content))
	e.Wait(t, "the bind to be replaced", func(context.Context) bool {
		text, err := os.ReadFile(source)
		return err == nil && string(text) == content && e.mountedAt(t, point) != stale
	})
	e.checkRenewed(t, stale, source)
	if n := e.waiting(t); n < wreckers*wrecked/2 {
		t.Errorf("%d of %d binds of the tenant are stale: it does not use up the budget", n, wreckers*wrecked)
	}
}

// waiting counts the stale binds of the tenant.
func (e *env) waiting(t *testing.T) (n int) {
	t.Helper()
	for _, m := range e.mounts(t) {
		if m.Deleted() && strings.Contains(m.Root, "kubernetes.io~empty-dir") {
			n++
		}
	}
	return n
}

// staleOf lists the MountFaults of the node about stale binds in a namespace.
func (e *env) staleOf(t *testing.T, namespace string) []v1.MountFault {
	t.Helper()
	var all v1.MountFaultList
	must(t, e.List(t.Context(), &all, client.InNamespace(namespace)))
	return slices.DeleteFunc(all.Items, func(f v1.MountFault) bool { return f.Status.Code != "StaleSubPath" || f.Status.Node != e.NodeName() })
}

// wreckerPod is a pod without any right, and without a controller.
func wreckerPod(name string) *corev1.Pod {
	c := corev1.Container{Name: "wreck", Image: install.Busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/sh", "-c", wreck}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: tenants, Name: name}}
	for i := range wrecked {
		name := fmt.Sprintf("v%03d", i)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/data/" + name}, corev1.VolumeMount{Name: name, MountPath: "/bound/" + name, SubPath: "a"})
	}
	p.Spec.Containers, p.Spec.TerminationGracePeriodSeconds, p.Spec.AutomountServiceAccountToken = []corev1.Container{c}, new(int64), new(bool)
	return p
}
