// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"errors"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// elsewhere binds a user to a role in another namespace than that of the world, for good.
func (w *world) elsewhere(t *testing.T, ns, user, role string) {
	t.Helper()
	_, err := apitest.Clientset(t, w.Config).RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// reaches are Diagnoses of the pod THEIRS/web, in every form that its author may write.
var reaches = map[string]string{
	"no set":          "podReference: {namespace: THEIRS, name: web}",
	"auto":            "operationSet: auto, podReference: {namespace: THEIRS, name: web}",
	"subPaths":        "operationSet: subpath-remount-op-set, podReference: {namespace: THEIRS, name: web}",
	"volumes":         "operationSet: volume-health-op-set, podReference: {namespace: THEIRS, name: web}",
	"eviction":        "operationSet: pod-evict-op-set, podReference: {namespace: THEIRS, name: web}",
	"plan":            "mode: Plan, podReference: {namespace: THEIRS, name: web}",
	"plan that waits": "mode: Approve, approvalTimeoutSeconds: 604800, podReference: {namespace: THEIRS, name: web}",
	"one plan":        "planHash: " + planHash + ", podReference: {namespace: THEIRS, name: web}",
	"container":       "podReference: {namespace: THEIRS, name: web, container: web}",
	"with its node":   "nodeName: n1, podReference: {namespace: THEIRS, name: web}",
	"mount table":     "artifacts: Status, mode: Plan, podReference: {namespace: THEIRS, name: web}",
	"evicting":        "parameters: {param.recover.kubernetes.pod_evict.allowed: 'true'}, podReference: {namespace: THEIRS, name: web}",
	"not evicting":    "parameters: {param.recover.kubernetes.pod_evict.allowed: 'false'}, podReference: {namespace: THEIRS, name: web}",
	"node alone":      "nodeName: n1",
}

// TestTenantOfTwoNamespaces: with the policies as they stand, the right to repair in one namespace and to view another one repairs
// nothing in the other. Only the right to repair there does, and only the right to evict there evicts.
func TestTenantOfTwoNamespaces(t *testing.T) {
	w := newWorld(t, apitest.Start(t))
	w.applyPolicy(t)
	other := w.Namespace(t)
	users, see := map[string]client.Client{}, w.role(t, getPods)
	for _, who := range []string{"mallory", "member", "evictor"} {
		user := who + " " + w.ns
		w.bind(t, user, "kubediag-pod-repairer", false)
		w.bind(t, user, see, false)
		w.elsewhere(t, other, user, see)
		if who != "mallory" {
			w.elsewhere(t, other, user, "kubediag-pod-repairer")
		}
		if who == "evictor" {
			w.elsewhere(t, other, user, w.role(t, evict))
		}
		config := rest.CopyConfig(w.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		users[who] = w.As(t, config)
	}
	create := func(who, spec string) error {
		return users[who].Create(t.Context(), w.object(t, asked{who, "Diagnosis", strings.ReplaceAll(spec, "THEIRS", other), ""}), client.DryRunAll)
	}
	for _, who := range []string{"mallory", "member", "evictor"} { // their roles are new to the API server
		apitest.Eventually(t, func() error { return create(who, mine) })
		apitest.Eventually(t, func() error {
			if err := create(who, theirs); err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
				return errors.Join(errors.New("the policy is not in force yet"), err)
			}
			return nil
		})
	}
	apitest.Eventually(t, func() error { return create("member", reaches["no set"]) })
	apitest.Eventually(t, func() error { return create("evictor", reaches["evicting"]) })
	for name, spec := range reaches {
		t.Run(name, func(t *testing.T) { w.check(t, create("mallory", spec), "forbidden") })
	}
	w.check(t, create("mallory", reaches["no set"]), `spec.operationSet: "auto": this takes the right to use `+
		`operationsets.diagnosis.kubediag.org of this name in namespace `+other+", which is that of the pod")
	for name, refused := range map[string]string{
		"volumes": "", "plan that waits": "", "mount table": "", "node alone": `spec.nodeName: "n1": without spec.podReference`,
		"eviction": `spec.operationSet: "pod-evict-op-set"`, "evicting": "this takes the right to create pods/eviction of " + other + "/web",
	} {
		w.check(t, create("member", reaches[name]), refused)
	}
	t.Run("update", func(t *testing.T) {
		o := w.object(t, asked{"", "Diagnosis", strings.ReplaceAll(reaches["no set"], "THEIRS", other), ""})
		w.MustCreate(t, o)
		d := &v1.Diagnosis{}
		must(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(o), d))
		d.Spec.NodeName = "n1"
		w.check(t, users["mallory"].Update(t.Context(), d), `spec.operationSet: "auto"`)
	})
}

// TestPodOfAnotherNamespaceTakesThePolicy: while no policy asks for the rights of people, the manager refuses what they create for the pods
// of other namespaces. API servers before 1.30 have none.
func TestPodOfAnotherNamespaceTakesThePolicy(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) { w.refusesOtherNamespaces(t) })
	t.Run("in force", func(t *testing.T) {
		w := newWorld(t, apitest.Start(t))
		tenant, pod, node := w.refusesOtherNamespaces(t)
		w.applyPolicy(t)
		d := tenant.diagnose(t, v1.DiagnosisSpec{PodReference: pod})
		w.Until(t, d, func() bool { return d.Labels[v1.LabelNode] == node })
	})
}

// refusesOtherNamespaces starts a manager and has a tenant create a Diagnosis of the pod of another, which is refused. One in the namespace
// of the pod or in that of kubediag is not.
func (w *world) refusesOtherNamespaces(t *testing.T) (tenant *world, pod *v1.PodReference, node string) {
	t.Helper()
	w.run(t)
	node = w.node(t)
	in := func() *world {
		other := *w
		other.ns = w.Namespace(t)
		return &other
	}
	tenant, owner := in(), in()
	pod = owner.pod(t, node)
	d := tenant.diagnose(t, v1.DiagnosisSpec{PodReference: pod})
	w.Until(t, d, func() bool { return d.Status.Phase == v1.DiagnosisFailed })
	if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete); c == nil || c.Reason != v1.ReasonPodInOtherNamespace ||
		!strings.Contains(c.Message, "Create the Diagnosis in namespace "+owner.ns) || d.Labels[v1.LabelNode] != "" {
		t.Errorf("condition %+v, labels %v", c, d.Labels)
	}
	for _, allowed := range []*world{owner, w} {
		d := allowed.diagnose(t, v1.DiagnosisSpec{PodReference: pod})
		w.Until(t, d, func() bool { return d.Labels[v1.LabelNode] == node })
	}
	return tenant, pod, node
}
