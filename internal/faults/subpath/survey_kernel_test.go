// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// testNode is a node with one pod for each thing that may have happened to a bind, named after it.
type testNode struct {
	*kubelettest.Scene
	pods map[string]*corev1.Pod
}

func (s testNode) podByUID(uid string) *corev1.Pod { return s.pods[uid] }

// addPod adds a pod with one subPath of a volume, and gives the source and the point.
func (s testNode) addPod(t *testing.T, uid, plugin, volume string) (pod *corev1.Pod, source, point string) {
	t.Helper()
	pod = kubelettest.NewPod()
	pod.UID, pod.Name = types.UID(uid), uid
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: volume, MountPath: "/x", SubPath: "key"}}
	s.pods[uid] = pod
	if plugin == kubelettest.EmptyDir {
		source = putFile(t, s.Volume(pod, plugin, volume), "key")
	} else {
		source = filepath.Join(s.Update(pod, plugin, volume, map[string]string{"key": "one"}), "key")
	}
	point = s.Point(pod, volume, "app", 0)
	s.Bind(source, point)
	return pod, source, point
}

func newNodeOfStates(t *testing.T) testNode {
	t.Helper()
	s := testNode{kubelettest.New(t), map[string]*corev1.Pod{}}
	const cm = kubelettest.ConfigMap
	s.addPod(t, "a-alive", cm, "configmap")
	pod, _, _ := s.addPod(t, "b-updated", cm, "configmap")
	s.Update(pod, cm, "configmap", map[string]string{"key": "two"})
	pod, _, _ = s.addPod(t, "c-emptied", cm, "configmap")
	must(t, os.Remove(filepath.Join(s.Volume(pod, cm, "configmap"), "key")))
	s.Update(pod, cm, "configmap", map[string]string{"other": "two"})
	_, source, _ := s.addPod(t, "d-moved", kubelettest.EmptyDir, "empty")
	sourceChanges["moved and created again"].do(t, source)
	_, source, _ = s.addPod(t, "e-linked", kubelettest.EmptyDir, "empty")
	sourceChanges["unlinked, another link left"].do(t, source)
	pod, source, _ = s.addPod(t, "f-strange", kubelettest.EmptyDir, "empty")
	strange := s.Point(pod, "empty", "app", 7)
	s.Bind(source, strange)
	must(t, os.Remove(source))
	pod = kubelettest.NewPod()
	pod.UID = "g-secret"
	must(t, mount.Tmpfs(s.Volume(pod, kubelettest.Secret, "secret"), 1<<20))
	s.addPod(t, "g-secret", kubelettest.Secret, "secret")
	must(t, os.Remove(filepath.Join(s.Volume(pod, kubelettest.Secret, "secret"), "key")))
	s.Update(pod, kubelettest.Secret, "secret", map[string]string{"other": "two"})
	must(t, os.MkdirAll(s.Node.PodDir("h-nothing"), 0o755))
	return s
}

func TestScan(t *testing.T) {
	s := newNodeOfStates(t)
	for name, c := range map[string]struct {
		podOf func(string) *corev1.Pod
		binds int
		want  []string
	}{
		"pods known": {s.podByUID, 7, []string{
			"b-updated Stale StaleSubPath 1", "c-emptied SourceGone MissingBindSource 1", "d-moved Stale StaleSubPath 1", "e-linked Stale StaleSubPath 1",
			"f-strange Stale StaleSubPath 1", "g-secret SourceGone MissingBindSource 1",
		}},
		"pods not known": {func(string) *corev1.Pod { return nil }, 8, []string{
			"b-updated Stale StaleSubPath 1", "c-emptied SourceGone MissingBindSource 1", "e-linked Stale StaleSubPath 1",
			"f-strange Stale StaleSubPath 2", "g-secret SourceGone MissingBindSource 1",
		}},
		"nobody to ask": {nil, 8, []string{
			"b-updated Stale StaleSubPath 1", "c-emptied SourceGone MissingBindSource 1", "e-linked Stale StaleSubPath 1",
			"f-strange Stale StaleSubPath 2", "g-secret SourceGone MissingBindSource 1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			survey, err := Scan(t.Context(), s.Node, Sources{}, c.podOf)
			must(t, err)
			counts := map[string]int{}
			var got []string
			for _, f := range survey.Found {
				finding := f.Finding(survey.Coverage.Namespace)
				line := fmt.Sprintf("%s %s %s", finding.Pod.UID, f.Bind.Verdict, finding.Code)
				if counts[line]++; counts[line] == 1 {
					got = append(got, line)
				}
				checkFinding(t, s, f, finding, c.podOf)
			}
			for i, line := range got {
				got[i] = fmt.Sprintf("%s %d", line, counts[line])
			}
			slices.Sort(got)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
			if survey.Coverage.Pods != 8 || survey.Coverage.Binds != c.binds || survey.Coverage.Mounts < survey.Coverage.Binds || survey.Coverage.RenewsBinds != nil {
				t.Errorf("survey = %+v, want 8 pods, %d binds", survey, c.binds)
			}
		})
	}
}

