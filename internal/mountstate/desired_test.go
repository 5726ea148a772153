// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// TestSourcesOf: a mirror pod is that of a static pod. It never is that of a directory with the UID of another pod, and of two mirror pods
// of one static pod neither is believed.
func TestSourcesOf(t *testing.T) {
	t.Parallel()
	const digest, twice, gone = "0123456789abcdef0123456789abcdef", "ffffffffffffffffffffffffffffffff", "7f1b6f0a-8c3d-4a57-9a0e-0123456789ab"
	mirror := func(name, of string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uidOf(len(name))), Annotations: map[string]string{corev1.MirrorPodAnnotationKey: of}}}
	}
	victim := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "victim", UID: "u"}}
	static := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "by the kubelet", UID: "fedcba9876543210fedcba9876543210"}}
	pods := []*corev1.Pod{
		victim, mirror("forged", "u"), mirror("of a pod that is gone", gone), mirror("etcd", digest), mirror("first", twice), mirror("second", twice),
		static, mirror("of the kubelet's", string(static.UID)),
	}
	want := map[string]string{"u": "victim", digest: "etcd", twice: "", gone: "", "none": "", string(static.UID): "by the kubelet"}
	got, uids := map[string]string{}, []string(nil)
	for uid := range want {
		uids = append(uids, uid)
	}
	for i, s := range SourcesOf(uids, pods) {
		if got[s.UID] = ""; s.Spec != nil {
			got[s.UID] = s.Spec.Name
		}
		if s.UID != uids[i] {
			t.Errorf("source %d is of %q, want %q", i, s.UID, uids[i])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// rowPod is a running pod with one volume and one container of each kind, each of which has the same mounts.
func rowPod(v corev1.VolumeSource, devices []corev1.VolumeDevice, mounts ...corev1.VolumeMount) *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{source("v", v)},
			InitContainers: []corev1.Container{
				{Name: "init", VolumeMounts: mounts, VolumeDevices: devices}, {Name: "sidecar", VolumeMounts: mounts, RestartPolicy: &always},
			},
			Containers:          []corev1.Container{{Name: "app", VolumeMounts: mounts, VolumeDevices: devices}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", VolumeMounts: mounts}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{
			Name: "init", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}, // its binds stay as long as the pod
		}}},
	}
}

