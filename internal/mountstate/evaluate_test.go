// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// placesOf are the volumes of pod u for which the kubelet has a place, each as PLUGIN/NAME with ~ in the plugin; "block:" begins a device.
func placesOf(names ...string) (places []kubelet.Volume) {
	for _, name := range names {
		name, block := strings.CutPrefix(name, "block:")
		plugin, volume, _ := strings.Cut(name, "/")
		places = append(places, kubelet.Volume{PodUID: "u", Plugin: kubelet.PluginOf(plugin), Name: volume, Block: block})
	}
	return places
}

// wrongLinks are the links that are not right: "? PLACE" for one that is to be looked for again, "PLACE: REASON" for one that is unknown.
func wrongLinks(f Facts) map[string]string {
	all := map[string]string{}
	for _, v := range f.Evaluate(layout()) {
		place := strings.TrimPrefix(v.Point, "/k/pods/u/")
		switch {
		case v.Asks:
			all[place] = "?"
		case v.State == StateUnknown:
			all[place] = v.Reason
		}
	}
	return all
}

// TestLinks has one kind of volume a row: the places that the kubelet has made, the mounts there, and the links that are not right.
func TestLinks(t *testing.T) {
	t.Parallel()
	secret := corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	whole := corev1.VolumeMount{Name: "v", MountPath: "/v"}
	both := corev1.VolumeMount{Name: "v", MountPath: "/v", MountPropagation: new(corev1.MountPropagationBidirectional)}
	memory := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}
	device := []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
	const ask = "?"
	for name, row := range map[string]struct {
		pod            *corev1.Pod
		places, mounts string // with blanks between them
		want           map[string]string
	}{
		"Secret":                       {rowPod(secret, nil, whole), "kubernetes.io~secret/v", "volumes/kubernetes.io~secret/v", nil},
		"Secret without its tmpfs":     {rowPod(secret, nil, whole), "kubernetes.io~secret/v", "", map[string]string{"volumes/kubernetes.io~secret/v": ask}},
		"Secret without its directory": {rowPod(secret, nil, whole), "", "", map[string]string{"volumes/kubernetes.io~secret/v": ask}},
		"Secret that is optional": {rowPod(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{Optional: new(true)}}, nil, whole), "kubernetes.io~secret/v",
			"volumes/kubernetes.io~secret/v", nil},
		"Secret that no container has": {rowPod(secret, nil), "", "", nil},
		"projected": {rowPod(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}, nil, whole), "kubernetes.io~projected/v", "",
			map[string]string{"volumes/kubernetes.io~projected/v": ask}},
		"downward API": {rowPod(corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, nil, whole), "kubernetes.io~downward-api/v", "",
			map[string]string{"volumes/kubernetes.io~downward-api/v": ask}},
		"ConfigMap": {rowPod(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, nil, whole), "kubernetes.io~configmap/v", "", nil},
		"ConfigMap without its directory": {rowPod(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, nil, whole), "", "",
			map[string]string{"volumes/kubernetes.io~configmap/v": ask}},
		"git repository": {rowPod(corev1.VolumeSource{GitRepo: &corev1.GitRepoVolumeSource{}}, nil, whole), "kubernetes.io~git-repo/v", "", nil},
		"emptyDir":       {rowPod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, nil, whole), "kubernetes.io~empty-dir/v", "", nil},
		"emptyDir with a mount": {rowPod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, nil, whole), "kubernetes.io~empty-dir/v", "volumes/kubernetes.io~empty-dir/v",
			map[string]string{"volumes/kubernetes.io~empty-dir/v": ask}},
		"emptyDir with a mount of its pod": {rowPod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, nil, both), "kubernetes.io~empty-dir/v", "volumes/kubernetes.io~empty-dir/v", nil},
		"emptyDir with a mount inside":     {rowPod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, nil, whole), "kubernetes.io~empty-dir/v", "volumes/kubernetes.io~empty-dir/v/in", nil},
		"ConfigMap with a mount": {rowPod(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, nil, whole), "kubernetes.io~configmap/v", "volumes/kubernetes.io~configmap/v",
			map[string]string{"volumes/kubernetes.io~configmap/v": ask}},
		"emptyDir in memory":     {rowPod(memory, nil, whole), "kubernetes.io~empty-dir/v", "volumes/kubernetes.io~empty-dir/v", nil},
		"emptyDir not in memory": {rowPod(memory, nil, whole), "kubernetes.io~empty-dir/v", "", map[string]string{"volumes/kubernetes.io~empty-dir/v": ask}},
		"NFS":                    {rowPod(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, nil, whole), "kubernetes.io~nfs/v", "volumes/kubernetes.io~nfs/v", nil},
		"NFS that is not mounted": {rowPod(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, nil, whole), "kubernetes.io~nfs/v", "",
			map[string]string{"volumes/kubernetes.io~nfs/v": ask}},
		"NFS without a place":    {rowPod(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, nil, whole), "", "", map[string]string{"volumes": ask}},
		"driver of its own":      {rowPod(corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{}}, nil, whole), "example.com~flex/v", "", nil},
		"kind that is not known": {rowPod(corev1.VolumeSource{}, nil, whole), "kubernetes.io~git-repo/v", "", nil},
		"one mount for all":      {rowPod(corev1.VolumeSource{Quobyte: &corev1.QuobyteVolumeSource{}}, nil, whole), "", "", nil},
		"hostPath":               {rowPod(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}, nil, whole), "", "", nil},
		"image volume":           {rowPod(corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}, nil, whole), "", "", nil},
		"inline volume":          {rowPod(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}, nil, whole), "kubernetes.io~csi/v", "volumes/kubernetes.io~csi/v/mount", nil},
		"inline volume that is not mounted": {rowPod(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}, nil, whole), "kubernetes.io~csi/v", "",
			map[string]string{"volumes/kubernetes.io~csi/v/mount": ask}},
		"claim": {rowPod(claim, nil, whole), "kubernetes.io~csi/pvc-1", "volumes/kubernetes.io~csi/pvc-1/mount", nil},
		"claim that is not mounted": {rowPod(claim, nil, whole), "kubernetes.io~csi/pvc-1", "",
			map[string]string{"volumes/kubernetes.io~csi/pvc-1/mount": ask}},
		"claim of a path of the host": {rowPod(claim, nil, whole), "", "", nil},
		"claim of a local disk": {rowPod(claim, nil, whole), "kubernetes.io~local-volume/pv", "",
			map[string]string{"volumes/kubernetes.io~local-volume/pv": ask}},
		"generic ephemeral volume": {rowPod(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}, nil, whole), "kubernetes.io~csi/pvc-2", "",
			map[string]string{"volumes/kubernetes.io~csi/pvc-2/mount": ask}},
		"volume that a driver has": {rowPod(corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}}, nil, whole), "kubernetes.io~csi/rbd.csi.ceph.com-1", "",
			map[string]string{"volumes/kubernetes.io~csi/rbd.csi.ceph.com-1/mount": ask}},
		"device":                   {rowPod(claim, device), "block:kubernetes.io~csi/pvc-1", "", nil},
		"device that is not there": {rowPod(claim, device), "", "", map[string]string{"volumeDevices": ask}},
		"subPath that is not bound": {rowPod(secret, nil, corev1.VolumeMount{Name: "v", MountPath: "/p", SubPath: "a"}), "kubernetes.io~secret/v",
			"volumes/kubernetes.io~secret/v", nil},
		"subPathExpr of nothing": {rowPod(secret, nil, corev1.VolumeMount{Name: "v", MountPath: "/p", SubPathExpr: "$(EMPTY)"}), "kubernetes.io~secret/v",
			"volumes/kubernetes.io~secret/v", nil},
	} {
		f := Facts{}
		for _, place := range strings.Fields(row.mounts) {
			f.Mounts = append(f.Mounts, Mount{Point: "/k/pods/u/" + place})
		}
		f.Pods, f.Links = Desired(layout(), []PodSource{{UID: "u", Spec: row.pod, Places: placesOf(strings.Fields(row.places)...)}}, now)
		if row.want == nil {
			row.want = map[string]string{}
		}
		if diff := cmp.Diff(row.want, wrongLinks(f)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestMountOfTheKubelet: a Secret is one tmpfs. Another file system in its place, or on it, is not right, though a lookup reaches a mount.
func TestMountOfTheKubelet(t *testing.T) {
	t.Parallel()
	const at = "/k/pods/u/volumes/kubernetes.io~secret/v"
	pod := rowPod(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, nil, corev1.VolumeMount{Name: "v", MountPath: "/v"})
	ram, again := Mount{Point: at, Device: "0:7", FSType: "tmpfs"}, Mount{Point: at, Device: "0:7", FSType: "tmpfs", Hidden: true}
	for name, c := range map[string]struct {
		mounts        []Mount
		lacks, reason string
	}{
		"one":              {[]Mount{ram}, "", ""},
		"the same again":   {[]Mount{again, ram}, "", ""},
		"another tmpfs":    {[]Mount{again, {Point: at, Device: "0:8", FSType: "tmpfs"}}, "", reasonTwoLayers},
		"a disk on it":     {[]Mount{again, {Point: at, Device: "8:1", FSType: "ext4"}}, "no link", reasonTwoLayers},
		"a disk":           {[]Mount{{Point: at, Device: "8:1", FSType: "ext4"}}, "", strings.Replace(reasonOtherType, "%q", `"ext4"`, 1)},
		"hidden by a path": {[]Mount{again}, "no link", reasonCovered},
		"read-only":        {[]Mount{{Point: at, Device: "0:7", FSType: "tmpfs", ReadOnly: true}}, "", reasonReadOnly},
		"without content":  {[]Mount{ram}, "no link", "no link"},
	} {
		f := Facts{Mounts: c.mounts}
		s := PodSource{UID: "u", Spec: pod, Places: placesOf("kubernetes.io~secret/v"), Lacks: map[string]string{at: c.lacks}}
		f.Pods, f.Links = Desired(layout(), []PodSource{s}, now)
		want := map[string]string{}
		if c.reason != "" {
			want["volumes/kubernetes.io~secret/v"] = c.reason
		}
		for i, v := range f.Evaluate(layout()) {
			if v.Asks {
				f.Links[i].Runs = "it runs"
			}
		}
		got := wrongLinks(f)
		for place, reason := range got {
			got[place] = strings.TrimSuffix(reason, " (it runs)")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestWrittenByTheKubelet: a volume lacks a file that the kubelet writes before it starts a container. It is looked for again, and counts while its pod runs and
// stays, also if the spec of that is not known.
func TestWrittenByTheKubelet(t *testing.T) {
	t.Parallel()
	const whole = "/v"
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	going := rowPod(claim, nil, corev1.VolumeMount{Name: "v", MountPath: whole})
	going.DeletionTimestamp = &metav1.Time{Time: now}
	waiting := rowPod(claim, nil, corev1.VolumeMount{Name: "v", MountPath: whole})
	waiting.Status = corev1.PodStatus{}
	for name, c := range map[string]struct {
		pod          *corev1.Pod
		place, mount string
		asks         bool
	}{
		"a claim":                     {rowPod(claim, nil, corev1.VolumeMount{Name: "v", MountPath: whole}), "kubernetes.io~csi/pvc-1", "/mount", true},
		"a ConfigMap":                 {rowPod(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, nil, corev1.VolumeMount{Name: "v", MountPath: whole}), "kubernetes.io~configmap/v", "", true},
		"a ConfigMap without a spec":  {nil, "kubernetes.io~configmap/v", "", true},
		"a claim without a spec":      {nil, "kubernetes.io~csi/pvc-1", "/mount", true},
		"a claim of a pod that goes":  {going, "kubernetes.io~csi/pvc-1", "/mount", false},
		"a claim of a pod that waits": {waiting, "kubernetes.io~csi/pvc-1", "/mount", false},
	} {
		point := "/k/pods/u/volumes/" + c.place + c.mount
		f := Facts{}
		if c.mount != "" {
			f.Mounts = []Mount{{Point: point, Device: "0:7", FSType: "fuse"}}
		}
		f.Pods, f.Links = Desired(layout(), []PodSource{{UID: "u", Spec: c.pod, Places: placesOf(c.place), Lacks: map[string]string{point: "lost"}}}, now)
		asks := false
		for i, v := range f.Evaluate(layout()) {
			if v.Asks {
				asks, f.Links[i].Runs = true, "process 7"
			}
		}
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var again Facts
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatal(err)
		}
		places := again.Survey(layout()).Unknown.Places
		if asks != c.asks || (len(places) == 1 && places[0].Point == point && places[0].Reason == "lost (process 7)") != c.asks || len(places) > 1 {
			t.Errorf("%s: looked for again %v, not judged %+v", name, asks, places)
		}
	}
}

// TestLinkOfDriver: a driver may make a symbolic link in the place of a volume, which mounts nothing there.
func TestLinkOfDriver(t *testing.T) {
	t.Parallel()
	pod := rowPod(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}, nil, corev1.VolumeMount{Name: "v", MountPath: "/v"})
	const place = "volumes/kubernetes.io~csi/v/mount"
	for _, spec := range []*corev1.Pod{pod, nil} {
		source := PodSource{UID: "u", Spec: spec, Places: placesOf("kubernetes.io~csi/v")}
		for to, want := range map[string]map[string]string{"": {place: "?"}, "/run/fluid/fs": {}} {
			if source.Symlinks = nil; to != "" {
				source.Symlinks = map[string]string{"/k/pods/u/" + place: to}
			}
			var f Facts
			f.Pods, f.Links = Desired(layout(), []PodSource{source}, now)
			if diff := cmp.Diff(want, wrongLinks(f)); diff != "" {
				t.Errorf("link to %q, spec known %v (-want +got):\n%s", to, spec != nil, diff)
			}
		}
	}
}

// TestLinksOfPods has one Secret that is not mounted, of pods that are variously far. Only one that has started, and that runs before and after
// another look, lacks it.
func TestLinksOfPods(t *testing.T) {
	t.Parallel()
	const place = "volumes/kubernetes.io~secret/v"
	whole := corev1.VolumeMount{Name: "v", MountPath: "/v"}
	podWith := func(change func(p *corev1.Pod)) *corev1.Pod {
		p := rowPod(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, nil, whole)
		change(p)
		return p
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	lateOnly := func(p *corev1.Pod) {
		p.Spec.InitContainers[0].VolumeMounts, p.Spec.InitContainers[1].VolumeMounts, p.Spec.Containers[0].VolumeMounts = nil, nil, nil
	}
	for name, row := range map[string]struct {
		pod  *corev1.Pod
		want string // "?": it is looked for again
	}{
		"an init container has ended": {podWith(func(*corev1.Pod) {}), "?"},
		"no container has started":    {podWith(func(p *corev1.Pod) { p.Status.InitContainerStatuses = nil }), ""},
		"its first container waits": {podWith(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
		}), ""},
		"a container crashes again and again": {podWith(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
				Name: "init", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}},
			}}
		}), "?"},
		"it is being deleted":    {podWith(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }), ""},
		"it has ended":           {podWith(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), ""},
		"a container comes late": {podWith(lateOnly), ""},
		"a late container runs": {podWith(func(p *corev1.Pod) {
			lateOnly(p)
			p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", State: running}}
		}), "?"},
		"no source knows it": {nil, "?"},
	} {
		f := Facts{}
		f.Pods, f.Links = Desired(layout(), []PodSource{{UID: "u", Spec: row.pod, Places: placesOf("kubernetes.io~secret/v")}}, now)
		want := map[string]string{}
		if row.want != "" {
			want[place] = row.want
		}
		if diff := cmp.Diff(want, wrongLinks(f)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for i := range f.Links {
			f.Links[i].Runs = "process 7"
		}
		if row.want != "" {
			want[place] = reasonNotMounted + " (process 7)"
		}
		if diff := cmp.Diff(want, wrongLinks(f)); diff != "" {
			t.Errorf("%s, and it runs (-want +got):\n%s", name, diff)
		}
	}
}

