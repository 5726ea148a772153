// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// usageAt is a device that is held by copies of what the kubelet had mounted at paths.
func usageAt(name string, paths ...string) *Usage {
	c := &Usage{Report: &devholder.Report{Device: blockdev.Device{Name: name, Number: blockdev.Number{Major: 252, Minor: 16}}}}
	for _, p := range paths {
		c.HolderInfos = append(c.HolderInfos, HolderInfo{Origin: MountOrigin{HostPath: p}})
	}
	return c
}

// TestDevicesOfAPod: what ties a device to the volumes of a pod, and what does not.
func TestDevicesOfAPod(t *testing.T) {
	t.Parallel()
	v := &podVolumes{node: kubelet.Elsewhere("/k", "/k/pods"), uid: "u1", name: "default/db"}
	v.addPersistentVolume("pv-1")
	v.points = append(v.points, v.node.StagingPoints("csi.example.com", "handle", "")...)
	v.devices = []blockdev.Device{{Name: "rbd7", Number: blockdev.Number{Major: 252, Minor: 112}}}
	staged := v.points[len(v.points)-1]
	other := v.node.StagingPoints("csi.example.com", "other", "")[0]
	raw := usageAt("rbd7", other)
	raw.Device.Number = v.devices[0].Number
	partition := usageAt("rbd7p1", other)
	partition.Device.Parent, partition.Device.Number.Minor = "rbd7", 113
	for name, tc := range map[string]struct {
		usage *Usage
		want  string // is in the reason; empty: none
	}{
		"its directory":                     {usageAt("rbd0", "/k/pods/u1/volumes/kubernetes.io~rbd/data"), "is that of a volume of pod default/db"},
		"its subPath":                       {usageAt("rbd0", "/k/pods/u1/volume-subpaths/pv-1/app/0"), "is that of a volume of pod default/db"},
		"one of several":                    {usageAt("rbd0", "", other, "/k/pods/u1/volumes/kubernetes.io~csi/pv-1/mount"), "is that of a volume"},
		"its volume, of a pod before it":    {usageAt("rbd0", "/k/pods/u0/volumes/kubernetes.io~csi/pv-1/mount"), `PersistentVolume "pv-1", which pod default/db has`},
		"staged by handle":                  {usageAt("rbd0", staged), "mounts a PersistentVolume of pod default/db for the node"},
		"staged by name":                    {usageAt("rbd0", "/k/plugins/kubernetes.io/csi/pv/pv-1/globalmount"), "for the node"},
		"a local volume":                    {usageAt("sdb", "/k/plugins/kubernetes.io/local-volume/mounts/pv-1"), "for the node"},
		"a raw block volume":                {raw, "has device /dev/rbd7 as a raw block volume"},
		"a partition of a raw block volume": {partition, "as a raw block volume"},
		"another volume":                    {usageAt("rbd0", "/k/plugins/kubernetes.io/csi/pv/pv-2/globalmount", other), ""},
		"another volume of another pod":     {usageAt("rbd0", "/k/pods/u0/volumes/kubernetes.io~csi/pv-2/mount"), ""},
		"a longer name":                     {usageAt("rbd0", "/k/pods/u11/volumes/kubernetes.io~csi/pv-11/mount", "/k/plugins/kubernetes.io/csi/pv/pv-11/globalmount"), ""},
		"a directory of that name":          {usageAt("rbd0", "/k/plugins/pv-1/data", "/k/pods/u0/volume-subpaths/pv-1/app/0"), ""},
		"another kubelet":                   {usageAt("rbd0", "/other/pods/u1/volumes/kubernetes.io~csi/pv-1/mount"), ""},
		"no copy of the kubelet's":          {usageAt("rbd0", ""), ""},
	} {
		got := v.reason(tc.usage)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// countingClaims counts how often it is asked.
type countingClaims struct{ asked int }

func (c *countingClaims) PersistentVolumes(context.Context, *corev1.Pod) []string {
	c.asked++
	return []string{"pv-2"}
}

// TestClaimsAreAskedLast: nothing of a pod is read without a device that is held, and no claim if the node shows whose it is.
func TestClaimsAreAskedLast(t *testing.T) {
	t.Parallel()
	node, err := kubelet.Local(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "u1"}}
	own := usageAt("rbd0", node.VolumePoint(kubelet.Volume{PodUID: "u1", Plugin: kubelet.CSIPlugin, Name: "pv-1"}))
	claimed := usageAt("rbd1", node.StagingPoints("", "", "pv-2")[0])
	foreign := usageAt("rbd2", node.StagingPoints("", "", "pv-3")[0])
	for name, tc := range map[string]struct {
		held  []*Usage
		want  []string
		asked int
	}{
		"nothing is held":       {},
		"by no copies":          {held: []*Usage{usageAt("rbd3", "")}},
		"its own":               {held: []*Usage{own}, want: []string{"rbd0"}},
		"by a claim":            {held: []*Usage{own, claimed}, want: []string{"rbd0", "rbd1"}, asked: 1},
		"that of another claim": {held: []*Usage{foreign}, asked: 1},
	} {
		claims := &countingClaims{}
		n := &inspection{inspector: &Inspector{Claims: claims, Finder: &devholder.Finder{}}, node: node, table: mountinfo.NewTable(nil)}
		got, err := n.usagesOfPod(t.Context(), pod, tc.held)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var names []string
		for _, c := range got {
			names = append(names, c.Device.Name)
		}
		if strings.Join(names, " ") != strings.Join(tc.want, " ") || claims.asked != tc.asked {
			t.Errorf("%s: devices %v, want %v; asked for claims %d times", name, names, tc.want, claims.asked)
		}
	}
}

// TestInlineVolumesAreKnownByTheirPod: other pods may have volumes of the same name.
func TestInlineVolumesAreKnownByTheirPod(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}},
		{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}},
		{Name: "ephemeral", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
	}}}
	for name, want := range map[string]bool{"inline": true, "claim": false, "ephemeral": false, "pvc-1": false} {
		if isInline(pod, name) != want {
			t.Errorf("%s: inline %v", name, !want)
		}
	}
}