// checkFinding makes sure that a finding says where the bind is and what proves it.
func checkFinding(t *testing.T, s testNode, found Found, finding fault.Finding, podOf func(string) *corev1.Pod) {
	t.Helper()
	if finding.Mount.Point != s.Node.SubPathPoint(found.SubPath) || finding.Container != "app" || finding.Volume != found.SubPath.Volume || finding.Mount.Namespace == 0 {
		t.Errorf("finding %+v does not name the bind %+v", finding, found.SubPath)
	}
	text := strings.Join(finding.Evidence, "\n")
	known := podOf != nil && podOf(found.SubPath.PodUID) != nil
	parts := []string{"mountinfo: ", "source on the host: \"" + s.Root, "the pod's spec is not known"}
	if known {
		parts[2] = `asks for it in volumeMounts[0]: subPath "key"`
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("the evidence does not speak of %q:\n%s", part, text)
		}
	}
	if known != (finding.Pod.Name != "") {
		t.Errorf("pod %+v, known: %v", finding.Pod, known)
	}
}

// TestScanReportsTheMountinfoLine compares with the text of mountinfo.
func TestScanReportsTheMountinfoLine(t *testing.T) {
	s := newNodeOfStates(t)
	survey, err := Scan(t.Context(), s.Node, Sources{}, nil)
	must(t, err)
	text, err := mountns.Read(0, nil)
	must(t, err)
	for _, f := range survey.Found {
		if f.Bind.Line == "" || !strings.Contains(string(text), "\n"+f.Bind.Line+"\n") {
			t.Errorf("mountinfo has no line %q", f.Bind.Line)
		}
	}
}