// TestLinksOfDirectories: of a pod that no source knows, the kubelet's directories show the volumes. The medium of an emptyDir is not known.
func TestLinksOfDirectories(t *testing.T) {
	t.Parallel()
	f := Facts{Mounts: []Mount{{Point: "/k/pods/u/volumes/kubernetes.io~projected/token"}}}
	f.Pods, f.Links = Desired(layout(), []PodSource{{UID: "u", Places: placesOf(
		"kubernetes.io~projected/token", "kubernetes.io~empty-dir/tmp", "kubernetes.io~configmap/c", "kubernetes.io~csi/pvc-1", "example.com~flex/f", "block:kubernetes.io~csi/pvc-2",
	)}}, now)
	if diff := cmp.Diff(map[string]string{"volumes/kubernetes.io~csi/pvc-1/mount": "?"}, wrongLinks(f)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestLinksThatAreCovered: a mount that no path leads to is not right, nor are directories that cannot be listed. Both are said without
// another look.
func TestLinksThatAreCovered(t *testing.T) {
	t.Parallel()
	whole := corev1.VolumeMount{Name: "v", MountPath: "/v"}
	source := PodSource{UID: "u", Spec: rowPod(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, nil, whole), Places: placesOf("kubernetes.io~secret/v")}
	const place = "/k/pods/u/volumes/kubernetes.io~secret/v"
	for name, row := range map[string]struct {
		mounts   []mountinfo.Mount // on the root of the machine
		unlisted string
		want     map[string]string
	}{
		"mounted twice":    {[]mountinfo.Mount{{ID: 2, Parent: 1, Point: place}, {ID: 3, Parent: 2, Point: place}}, "", map[string]string{}},
		"a mount above it": {[]mountinfo.Mount{{ID: 2, Parent: 1, Point: place}, {ID: 3, Parent: 1, Point: "/k"}}, "", map[string]string{"volumes/kubernetes.io~secret/v": reasonCovered}},
		"not listed":       {[]mountinfo.Mount{{ID: 2, Parent: 1, Point: place}}, "it may block", map[string]string{"/k/pods/u": "it may block"}},
	} {
		source.Unlisted = row.unlisted
		f := Facts{Mounts: Observe(layout(), mountinfo.NewTable(append([]mountinfo.Mount{{ID: 1, Point: "/"}}, row.mounts...)))}
		f.Pods, f.Links = Desired(layout(), []PodSource{source}, now)
		if diff := cmp.Diff(row.want, wrongLinks(f)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestLinkOfAnotherKubelet: a mount at the same place below another root is none of ours.
func TestLinkOfAnotherKubelet(t *testing.T) {
	t.Parallel()
	const place = "/pods/u/volumes/kubernetes.io~secret/v"
	whole := corev1.VolumeMount{Name: "v", MountPath: "/v"}
	f := Facts{Mounts: Observe(layout(), mountinfo.NewTable([]mountinfo.Mount{{ID: 1, Point: "/"}, {ID: 2, Parent: 1, Point: "/k2" + place}}))}
	f.Pods, f.Links = Desired(layout(), []PodSource{{
		UID: "u", Spec: rowPod(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, nil, whole), Places: placesOf("kubernetes.io~secret/v"),
	}}, now)
	if diff := cmp.Diff(map[string]string{"volumes/kubernetes.io~secret/v": "?"}, wrongLinks(f)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestFindingsTakePlacesOfTheirVolume: a volume that a finding says is broken is no unknown place, too. A copy of it that could not be judged is.
func TestFindingsTakePlacesOfTheirVolume(t *testing.T) {
	t.Parallel()
	pod := fault.Pod{UID: "u"}
	at, copied := Place{Pod: pod, Volume: "v", Point: "/k"}, Place{Pod: pod, Volume: "v", Point: "/data", Namespace: "mnt:[5]"}
	other, node := Place{Pod: pod, Volume: "w", Point: "/w"}, Place{Point: "/k/plugins/d"}
	inside := Place{Pod: pod, Volume: "v", Point: "/data", Container: "app"}
	u := Unknown{Places: []Place{at, copied, other, node, inside}}
	for _, row := range []struct {
		finding fault.Finding
		want    []Place
	}{
		{fault.Finding{Code: fault.DeletedVolumeSource, Pod: pod, Volume: "v"}, []Place{copied, other, node}},
		{fault.Finding{Code: fault.StaleSubPath, Pod: pod, Volume: "v", Container: "app", Mount: fault.Mount{Point: "/k/0"}}, []Place{copied, other, node, inside}},
		{fault.Finding{Code: fault.DisconnectedFUSE, Pod: pod, Volume: "v", Container: "app", Mount: fault.Mount{Point: "/data"}}, []Place{copied, other, node}},
		{fault.Finding{Code: fault.DeletedVolumeSource, Pod: fault.Pod{UID: "another"}, Volume: "v"}, u.Places},
		{fault.Finding{Code: fault.MissingBindSource, Pod: pod, Volume: "v"}, u.Places}, // of no mount
	} {
		if diff := cmp.Diff(row.want, u.Without([]fault.Finding{row.finding}).Places); diff != "" {
			t.Errorf("%s of %s (-want +got):\n%s", row.finding.Code, row.finding.Pod.UID, diff)
		}
	}
}

// TestMountedReadOnly: a driver mounts a volume read-only if its PersistentVolume says so. So it is right, and there is a note if a container has it
// to write. A tmpfs that a container writes to is the kubelet's own.
func TestMountedReadOnly(t *testing.T) {
	t.Parallel()
	claim := func(readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: readOnly}}
	}
	ram := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}
	const ofClaim, ofRAM = "kubernetes.io~csi/pvc-1", "kubernetes.io~empty-dir/v"
	for name, c := range map[string]struct {
		source          corev1.VolumeSource
		mount, readOnly bool // whether the mount is, and the volumeMount
		place           string
		note, asks      bool
	}{
		"a claim":                     {claim(false), true, false, ofClaim, true, false},
		"a claim that is read":        {claim(true), true, false, ofClaim, false, false},
		"a claim in a reader":         {claim(false), true, true, ofClaim, false, false},
		"a claim that is writable":    {claim(false), false, false, ofClaim, false, false},
		"an emptyDir":                 {ram, true, false, ofRAM, false, true},
		"an emptyDir in a reader":     {ram, true, true, ofRAM, false, false},
		"an emptyDir to be written":   {ram, false, false, ofRAM, false, false},
		"an emptyDir of its own kind": {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "HugePages"}}, true, false, ofRAM, false, true},
	} {
		pod := rowPod(c.source, nil, corev1.VolumeMount{Name: "v", MountPath: "/v", ReadOnly: c.readOnly})
		point := "/k/pods/u/volumes/" + c.place
		if c.place == ofClaim {
			point += "/mount"
		}
		f := Facts{Mounts: []Mount{{Point: point, Device: "0:7", FSType: "tmpfs", ReadOnly: c.mount}}}
		f.Pods, f.Links = Desired(layout(), []PodSource{{UID: "u", Spec: pod, Places: placesOf(c.place)}}, now)
		asks := slices.ContainsFunc(f.Evaluate(layout()), func(v Verdict) bool { return v.Asks })
		if sum := f.Survey(layout()); (len(sum.Coverage.Notes) > 0) != c.note || asks != c.asks {
			t.Errorf("%s: notes %q, looked for again %v", name, sum.Coverage.Notes, asks)
		}
	}
	f := Facts{Links: []Link{{Kind: VolumeLink, PodUID: "u", Plugin: kubelet.CSIPlugin, Volume: "a", Writes: true, Started: true}}}
	f.Links = append(f.Links, f.Links[0])
	f.Links[1].Volume = "b"
	f.Pods = []Pod{{Pod: fault.Pod{UID: "u"}, Life: LifeWants, Places: placesOf("kubernetes.io~csi/a", "kubernetes.io~csi/b")}}
	for _, name := range []string{"a", "b"} {
		f.Mounts = append(f.Mounts, Mount{Point: "/k/pods/u/volumes/kubernetes.io~csi/" + name + "/mount", Device: "0:7", ReadOnly: true})
	}
	if notes := f.Survey(layout()).Coverage.Notes; len(notes) != 1 || !strings.Contains(notes[0], `volume "a"`) || !strings.HasSuffix(notes[0], "(and 1 more such volumes)") {
		t.Errorf("notes %q", notes)
	}
}
