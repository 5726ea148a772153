// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package plugin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
)

// TestMountEvents: no mount is broken, and the kubelet says that it cannot make one.
func TestMountEvents(t *testing.T) {
	p, c := install(t), clientOfAll(t)
	p.LaunchAgent(t, "Off")
	p.Bind(t)
	newEvent := func(message string) *corev1.Event {
		now := metav1.Now()
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", GenerateName: "core2-"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "core2", UID: p.Pod.UID},
			Reason:         "FailedMount", Message: message, Type: corev1.EventTypeWarning, FirstTimestamp: now, LastTimestamp: now,
			Source: corev1.EventSource{Component: "kubelet", Host: "stage-node"},
		}
	}
	other := newEvent(`MountVolume.SetUp failed for volume "old" : it belongs to another pod`)
	other.InvolvedObject.UID = "9d1a6f6e-0000-4c1c-8f0e-2b8ad4e5b0aa"
	p.create(t, c, other)
	expect(t, p.call(t, 0, "run", "pod/core2"), `✓ No mount fault was found`)

	p.create(t, c, newEvent(`MountVolume.SetUp failed for volume "conf" : configmap "conf" not found`))
	failed := p.call(t, 1, "run", "pod/core2")
	t.Logf("the kubelet cannot mount:\n%s", failed)
	expect(t, failed, `\n! No broken mount was found, but Event FailedMount of kubelet, \d+s ago: MountVolume.SetUp failed for volume "conf" : configmap "conf"\s+not found \(`,
		`\nNext:\n`, `  kubectl describe pod -n default core2 `)
	expect(t, p.call(t, 1, "run", "pod/core2", "-o", "json"), `"outcome": "NoFault"`)

	may := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "runs-"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1.Group}, Resources: []string{"diagnoses"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
	}}
	p.create(t, c, may)
	p.grant(t, c, "blind", "ClusterRole", may.Name)
	apitest.Eventually(t, func() error { _, err := p.command(t.Context(), "get", "--as=blind").Output(); return err })
	blind := p.call(t, 2, "run", "pod/core2", "--as=blind")
	expect(t, blind, `\n! No mount fault was found: `, `\n! The Events of the pod were not looked at: refused: .*"blind" cannot list resource "events"`)
	if strings.Contains(blind, "✓ No mount fault") {
		t.Errorf("green:\n%s", blind)
	}
}
