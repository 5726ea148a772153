// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package links

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

func TestMain(m *testing.M) { kerneltest.Main(m, nil) }

var must = kerneltest.Must

// linkScene is a pod that runs, with a Secret, an emptyDir and a claim, as its kubelet makes them.
type linkScene struct {
	node *kubelet.Node
	pod  *corev1.Pod
	// secret, empty and claim are the places of the volumes.
	secret, empty, claim string
	end                  func() // ends the process of the pod
}

func newLinkScene(t *testing.T) *linkScene {
	t.Helper()
	node, err := kubelet.Local(t.TempDir())
	must(t, err)
	s := &linkScene{node: node, pod: kubelettest.NewPod()}
	s.pod.UID = types.UID(fmt.Sprintf("5e1b6f0a-8c3d-4a57-9a0e-%012d", os.Getpid()))
	for _, name := range []string{"secret", "empty", "claim"} {
		s.pod.Spec.Containers[0].VolumeMounts = append(s.pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	point := func(plugin, name string) string {
		at := node.VolumePoint(kubelet.Volume{PodUID: string(s.pod.UID), Plugin: plugin, Name: name})
		must(t, os.MkdirAll(at, 0o755))
		return at
	}
	s.secret, s.empty, s.claim = point("kubernetes.io/secret", "secret"), point("kubernetes.io/empty-dir", "empty"), point(kubelet.CSIPlugin, "pvc-1")
	for _, at := range []string{s.secret, s.claim} {
		must(t, sys.NewMount("tmpfs", at, "tmpfs", ""))
		t.Cleanup(func() {
			for systest.UnmountPath(at, true) == nil {
				continue
			}
		})
	}
	s.end = kubelettest.PodProcess(t, string(s.pod.UID))
	return s
}

// unknown are the places that are not right, by their points. specs is whether the spec of the pod is known.
func (s *linkScene) unknown(t *testing.T, specs bool, scope mountstate.Scope) map[string]string {
	t.Helper()
	i := &Inspector{Kubelet: s.node.ReadOnce()}
	if specs {
		i.Pods = func() []*corev1.Pod { return []*corev1.Pod{s.pod} }
	}
	sum, err := i.Look(t.Context(), scope)
	must(t, err)
	all := map[string]string{}
	for _, p := range sum.Unknown.Places {
		before, _, _ := strings.Cut(p.Reason, " (process ")
		all[p.Point] = p.Volume + ": " + before
	}
	return all
}

// TestVolumesThatAreNotThere takes the volumes of a pod away while it runs, one after the other. Each of them is said, with the spec of the pod
// and by the kubelet's directories alone, for the node and for the pod. None is once the pod has ended.
func TestVolumesThatAreNotThere(t *testing.T) {
	const notMounted, noDirectory = "nothing is mounted there, though a pod that runs wants a volume there", "the directory of the volume is not there, though its pod runs"
	s := newLinkScene(t)
	own, other := mountstate.Scope{PodUIDs: []string{string(s.pod.UID)}}, mountstate.Scope{PodUIDs: []string{"another"}}
	check := func(when string, want, bySpec map[string]string) {
		t.Helper()
		for name, got := range map[string]map[string]string{
			"by directories": s.unknown(t, false, mountstate.Scope{}), "by directories, for the pod": s.unknown(t, false, own),
		} {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", when, name, diff)
			}
		}
		for name, got := range map[string]map[string]string{"by specs": s.unknown(t, true, mountstate.Scope{}), "by specs, for the pod": s.unknown(t, true, own)} {
			if diff := cmp.Diff(bySpec, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", when, name, diff)
			}
		}
		if got := s.unknown(t, true, other); len(got) > 0 {
			t.Errorf("%s, for another pod: %v", when, got)
		}
	}
	want := map[string]string{}
	check("all is there", want, want)
	must(t, systest.UnmountPath(s.claim, true))
	want[s.claim] = "pvc-1: " + notMounted
	check("the claim is not mounted", want, want)
	must(t, systest.UnmountPath(s.secret, true))
	want[s.secret] = "secret: " + notMounted
	check("nor is the Secret", want, want)
	must(t, os.Remove(s.empty))
	check("the emptyDir is not there", want, map[string]string{s.claim: want[s.claim], s.secret: want[s.secret], s.empty: "empty: " + noDirectory})
	s.pod.Status.ContainerStatuses = nil
	if got := s.unknown(t, true, own); len(got) > 0 {
		t.Errorf("no container has started: %v", got)
	}
	s.end()
	s.pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Running("app")}
	check("the pod has ended", map[string]string{}, map[string]string{})
}

// TestVolumesThatComeBack: a volume that is there at the second look is right. The first look is in a table that is older.
func TestVolumesThatComeBack(t *testing.T) {
	s := newLinkScene(t)
	must(t, systest.UnmountPath(s.secret, true))
	once := s.node.ReadOnce()
	_, err := once.Mounts(t.Context())
	must(t, err)
	must(t, sys.NewMount("tmpfs", s.secret, "tmpfs", ""))
	sum, err := (&Inspector{Kubelet: once, Pods: func() []*corev1.Pod { return []*corev1.Pod{s.pod} }}).Look(t.Context(), mountstate.Scope{})
	must(t, err)
	if len(sum.Unknown.Places) > 0 {
		t.Errorf("unknown: %+v", sum.Unknown)
	}
}

// TestVolumesThatAreCovered: a later mount lies over the directory of the pods, and no path leads to the volumes any more.
func TestVolumesThatAreCovered(t *testing.T) {
	s := newLinkScene(t)
	must(t, sys.NewMount("tmpfs", s.node.PodsDir(), "tmpfs", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(s.node.PodsDir(), true) })
	for _, dir := range []string{s.secret, s.claim, s.empty} { // the kubelet has made them again
		must(t, os.MkdirAll(dir, 0o755))
	}
	want := "the volume is mounted, but no path leads to it: another mount lies on the way there"
	got := s.unknown(t, true, mountstate.Scope{})
	if diff := cmp.Diff(map[string]string{s.secret: "secret: " + want, s.claim: "pvc-1: " + want}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
