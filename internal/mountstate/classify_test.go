// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

var now = time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)

func layout() *kubelet.Layout { return &kubelet.Elsewhere("/k", "/k/pods").Layout }

// source makes a volume of a pod.
func source(name string, s corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: s}
}

// fullPod has a volume of each kind, and subPaths in an init, a regular and an ephemeral container.
func fullPod() *corev1.Pod {
	claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{
				source("cfg", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}),
				source("key", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}),
				source("all", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}),
				source("api", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}),
				source("tmp", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
				source("ram", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}),
				source("huge", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "HugePages-2Mi"}}),
				source("data", corev1.VolumeSource{PersistentVolumeClaim: claim}),
				source("scratch", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}),
				source("inline", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}),
				source("share", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}),
				source("flex", corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "x/y"}}),
				source("host", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}),
				source("image", corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "r"}}),
			},
			InitContainers: []corev1.Container{{Name: "init", VolumeMounts: []corev1.VolumeMount{{Name: "cfg", MountPath: "/c", SubPath: "a"}}}},
			Containers: []corev1.Container{{Name: "app", VolumeMounts: []corev1.VolumeMount{
				{Name: "tmp", MountPath: "/t"}, {Name: "data", MountPath: "/d", SubPathExpr: "$(X)"}, {Name: "image", MountPath: "/i", SubPath: "bin"},
			}}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "debug", VolumeMounts: []corev1.VolumeMount{{Name: "key", MountPath: "/k", SubPath: "s"}},
			}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// ended is the full pod some time after its last container has ended.
func endedPod(since time.Duration) *corev1.Pod {
	pod := fullPod()
	pod.Status.Phase = corev1.PodFailed
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(now.Add(-since))},
	}}}
	return pod
}

func leavingPod() *corev1.Pod {
	pod := fullPod()
	pod.DeletionTimestamp = new(metav1.NewTime(now))
	return pod
}

// classesAt are the classes of mounts at these points, each with its reason.
func classesAt(sources []PodSource, mounts ...Mount) map[string]string {
	var f Facts
	f.Pods, f.Links = Desired(layout(), sources, now)
	f.Mounts = mounts
	got := map[string]string{}
	for _, m := range f.Classify(layout()) {
		got[m.Point] = string(m.Class)
		if m.Reason != "" {
			got[m.Point] += ": " + m.Reason
		}
	}
	return got
}

const unproven = string(Unproven) + ": "

// TestClassesOfAPod holds the class of each place in the directory of a pod, by the pod's life.
func TestClassesOfAPod(t *testing.T) {
	t.Parallel()
	const csi, v = "/volumes/kubernetes.io~csi/", "/volumes/kubernetes.io~"
	names := []string{"running", "unknown", "being deleted", "just ended", "ended"}
	pods := []*corev1.Pod{fullPod(), nil, leavingPod(), endedPod(29 * time.Second), endedPod(31 * time.Second)}
	over := unproven + reasonOver
	wanted, inside := string(Wanted), string(Inside)
	of := func(class string) [5]string { return [5]string{class, class, class, class, over} }
	stray := func(reason, unknown string) [5]string {
		return [5]string{unproven + reason, unknown, unknown, unproven + reason, over}
	}
	noPlace := [5]string{unproven + reasonNoPlace, unproven + reasonNoPlace, inside, unproven + reasonNoPlace, unproven + reasonNoPlace}
	for place, want := range map[string][5]string{
		v + "secret/key":                     of(wanted),
		v + "projected/all":                  of(wanted),
		v + "downward-api/api":               of(wanted),
		v + "empty-dir/ram":                  of(wanted),
		v + "empty-dir/huge":                 of(wanted),
		v + "nfs/share":                      of(wanted),
		"/volumes/x~y/flex":                  of(wanted),
		csi + "inline/mount":                 of(wanted),
		csi + "pvc-1/mount":                  of(wanted),
		v + "iscsi/pv-7":                     of(wanted), // the claim's
		v + "configmap/cfg":                  of(inside), // a directory, and something on it
		v + "empty-dir/tmp":                  {inside, wanted, wanted, inside, over},
		v + "empty-dir/tmp/a/b":              of(inside),
		csi + "pvc-1/mount/a":                of(inside),
		v + "secret/other":                   stray(reasonNoVolume, wanted),
		v + "secret/cfg":                     stray(reasonNoVolume, wanted), // that is a ConfigMap
		v + "empty-dir/other/a":              stray(reasonNoVolume, inside),
		csi + "pvc-1":                        noPlace,
		"/volumes":                           noPlace,
		"":                                   noPlace,
		"/data":                              noPlace,
		"/volume-subpaths/cfg/init/0":        of(wanted),
		"/volume-subpaths/pvc-1/app/1":       of(wanted),
		"/volume-subpaths/key/debug/0":       of(wanted),
		"/volume-subpaths/pvc-1/app/1/x":     of(inside),
		"/volume-subpaths/tmp/app/0":         stray(reasonNoSubPath, wanted), // no subPath in the spec
		"/volume-subpaths/image/app/2":       stray(reasonNoSubPath, wanted), // the runtime mounts it
		"/volume-subpaths/tmp/init/0":        stray(reasonNoSubPath, wanted), // another volume
		"/volume-subpaths/cfg/init/00":       noPlace,
		"/volume-subpaths/cfg":               noPlace,
		"/volumeDevices/kubernetes.io~csi/p": of(wanted),
		"/plugins/kubernetes.io~empty-dir/x": noPlace, // the kubelet has a file there
		"/etc-hosts":                         noPlace,
		"/containers/app/1":                  noPlace,
	} {
		for i, pod := range pods {
			point := "/k/pods/u" + place
			if got := classesAt([]PodSource{{UID: "u", Spec: pod}}, Mount{Point: point})[point]; got != want[i] {
				t.Errorf("%q of a pod that is %s: %q, want %q", place, names[i], got, want[i])
			}
		}
	}
}

