// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/fakenode"
)

// TestImpact: the pod has a volume of a real FUSE daemon, and a claim and a DaemonSet are about it. Each answer leaves no Diagnosis behind.
func TestImpact(t *testing.T) {
	p, c := install(t), clientOfAll(t)
	p.AwaitSet(t, "mount-impact-op-set")
	p.forgetAgent(t)
	expect(t, p.call(t, 2, "impact", "node/"+fakenode.NodeName, "--timeout=1s"), `^! No pod is known to lose a volume`, `no answer within 1s`, `kubediag: impact: not all of it`)
	p.LaunchAgent(t, "Off")
	p.Bind(t)
	expect(t, p.call(t, 0, "impact", "node/"+fakenode.NodeName), `^✓ No pod loses a volume when the daemons of node stage-node end: 1 node has answered\.\n$`)

	user := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "user"}, Spec: corev1.PodSpec{NodeName: fakenode.NodeName,
		Containers: []corev1.Container{{Name: "app", Image: "debian:12", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		Volumes:    []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}},
	}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, VolumeName: "pvc-1",
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	labels := map[string]string{"app": "driver"}
	container := corev1.Container{Name: "plugin", Image: "debian:12"}
	driver := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "driver"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{container}}},
	}}
	for _, o := range []client.Object{user, claim, driver} {
		p.create(t, c, o)
	}
	t.Cleanup(func() { // no controller takes the finalizer away
		claim.Finalizers = nil
		if err := c.Patch(context.WithoutCancel(t.Context()), claim, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	p.create(t, c, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "driver-1", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(driver, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
	}, Spec: corev1.PodSpec{NodeName: fakenode.NodeName, Containers: []corev1.Container{container}}})

	pods, _, _ := strings.Cut(p.Point(), string(p.Pod.UID))
	volume := filepath.Join(pods, string(user.UID), "volumes/kubernetes.io~csi/pvc-1")
	if err := errors.Join(os.MkdirAll(filepath.Join(volume, "mount"), 0o755), os.WriteFile(filepath.Join(volume, "vol_data.json"),
		[]byte(`{"driverName":"memory.csi.example.com","volumeHandle":"h","specVolID":"pvc-1","volumeLifecycleMode":"Persistent"}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	kerneltest.FUSE(t, filepath.Join(volume, "mount"))

	node := p.call(t, 1, "impact", "node/"+fakenode.NodeName)
	t.Logf("impact of a node:\n%s", node)
	expect(t, node, `^✗ 1 pod loses 1 volume on 1 node when the daemons of node stage-node end\.\n`, `- Comes back only with a new pod: 1 volume\.\n`,
		`\nLOSES +RETURNS +POD +VOLUME +DAEMON +NODE\n`, `yes +new pod +default/user +data +.* +stage-node\n`)
	expect(t, p.call(t, 1, "impact", "pvc/data"), `^✗ 1 pod loses 1 volume on 1 node when the daemons of claim default/data end`, `default/user`)
	// No pod of the DaemonSet serves it. Without a container runtime that is not known of a daemon in a container, as all of this may run in one.
	set, _ := p.command(t.Context(), "impact", "ds/driver", "-o", "json").Output()
	expect(t, string(set), `"target": "DaemonSet default/driver"`, `"nodes": \[\s+"stage-node"\s+\]`)
	if strings.Contains(string(set), `"loses": "Yes"`) {
		t.Errorf("the DaemonSet serves nothing:\n%s", set)
	}

	for args, pattern := range map[string]string{
		"impact": `impact: TARGET is missing`, "impact pod/core2": `"pod/core2": must be ds/NAME, node/NAME or pvc/NAME`, "impact node/nope": `nodes nope: not found`,
		"impact ds/nope": `daemonsets.apps default/nope: not found`, "impact pvc/nope": `persistentvolumeclaims default/nope: not found`,
		"impact node/x --timeout=1ms": `--timeout=1ms: must be at least 1s`,
	} {
		expect(t, p.call(t, 2, strings.Fields(args)...), pattern)
	}
	expect(t, p.call(t, 3, "impact", "node/"+fakenode.NodeName, "--as=eve"), `refused: .*"eve" cannot create resource "diagnoses"`)
	expect(t, p.call(t, 0, "__complete", "impact", "ds/"), `ds/driver\n`)
	apitest.Eventually(t, func() error {
		var left v1.DiagnosisList
		err := p.List(t.Context(), &left, client.InNamespace("default"))
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d Diagnoses are left", len(left.Items))
		}
		return err
	})
}
