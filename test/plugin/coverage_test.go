// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package plugin

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/fakenode"
)

// create makes an object that is deleted with the test.
func (p *plugin) create(t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	must(t, c.Create(t.Context(), o))
	t.Cleanup(func() {
		if err := c.Delete(context.WithoutCancel(t.Context()), o); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
}

// clientOfAll is a client for the kinds that users and their rights are made of.
func clientOfAll(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, coordinationv1.AddToScheme, v1.AddToScheme} {
		must(t, add(scheme))
	}
	c, err := client.New(apitest.Start(t).Config, client.Options{Scheme: scheme})
	must(t, err)
	return c
}

// grant gives a user of namespace default a role.
func (p *plugin) grant(t *testing.T, c client.Client, user, kind, role string) {
	t.Helper()
	p.create(t, c, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: user + "-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})
}

// shippedRole makes a role of config/rbac/users, in namespace default if it is in one.
func (p *plugin) shippedRole(t *testing.T, c client.Client, file string, role client.Object) {
	t.Helper()
	text, err := os.ReadFile("../../config/rbac/users/" + file)
	if err == nil {
		err = yaml.UnmarshalStrict(text, role)
	}
	must(t, err)
	if role.GetNamespace() != "" {
		role.SetNamespace("default")
	}
	p.create(t, c, role)
}

// leaseOf is the Lease of the agent of a node.
func leaseOf(node string) *coordinationv1.Lease {
	seconds := int32(40)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v1.AgentLeaseName(node), Labels: map[string]string{v1.LabelAgent: v1.NodeLabelValue(node)}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds},
	}
}

// agentSet is a DaemonSet of agents.
func agentSet() *appsv1.DaemonSet {
	labels := map[string]string{"app.kubernetes.io/component": "agent"}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubediag-agent", Labels: labels}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	set.Spec.Template.Labels = labels
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "agent", Image: "agent"}}
	return set
}

// TestCoverage: no list of faults is green while a node is not watched, or while that is not known.
func TestCoverage(t *testing.T) {
	p, c := install(t), clientOfAll(t)
	p.forgetAgent(t)
	node := fakenode.NodeName
	lease := leaseOf(node)
	renew := func(at time.Time) {
		t.Helper()
		lease.Spec.RenewTime = &metav1.MicroTime{Time: at}
		must(t, c.Update(t.Context(), lease))
	}
	p.create(t, c, lease)

	renew(time.Now().Add(-3 * time.Minute))
	silent := p.call(t, 2, "faults", "-A", home)
	t.Logf("no agent lives:\n%s", silent)
	expect(t, silent, `^! 1 of 1 nodes is not watched: stage-node \(agent silent for 3m\d*s?\)\n`)
	if strings.Contains(silent, "✓") {
		t.Errorf("green:\n%s", silent)
	}
	expect(t, p.call(t, 2, "faults", "-A", home, "-o", "json"), `kubediag: 1 of 1 nodes is not watched: stage-node`)
	expect(t, p.call(t, 2, "faults", "--node", node, home), `^! 1 of 1 nodes is not watched: stage-node`)

	p.shippedRole(t, c, "view.yaml", &rbacv1.ClusterRole{})
	p.grant(t, c, "dev", "ClusterRole", "kubediag-view")
	renew(time.Now().Add(time.Hour))
	expect(t, p.call(t, 0, "faults", "-A", home), `^✓ No fault`)
	for value, want := range map[string]string{
		"3": `! 1 node could not be judged in full: stage-node \(3 mounts or parts\); kubectl kubediag run\s+node/stage-node,\s+or\s+the\s+log\s+of\s+its\s+agent,\s+says\s+why
`,
		"all": `! 1 node could not be judged in full: stage-node \(not looked at\)
`,
	} {
		lease.Labels[v1.LabelNotJudged] = value
		renew(time.Now().Add(time.Hour))
		unjudged := p.call(t, 2, "faults", "-A", home)
		if expect(t, unjudged, want); strings.Contains(unjudged, "✓") {
			t.Errorf("green:\n%s", unjudged)
		}
	}
	delete(lease.Labels, v1.LabelNotJudged)
	renew(time.Now().Add(time.Hour))
	blind := p.call(t, 2, "faults", home, "--as=dev")
	expect(t, blind, `(?s)^! it is not known which nodes are watched: refused: .*"dev" cannot list resource "leases" .*Role\s+kubediag-lease-reader`, `! No fault is known in namespace default`)

	p.shippedRole(t, c, "lease_reader.yaml", &rbacv1.Role{})
	p.grant(t, c, "dev", "Role", "kubediag-lease-reader")
	apitest.Eventually(t, func() error {
		_, err := p.command(t.Context(), "faults", home, "--as=dev", "--node", node).Output()
		return err
	})
	expect(t, p.call(t, 2, "faults", home, "--as=dev"), `^! no node is watched by a DaemonSet: there is none of agents in namespace default`)
	set := agentSet()
	p.create(t, c, set)
	expect(t, p.call(t, 2, "faults", home, "--as=dev"), `^! no node is watched: the DaemonSet of agents is there for 0 nodes`)
	expect(t, p.call(t, 1, "doctor", home), `FAIL  agents: 0 of 0 ready, on 1 node\n      -> kubectl get daemonset -n default kubediag-agent -o yaml`)
	set.Status.DesiredNumberScheduled = 1
	must(t, c.Status().Update(t.Context(), set))
	expect(t, p.call(t, 0, "faults", home, "--as=dev"), `^✓ No fault`)
	renew(time.Now().Add(-time.Hour))
	expect(t, p.call(t, 2, "faults", home, "--as=dev"), `^! 1 of 1 nodes is not watched; the last agents that were heard: stage-node \(agent silent for 60m\)`)
	set.Spec.Template.Spec.Containers[0].Args = []string{"--sentinel-mode=Off"}
	must(t, c.Update(t.Context(), set))
	renew(time.Now().Add(time.Hour))
	expect(t, p.call(t, 2, "faults", home), `^! the sentinel of DaemonSet default/kubediag-agent is off`)
}