// TestMoreVolumesThanClaims: of two volumes in the directory of a pod with one claim, one is not the pod's. A volume with the name of the spec does
// not count, nor does a mount that no lookup reaches.
func TestMoreVolumesThanClaims(t *testing.T) {
	t.Parallel()
	const one, two, inline = "/k/pods/u/volumes/kubernetes.io~csi/pvc-1/mount", "/k/pods/u/volumes/kubernetes.io~csi/pvc-2/mount", "/k/pods/u/volumes/kubernetes.io~csi/inline/mount"
	pod := rowPod(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}, nil, corev1.VolumeMount{Name: "v", MountPath: "/v"})
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}})
	source := PodSource{UID: "u", Spec: pod, Places: placesOf("kubernetes.io~csi/pvc-1", "kubernetes.io~csi/pvc-2", "kubernetes.io~csi/inline")}
	tooMany := unproven + reasonTooMany
	for name, c := range map[string]struct {
		mounts []Mount
		want   map[string]string
	}{
		"one":                      {[]Mount{{Point: one}, {Point: inline}}, map[string]string{one: string(Wanted), inline: string(Wanted)}},
		"two":                      {[]Mount{{Point: one}, {Point: two}, {Point: inline}}, map[string]string{one: tooMany, two: tooMany, inline: string(Wanted)}},
		"hidden, keeps its device": {[]Mount{{Point: one}, {Point: two, Hidden: true, Kept: true}}, map[string]string{one: string(Wanted), two: string(Unproven) + ": " + reasonKept}},
		"hidden":                   {[]Mount{{Point: one}, {Point: two, Hidden: true}}, map[string]string{one: string(Wanted), two: string(Hidden)}},
	} {
		if diff := cmp.Diff(c.want, classesAt([]PodSource{source}, c.mounts...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestClassesOfTheNode holds those of mounts that lie in the directory of no pod. A staging path is wanted by its device, or by the
// record of a volume.
func TestClassesOfTheNode(t *testing.T) {
	t.Parallel()
	staged := layout().StagingPoints("d", "h-1", "pv-1")
	pods := []PodSource{
		{UID: "u", Spec: fullPod(), Records: []*kubelet.VolumeRecord{{Driver: "d", Handle: "h-1", PersistentVolume: "pv-1"}}},
		{UID: "v"}, {UID: "w", Spec: &corev1.Pod{}},
	}
	want := map[string]string{
		"/k":                      string(Kubelets),
		"/k/pods":                 string(Kubelets),
		"/k/plugins":              string(Kubelets),
		"/k/device-plugins/x":     string(Kubelets),
		"/k/plugins/s3/mounts/u1": string(Drivers),
		"/k/plugins/kubernetes.io/csi/e/1/globalmount":             unproven + reasonNotStaged,
		"/k/plugins/kubernetes.io/csi/pv/other/globalmount":        unproven + reasonNotStaged,
		"/k/plugins/kubernetes.io/csi/e/2/globalmount":             string(Wanted), // its device
		"/k/plugins/kubernetes.io/csi/e/1/globalmount/x":           string(Inside),
		"/k/plugins/kubernetes.io/csi/e/1/globalmount/globalmount": string(Inside),
		"/k/plugins/kubernetes.io/csi/volumeDevices/publish/p/u":   string(Wanted),
		"/k/plugins/kubernetes.io/csi/volumeDevices/p/dev/v":       string(Wanted),
		"/k/plugins/kubernetes.io/csi/volumeDevices/p/dev/w":       string(Drivers), // the pod has no claim
		"/k/plugins/kubernetes.io/local-volume/mounts/pv":          string(Kubelets),
		"/k/plugins/kubernetes.io/rbd/mounts/pool-image":           string(Wanted), // its device
		"/k/plugins/kubernetes.io/rbd/mounts/other":                string(Drivers),
		"/k/pods/u/volumes/kubernetes.io~csi/pvc-1/mount":          string(Wanted),
		"/k/pods/late/volumes/kubernetes.io~secret/token":          string(Wanted), // its pod came meanwhile
		staged[0]: string(Wanted), staged[1]: string(Wanted),
	}
	var mounts []Mount
	for point := range want {
		m := Mount{Point: point, Device: point}
		switch point {
		case "/k/plugins/kubernetes.io/csi/e/2/globalmount", "/k/plugins/kubernetes.io/rbd/mounts/pool-image", "/k/pods/u/volumes/kubernetes.io~csi/pvc-1/mount":
			m.Device = "8:1"
		}
		mounts = append(mounts, m)
	}
	if diff := cmp.Diff(want, classesAt(pods, mounts...)); diff != "" {
		t.Error(diff)
	}
	for i := range mounts {
		mounts[i].Hidden = true
	}
	for point, class := range classesAt(pods, mounts...) {
		if class != string(Hidden) {
			t.Errorf("%s: %s, want hidden", point, class)
		}
	}
}

// TestObserve lists the mounts that lie at the kubelet's root or below, and at the directory of the pods, which is elsewhere here. A mount is
// hidden by one on it, or on the way to it.
func TestObserve(t *testing.T) {
	t.Parallel()
	mount := func(id, parent int, point string) mountinfo.Mount {
		return mountinfo.Mount{ID: id, Parent: parent, Major: 8, Minor: uint32(id), Point: point, FSType: "ext4"}
	}
	table := mountinfo.NewTable([]mountinfo.Mount{
		mount(1, 0, "/"), mount(2, 1, "/k"), mount(3, 1, "/kk"), mount(4, 1, "/p/u/a"), mount(5, 4, "/p/u/a"), mount(6, 2, "/k/x/y"), mount(7, 2, "/k/x"),
	})
	disk := func(point, device string) Mount { return Mount{Point: point, Device: device, FSType: "ext4"} }
	hidden := func(m Mount) Mount { m.Hidden, m.Kept = true, true; return m }
	want := []Mount{
		disk("/k", "8:2"), hidden(disk("/p/u/a", "8:4")), disk("/p/u/a", "8:5"), hidden(disk("/k/x/y", "8:6")), disk("/k/x", "8:7"),
	}
	layout := &kubelet.Elsewhere("/k", "/p").Layout
	if diff := cmp.Diff(want, Observe(layout, table)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want[1:3], ObservePods(layout, table, map[string]bool{"u": true})); diff != "" {
		t.Errorf("of a pod: %s", diff)
	}
	if got := ObservePods(layout, table, map[string]bool{"a": true, "": true}); len(got) != 0 {
		t.Errorf("of pods without mounts: %+v", got)
	}
}

// TestObserveKept: a hidden mount keeps its device only if that is a block device, and no path of the node leads to it. One whose file was deleted
// is noted.
func TestObserveKept(t *testing.T) {
	t.Parallel()
	table := mountinfo.NewTable([]mountinfo.Mount{
		{ID: 1, Point: "/", Root: "/"},
		{ID: 2, Parent: 1, Major: 8, Minor: 2, Point: "/k/shown", Root: "/"}, {ID: 3, Parent: 2, Minor: 9, Point: "/k/shown", Root: "/"},
		{ID: 4, Parent: 1, Major: 8, Minor: 2, Point: "/srv", Root: "/"},
		{ID: 5, Parent: 1, Minor: 5, Point: "/k/share", Root: "/"}, {ID: 6, Parent: 5, Minor: 9, Point: "/k/share", Root: "/"},
		{ID: 7, Parent: 1, Major: 8, Minor: 7, Point: "/k/kept", Root: "/"}, {ID: 8, Parent: 7, Minor: 9, Point: "/k/kept", Root: "/x//deleted"},
	})
	var got []string
	for _, m := range Observe(&kubelet.Elsewhere("/k", "/p").Layout, table) {
		got = append(got, fmt.Sprint(m.Point, " ", m.Hidden, " ", m.Kept, " ", m.Deleted))
	}
	want := []string{
		"/k/shown true false false", "/k/shown false false false", "/k/share true false false", "/k/share false false false",
		"/k/kept true true false", "/k/kept false false true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestAccount has each mount in one count, and names the unproven ones once for a pod and a reason. A place that another look could
// not judge is unknown, and a mount of a pod that is over is left over.
func TestAccount(t *testing.T) {
	t.Parallel()
	if (&Survey{}).Account() != nil {
		t.Error("mounts are counted that were not looked at")
	}
	pod := func(uid string) fault.Pod { return fault.Pod{UID: uid} }
	s := Survey{
		Over: []string{"gone"}, LeftOver: []string{"/k/e", "/k/h"}, // the first is in the directory of a pod
		Unknown: Unknown{Places: []Place{
			{Point: "/k/slow", Reason: "slow"}, {Point: "/k/copy", Namespace: "7", Reason: "slow"},
		}},
		Mounts: []Classified{
			{Mount{Point: "/k/a"}, pod("u"), Wanted, ""},
			{Mount{Point: "/k/copy"}, pod("u"), Wanted, ""},
			{Mount{Point: "/k/slow"}, pod("u"), Wanted, ""},
			{Mount{Point: "/k/slow"}, pod("u"), Hidden, ""},
			{Mount{Point: "/k/b"}, pod("u"), Inside, ""},
			{Mount{Point: "/k/c"}, pod("gone"), Wanted, ""},
			{Mount{Point: "/k/d"}, pod("gone"), Unproven, "r"},
			{Mount{Point: "/k/e"}, pod("u"), Unproven, "r"},
			{Mount{Point: "/k/f"}, pod("u"), Unproven, "r"},
			{Mount{Point: "/k/g"}, pod("w"), Unproven, "r"},
			{Mount{Point: "/k/h"}, pod(""), Drivers, ""},
			{Mount{Point: "/k"}, pod(""), Kubelets, ""},
		},
	}
	want := &Classes{Mounts: 12, Wanted: 2, Inside: 1, Kubelet: 1, Hidden: 1, LeftOver: 3, Unknown: 4}
	if diff := cmp.Diff(want, s.Account()); diff != "" {
		t.Error(diff)
	}
	places := []Place{
		{Pod: pod("u"), Point: "/k/e", Reason: "r, and 1 more like it"}, {Pod: pod("w"), Point: "/k/g", Reason: "r"},
	}
	if diff := cmp.Diff(places, s.Unknown.Places[2:]); diff != "" {
		t.Error(diff)
	}
}

// TestForgedFacts are those of a bundle that no scan made: they are classified without a panic.
func TestForgedFacts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{}`, `{"links":[{"kind":"volume","podUID":"x"},{"kind":"?","podUID":"u"}],"pods":[{"uid":"u","life":"?"}],"mounts":[{"point":"/k/pods/u/volumes/a/b"},{"point":""}]}`,
		`{"pods":[{"uid":".."},{"uid":""}],"mounts":[{"point":"/k/pods/../x"},{"point":"/k/pods//volumes/a/b"},{"point":"/k/plugins/kubernetes.io/csi//globalmount"}]}`,
	} {
		var f Facts
		if err := json.Unmarshal([]byte(text), &f); err != nil {
			t.Fatal(err)
		}
		s := Survey{Mounts: f.Classify(layout())}
		if got := s.Account(); got != nil && got.Mounts != len(f.Mounts) {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// sumOf adds the classes up.
func sumOf(c *Classes) int {
	return c.Wanted + c.Inside + c.Drivers + c.Kubelet + c.Hidden + c.LeftOver + c.Unknown
}

// podOf makes a pod that runs.
func podOf(uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p" + uid, UID: types.UID(uid)}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

func uidOf(i int) string { return fmt.Sprintf("7f1b6f0a-8c3d-4a57-9a0e-%012d", i) }