func TestScanReportsWhetherTheKubeletReplacesBinds(t *testing.T) {
	s := newNodeOfStates(t)
	for _, renews := range []bool{true, false} {
		s.Renews(renews)
		survey, err := Scan(t.Context(), s.Node, Sources{}, s.podByUID)
		must(t, err)
		if survey.Coverage.RenewsBinds == nil || *survey.Coverage.RenewsBinds != renews {
			t.Errorf("renews: %v, want %v", survey.Coverage.RenewsBinds, renews)
		}
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Scan(stopped, s.Node, Sources{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancellation: %v", err)
	}
}

func TestInspectBindTakesOnlyExpectedMounts(t *testing.T) {
	s := newNodeOfStates(t)
	pod, other := s.pods["b-updated"], s.pods["a-alive"]
	point, strange := s.Point(pod, "configmap", "app", 0), s.Point(s.pods["f-strange"], "empty", "app", 7)
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		point string
		there bool
	}{
		"the bind":                {pod, point, true},
		"pod not known":           {nil, point, true},
		"of another pod":          {other, point, false},
		"not in the spec":         {s.pods["f-strange"], strange, false},
		"not in a spec not known": {nil, strange, true},
		"nothing mounted":         {pod, s.Point(pod, "configmap", "app", 1), false},
		"a volume":                {nil, s.Volume(s.pods["g-secret"], kubelettest.Secret, "secret"), false},
		"the root":                {nil, "/", false},
		"nothing at all":          {nil, "", false},
	} {
		bind, there, err := InspectBind(s.Node, c.pod, c.point, nil)
		if err != nil || there != c.there || there && (bind.Verdict != Stale || bind.State.Point != c.point) {
			t.Errorf("%s: there: %v, %v, %+v, want %v", name, there, err, bind, c.there)
		}
	}
}

func TestUnmountTakesStaleBindsOnly(t *testing.T) {
	const otherMount = "was gone already; another mount is there now and is left alone"
	for uid, c := range map[string]struct {
		known bool
		err   error
		again string // the message of another try
	}{
		"a-alive": {true, ErrNotStale, ""}, "c-emptied": {true, ErrNotStale, ""},
		"b-updated": {true, nil, otherMount}, "d-moved": {true, nil, otherMount},
		"e-linked":  {true, nil, "was gone already"}, // its name is gone
		"f-strange": {false, ErrNotStale, ""}, "g-secret": {false, ErrNotStale, ""},
	} {
		t.Run(uid, func(t *testing.T) {
			s := newNodeOfStates(t)
			volume := s.pods[uid].Spec.Containers[0].VolumeMounts[0].Name
			st, err := mount.Inspect(s.Point(s.pods[uid], volume, "app", 0))
			must(t, err)
			pod := s.pods[uid]
			if !c.known {
				pod = nil
			}
			before := s.Mounts()
			_, err = applyUnmount(t, s.Node, pod, st)
			if !errors.Is(err, c.err) || err != nil && c.err == nil {
				t.Errorf("error %v, want %v", err, c.err)
			}
			after := s.Mounts()
			for m := range before {
				if !after[m] && (c.err != nil || !strings.Contains(m, strconv.Quote(st.Point))) {
					t.Errorf("mount %s is gone", m)
				}
			}
			if done, err := applyUnmount(t, s.Node, pod, st); done.Message != c.again || !errors.Is(err, c.err) || err != nil && c.err == nil {
				t.Errorf("once more: %+v, %v, want %q, %v", done, err, c.again, c.err)
			}
		})
	}
}

func TestSameFileIsNotReplaced(t *testing.T) {
	for what, renewed := range map[string]bool{"unlinked and linked again": false, "unlinked, another link left": true, "replaced": true, "moved and created again": true} {
		s := testNode{kubelettest.New(t), map[string]*corev1.Pod{}}
		pod, source, point := s.addPod(t, "x", kubelettest.EmptyDir, "empty")
		sourceChanges[what].do(t, source)
		bind, there, err := InspectBind(s.Node, pod, point, nil)
		if err != nil || !there || bind.Verdict != Stale || bind.SourceUnchanged == renewed {
			t.Errorf("%s: %+v, %v, want renewed: %v", what, bind, err, renewed)
		}
	}
}

func TestParent(t *testing.T) {
	s, pod, f := kubelettest.New(t), kubelettest.NewPod(), volumeForms["hostPath behind links"]
	dir := f.make(t, s, pod)
	must(t, os.Symlink(dir+"/v1", filepath.Join(dir, "current")))
	must(t, os.Symlink("v1/conf", filepath.Join(dir, "conf")))
	must(t, os.Symlink("/etc", filepath.Join(dir, "out")))
	mkdir(t, dir, "v1/conf")
	for subPath, want := range map[string]string{
		"v1": dir + " v1", "v1/conf": dir + "/v1 conf", "current/conf": dir + "/v1 conf", "conf": dir + "/v1 conf", "current": dir + " v1",
		"./v1//conf/": dir + "/v1 conf", "out": "", ".": "",
	} {
		b := f.bindSubPath(t, s, pod, corev1.VolumeMount{SubPath: subPath})
		b.Bind(mkdir(t, dir, "v1/conf"), b.point)
		got := ""
		parent, name, err := Parent(s.Node, pod, b.point)
		if err == nil {
			at, err := os.Readlink("/proc/self/fd/" + parent.String())
			must(t, err)
			got = at + " " + name
		}
		parent.Close()
		if got != want {
			t.Errorf("parent of %q is %q, %v, want %q", subPath, got, err, want)
		}
		must(t, systest.UnmountPath(b.point, true))
	}
}
