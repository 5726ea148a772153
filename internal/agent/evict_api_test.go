// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/manifests"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/processor/volume"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/internal/repair/repairtest"
	"kubediag.org/kubediag/test/apitest"
)

// deadVolumes is a judge to whom every pod has a volume that cannot be repaired.
type deadVolumes struct{}

func (deadVolumes) Unrepairable(_ context.Context, uid string) ([]fault.Finding, []string, error) {
	return []fault.Finding{{Code: fault.DisconnectedFUSE, Pod: fault.Pod{UID: uid}, Volume: "data"}}, []string{"its daemon is gone"}, nil
}

// TestEvictionNeedsItsOverlay holds that the default roles do not allow it.
func TestEvictionNeedsItsOverlay(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	p := createPod(t, env, "evict-forbidden", "evict-n0")
	e := newTestEvictor(t, impersonate(env.Config, serviceAccount("kubediag-agent")))
	if err := e.Evict(t.Context(), p.Namespace, p.Name, string(p.UID)); !errors.Is(err, repair.ErrForbidden) {
		t.Errorf("error %v, want ErrForbidden", err)
	}
}

func newTestEvictor(t *testing.T, config *rest.Config) repair.Evictor {
	t.Helper()
	o := options{AllowEviction: true}
	e, err := o.newEvictor(config)
	must(t, err)
	return e
}

// TestOverlayAllowsEviction looks at what kubectl makes of the overlays: the flag and one right, and the right to cordon.
func TestOverlayAllowsEviction(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	evicts := []string{"name: KUBEDIAG_ALLOW_EVICTION\n          value: \"true\"", "- pods/eviction\n  verbs:\n  - create\n"}
	cordons := "- nodes\n  verbs:\n  - patch\n"
	for overlay, parts := range map[string][]string{"eviction": evicts, "escalation": append([]string{cordons}, evicts...)} {
		out := runKubectl(t, env, "", "kustomize", filepath.Join(configDir, "overlays", overlay))
		for _, want := range append([]string{"name: NODE_NAME"}, parts...) {
			if !strings.Contains(out, want) {
				t.Errorf("there is no %q in the overlay %s", want, overlay)
			}
		}
	}
	base := runKubectl(t, env, "", "kustomize", filepath.Join(configDir, "default"))
	for _, none := range []string{"pods/eviction", "KUBEDIAG_ALLOW_EVICTION", cordons} {
		if strings.Contains(base, none) {
			t.Errorf("there is %q in the default", none)
		}
	}
}

// evictingAgent is a user with the rights of an agent and those that the overlay adds. The agent's own account, whose
// rights another test counts, is left as it is.
func evictingAgent(t *testing.T, set *kubernetes.Clientset) rest.ImpersonationConfig {
	t.Helper()
	roles, err := manifests.Read[rbacv1.ClusterRole](os.DirFS(filepath.Join(configDir, "components", "eviction")), "ClusterRole")
	must(t, err)
	role := roles[0]
	role.ObjectMeta = metav1.ObjectMeta{Name: "test-evictor"}
	if _, err := set.RbacV1().ClusterRoles().Create(t.Context(), &role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{role.Name, "kubediag-agent"} {
		_, err := set.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "test-evictor-" + name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "test-evictor"}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	return rest.ImpersonationConfig{UserName: "test-evictor", Groups: []string{"system:authenticated"}}
}

// awaitRight waits until the API server knows of a right to pods, or to a part of them, that a user was just given.
func awaitRight(t *testing.T, config *rest.Config, verb, part string) {
	t.Helper()
	reviews := apitest.Clientset(t, config).AuthorizationV1().SelfSubjectAccessReviews()
	asked := authorizationv1.ResourceAttributes{Namespace: metav1.NamespaceDefault, Verb: verb, Resource: "pods", Subresource: part}
	apitest.Eventually(t, func() error {
		review, err := reviews.Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &asked},
		}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed {
			err = fmt.Errorf("%s may not %s pods/%s", config.Impersonate.UserName, verb, part)
		}
		return err
	})
}

// readyPod makes a pod of a ReplicaSet that counts for a PodDisruptionBudget.
func readyPod(t *testing.T, env *apitest.Env) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: "evict-web", Labels: map[string]string{"app": "evict-web"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "u", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "evict-n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	env.MustCreate(t, p)
	p.Status = corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	must(t, env.Client.Status().Update(t.Context(), p))
	return p
}

