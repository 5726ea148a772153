// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
)

// newNode has a root that exists and nothing in it.
func newNode(t *testing.T) *kubelet.Node {
	t.Helper()
	root := filepath.Join(t.TempDir(), "kubelet")
	if err := os.MkdirAll(filepath.Join(root, "pods"), 0o755); err != nil {
		t.Fatal(err)
	}
	n, err := kubelet.Local(root)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func mounts(volume, subPath string) corev1.VolumeMount {
	return corev1.VolumeMount{Name: volume, MountPath: "/etc/" + subPath, SubPath: subPath}
}

// richPod asks for subPaths in every way that there is.
func richPod() *corev1.Pod {
	pod := kubelettest.NewPod()
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", VolumeMounts: []corev1.VolumeMount{mounts("secret", "key")}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
		{Name: "configmap", MountPath: "/whole"},
		mounts("configmap", "app.ini"),
		{Name: "empty", MountPath: "/logs", SubPathExpr: "$(POD_NAME)"},
		mounts("claim", "data"),
		mounts("no-such-volume", "x"),
		mounts("image", "x"),
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}})
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", VolumeMounts: []corev1.VolumeMount{mounts("projected", "token")},
	}}}
	return pod
}

func TestSubPathMountsOfEveryKindOfContainer(t *testing.T) {
	t.Parallel()
	var got []string
	for _, w := range SubPathMounts(richPod()) {
		got = append(got, fmt.Sprintf("%s %s %d", w.Container, w.Volume.Name, w.Index))
	}
	want := []string{"init secret 0", "app configmap 1", "app empty 2", "app claim 3", "debug projected 0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wants (-want +got):\n%s", diff)
	}
}

func TestFindTakesOnlyWhatThePodAsksFor(t *testing.T) {
	t.Parallel()
	n, pod := newNode(t), richPod()
	dir := n.SubPathsDir(string(pod.UID))
	for point, want := range map[string]string{
		dir + "/configmap/app/1":                          "app configmap",
		dir + "/empty/app/2":                              "app empty",
		dir + "/secret/init/0":                            "init secret",
		dir + "/projected/debug/0":                        "debug projected",
		dir + "/pvc-0b1c/app/3":                           "app claim", // the kubelet's name of a claim is not in the pod
		dir + "/configmap/app/0":                          "",          // mounts all of the volume
		dir + "/configmap/app/10":                         "",
		dir + "/configmap/app/01":                         "",
		dir + "/secret/app/1":                             "", // the volume of another index
		dir + "/configmap/sidecar/1":                      "",
		dir + "/no-such-volume/app/4":                     "",
		dir + "/image/app/5":                              "",
		dir + "/configmap/app/1/x":                        "",
		dir + "/../../other/x/configmap/1":                "",
		n.SubPathsDir("another-pod") + "/configmap/app/1": "",
		n.Root: "", "/": "", "": "", "-a": "", "//deleted": "",
		"/var/lib/kubelet/pods/" + string(pod.UID) + "/volume-subpaths/configmap/app/1": "", // another kubelet's root
	} {
		w, ok := FindSubPathMount(n, pod, point)
		got := ""
		if ok {
			got = w.Container + " " + w.Volume.Name
		}
		if got != want {
			t.Errorf("at %q: %q, want %q", point, got, want)
		}
	}
}

func TestFindKnowsTheWalkthrough(t *testing.T) {
	t.Parallel()
	n, pod := newNode(t), kubelettest.WalkthroughPod(t)
	dir := n.SubPathsDir("29da79e5-386c-4e0d-82c1-215f93ff955d") + "/logrotateconf/nginx-ingress-controller/"
	w, ok := FindSubPathMount(n, pod, dir+"1")
	if !ok || w.Mount.SubPath != "nginx.log" {
		t.Errorf("found %+v, %v, want subPath nginx.log", w, ok)
	}
	for _, index := range []string{"0", "2", "10"} {
		if w, ok := FindSubPathMount(n, pod, dir+index); ok {
			t.Errorf("at index %s: found %+v, want nothing", index, w)
		}
	}
}

// TestFindDoesNotListAllMounts: a pod has hundreds of subPaths, and each is looked for. The work does not grow with their square.
func TestFindDoesNotListAllMounts(t *testing.T) {
	n := newNode(t)
	allocations := func(mounts int) float64 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "29da79e5-386c-4e0d-82c1-215f93ff955d"}, Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{{Name: "data"}}, Containers: []corev1.Container{{Name: "app"}},
		}}
		for i := range mounts {
			m := corev1.VolumeMount{Name: "data", MountPath: fmt.Sprint("/", i), SubPath: fmt.Sprint(i)}
			pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, m)
		}
		last := fmt.Sprintf("%s/data/app/%d", n.SubPathsDir(string(pod.UID)), mounts-1)
		return testing.AllocsPerRun(10, func() {
			if w, ok := FindSubPathMount(n, pod, last); !ok || w.Index != mounts-1 {
				t.Fatalf("found %+v, %v", w, ok)
			}
		})
	}
	if few, many := allocations(150), allocations(900); many > few { // both numbers have three digits
		t.Errorf("to find one of 900 takes %v allocations, one of 150 takes %v", many, few)
	}
}