// TestRows has one kind of volume or mount a row, with the places at which a pod that runs wants a mount, and places beside them.
func TestRows(t *testing.T) {
	t.Parallel()
	const wanted, noVolume, noSubPath = string(Wanted), unproven + reasonNoVolume, unproven + reasonNoSubPath
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	whole, part := corev1.VolumeMount{Name: "v", MountPath: "/v"}, corev1.VolumeMount{Name: "v", MountPath: "/p", SubPath: "a"}
	device := []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
	const fileSystem, blockDevice, file = "volumes/kubernetes.io~csi/pvc-1/mount", "volumeDevices/kubernetes.io~csi/pvc-1", "@plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/u"
	for name, row := range map[string]struct {
		pod  *corev1.Pod
		want map[string]string
	}{
		"containers of all kinds": {rowPod(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, nil, whole, part), map[string]string{
			"volumes/kubernetes.io~secret/v": wanted, "volume-subpaths/v/init/1": wanted, "volume-subpaths/v/sidecar/1": wanted,
			"volume-subpaths/v/app/1": wanted, "volume-subpaths/v/debug/1": wanted, "volume-subpaths/v/app/0": noSubPath, "volume-subpaths/v/other/1": noSubPath,
		}},
		"generic ephemeral volume": {rowPod(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}, nil, part), map[string]string{
			fileSystem: wanted, "volume-subpaths/pvc-1/app/0": wanted, blockDevice: noVolume,
		}},
		"inline volume": {rowPod(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}, nil, part), map[string]string{
			"volumes/kubernetes.io~csi/v/mount": wanted, "volume-subpaths/v/app/0": wanted, fileSystem: noVolume, "volume-subpaths/pvc-1/app/0": noSubPath,
		}},
		"claim as a file system":   {rowPod(claim, nil, whole), map[string]string{fileSystem: wanted, blockDevice: noVolume, file: string(Drivers)}},
		"claim as a device":        {rowPod(claim, device), map[string]string{fileSystem: noVolume, blockDevice: wanted, file: wanted}},
		"claim of no container":    {rowPod(claim, nil), map[string]string{fileSystem: wanted, blockDevice: wanted, file: wanted}},
		"image volume":             {rowPod(corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}, nil, whole, part), map[string]string{"volumes/kubernetes.io~image/v": noVolume, "volume-subpaths/v/app/1": noSubPath}},
		"hostPath":                 {rowPod(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}, nil, whole, part), map[string]string{"volumes/kubernetes.io~host-path/v": noVolume, "volume-subpaths/v/app/1": wanted}},
		"subPathExpr":              {rowPod(claim, nil, corev1.VolumeMount{Name: "v", MountPath: "/v", SubPathExpr: "$(UNKNOWN)"}), map[string]string{"volume-subpaths/pvc-1/app/0": wanted}},
		"volume that a driver has": {rowPod(corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}}, nil, whole), map[string]string{"volumes/kubernetes.io~csi/rbd.csi.ceph.com-1/mount": wanted, "volumes/kubernetes.io~rbd/v": wanted}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mounts []Mount
			want := map[string]string{}
			for place, class := range row.want {
				point := "/k/pods/u/" + place
				if place[0] == '@' {
					point = "/k/" + place[1:]
				}
				mounts, want[point] = append(mounts, Mount{Point: point, Device: point}), class
			}
			if diff := cmp.Diff(want, classesAt([]PodSource{{UID: "u", Spec: row.pod}}, mounts...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTwoSpellingsOfARoot: the root of a kubelet and its directory of pods are links. The mount table and the paths that the runtime was
// given are in two spellings, and are one place.
func TestTwoSpellingsOfARoot(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range []error{
		os.Mkdir(dir+"/disk", 0o755), os.MkdirAll(dir+"/pods/u", 0o755), os.Symlink(dir+"/pods", dir+"/disk/pods"), os.Symlink("disk", dir+"/kubelet"),
	} {
		if made != nil {
			t.Fatal(made)
		}
	}
	node, err := kubelet.Local(dir + "/kubelet")
	if err != nil {
		t.Fatal(err)
	}
	const place = "/u/volumes/kubernetes.io~secret/v"
	if got := node.OwnPath(dir+"/kubelet/pods"+place, "u"); got != dir+"/pods"+place {
		t.Errorf("the runtime's path is %q", got)
	}
	f := Facts{Mounts: Observe(&node.Layout, mountinfo.NewTable([]mountinfo.Mount{{ID: 1, Point: "/"}, {ID: 2, Parent: 1, Point: dir + "/pods" + place}}))}
	f.Pods, f.Links = Desired(&node.Layout, []PodSource{{UID: "u", Spec: rowPod(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, nil)}}, now)
	if got := f.Classify(&node.Layout); len(got) != 1 || got[0].Class != Wanted {
		t.Errorf("classified: %+v", got)
	}
}

// TestSeveralKubelets: the mounts of another kubelet are elsewhere. If its root lies in a volume of one of our pods, they are inside that.
func TestSeveralKubelets(t *testing.T) {
	t.Parallel()
	const place, volume = "/pods/w/volumes/kubernetes.io~secret/key", "/k/pods/u/volumes/kubernetes.io~empty-dir/v"
	var mounts []mountinfo.Mount
	for i, point := range []string{"/", "/k2" + place, "/k/pods2" + place, "/var/lib/kubelet" + place, volume + "/kubelet" + place, volume + "/kubelet/plugins/kubernetes.io/csi/d/1/globalmount"} {
		mounts = append(mounts, mountinfo.Mount{ID: i + 1, Parent: min(i, 1), Point: point})
	}
	pod := rowPod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, nil)
	got := classesAt([]PodSource{{UID: "u", Spec: pod}}, Observe(layout(), mountinfo.NewTable(mounts))...)
	want := map[string]string{
		mounts[2].Point: string(Kubelets), // a directory of the root that no kubelet has
		mounts[4].Point: string(Inside), mounts[5].Point: string(Inside),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