// setBudget allows so many pods to go. The test does what the disruption controller would.
func setBudget(t *testing.T, set *kubernetes.Clientset, allowed int32) {
	t.Helper()
	budgets := set.PolicyV1().PodDisruptionBudgets(metav1.NamespaceDefault)
	b, err := budgets.Get(t.Context(), "evict-web-pdb", metav1.GetOptions{})
	if err != nil {
		b, err = budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "evict-web-pdb"},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "evict-web"}},
			},
		}, metav1.CreateOptions{})
	}
	must(t, err)
	b.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: b.Generation, DisruptionsAllowed: allowed, CurrentHealthy: 1, DesiredHealthy: 1 - allowed, ExpectedPods: 1,
	}
	if _, err := budgets.UpdateStatus(t.Context(), b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestEvictionWaitsForItsBudget goes from a budget of zero to one that lets the pod go.
func TestEvictionWaitsForItsBudget(t *testing.T) {
	t.Parallel()
	env := installDefault(t)
	set := apitest.Clientset(t, env.Config)
	p := readyPod(t, env)
	setBudget(t, set, 0)
	config := impersonate(env.Config, evictingAgent(t, set))
	awaitRight(t, config, "create", "eviction")
	awaitRight(t, config, "get", "")
	evictor := newTestEvictor(t, config)
	node, err := kubelet.Local(t.TempDir())
	must(t, err)
	h := &volume.EvictRecoverer{
		Pods: &nodePods{node: p.Spec.NodeName, cache: env.Client, live: env.Client}, Kubelet: node, Judge: deadVolumes{}, Allowed: true,
	}
	request := processor.Request{
		Node: p.Spec.NodeName, Pod: processor.Pod{Namespace: p.Namespace, Name: p.Name},
		Values: map[string]string{volume.ParamEvictAllowed: "true", volume.ParamEvictWaitSeconds: "1"},
	}
	plan, err := h.Plan(t.Context(), request)
	if err != nil || len(plan.Actions) != 1 {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	e := repairtest.NewEngine()
	e.Evictor = evictor
	_, err = repairtest.Apply(t.Context(), e, request, h, plan.Actions[0])
	var waiting *processor.WaitingError
	if !errors.As(err, &waiting) || !strings.Contains(err.Error(), "evict-web-pdb") {
		t.Fatalf("with a budget of zero: %v, want to wait for evict-web-pdb", err)
	}
	if _, err := processortest.Prove(t.Context(), h, request, plan); !processor.IsStalled(err) {
		t.Errorf("verify what was not done: %v", err)
	}
	if err := evictor.Evict(t.Context(), p.Namespace, p.Name, "00000000-0000-0000-0000-000000000000"); err == nil || expectPodThere(t, set, p) != nil {
		t.Errorf("with another UID: %v, %v", err, expectPodThere(t, set, p))
	}

	setBudget(t, set, 1)
	if err := evictor.Evict(t.Context(), p.Namespace, p.Name, "00000000-0000-0000-0000-000000000000"); !errors.Is(err, repair.ErrGone) {
		t.Errorf("with another UID: %v, want ErrGone", err)
	}
	must(t, expectPodThere(t, set, p))
	setBudget(t, set, 1) // the API server has counted what it then refused
	for _, want := range []fault.Applied{{Message: "evicted"}, fault.AlreadySo("was being deleted already")} {
		if done, err := repairtest.Apply(t.Context(), e, request, h, plan.Actions[0]); err != nil || done != want {
			t.Fatalf("%+v, %v, want %+v", done, err, want)
		}
	}
	expectPodGone(t, set, h, request, plan)
}

// expectPodThere fails where a pod is not there any more, or on its way.
func expectPodThere(t *testing.T, set *kubernetes.Clientset, p *corev1.Pod) error {
	t.Helper()
	now, err := set.CoreV1().Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
	if err == nil && (now.UID != p.UID || now.DeletionTimestamp != nil) {
		err = errors.New("it was evicted")
	}
	return err
}

// expectPodGone verifies a pod on its way, and one that the kubelet, which is the test, has let go.
func expectPodGone(t *testing.T, set *kubernetes.Clientset, h *volume.EvictRecoverer, request processor.Request, plan repair.Part) {
	t.Helper()
	for _, want := range []struct {
		text   string
		healed bool
	}{{"is being deleted: its containers have", false}, {"was evicted, and is gone", true}} {
		result, err := processortest.Prove(t.Context(), h, request, plan)
		if err != nil || !strings.Contains(result.Values[volume.KeyEvictResult], want.text) || result.Findings[0].Healed != want.healed {
			t.Fatalf("%+v, %v, want %q", result, err, want.text)
		}
		err = set.CoreV1().Pods(request.Pod.Namespace).Delete(t.Context(), request.Pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		if err != nil && !want.healed {
			t.Fatal(err)
		}
	}
}
