// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/processor"
)

// diagnose runs the diagnoser on the scene and makes sure that it has changed nothing.
func diagnose(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod, change func(*processor.Request)) processor.Result {
	t.Helper()
	pods := &kubelettest.Pods{}
	pods.Set(pod)
	r := processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: pod.Namespace, Name: pod.Name}}
	if change != nil {
		change(&r)
	}
	before := s.Mounts()
	at := func(context.Context, *corev1.Pod) map[string]string {
		return map[string]string{"pv-1": "/srv/no-such-volume"}
	}
	result, err := (&Diagnoser{Pods: pods, Kubelet: s.Node, Sources: subpath.Sources{ClaimPaths: at}}).Run(t.Context(), r)
	must(t, err)
	if diff := cmp.Diff(before, s.Mounts()); diff != "" {
		t.Errorf("mounts changed:\n%s", diff)
	}
	return result
}

func TestWalkthrough(t *testing.T) {
	s, pod := kubelettest.New(t), kubelettest.WalkthroughPod(t)
	version := s.Update(pod, kubelettest.ConfigMap, "logrotateconf", map[string]string{"nginx.log": "one"})
	point := s.Point(pod, "logrotateconf", "nginx-ingress-controller", 1)
	s.Bind(filepath.Join(version, "nginx.log"), point)
	s.Update(pod, kubelettest.ConfigMap, "logrotateconf", map[string]string{"nginx.log": "two"})

	result := diagnose(t, s, pod, nil)
	source := version + "/nginx.log//deleted"
	want := map[string]string{
		"diagnoser.kubernetes.subpath_remount.result":                     "pod met a bug of subpath-remounting",
		"diagnoser.kubernetes.subpath_remount.bug_link":                   "https://github.com/kubernetes/kubernetes/issues/68211",
		"diagnoser.kubernetes.subpath_remount.original_source_path":       source,
		"diagnoser.kubernetes.subpath_remount.original_source_paths":      `["` + source + `"]`,
		"diagnoser.kubernetes.subpath_remount.original_destination_path":  point,
		"diagnoser.kubernetes.subpath_remount.original_destination_paths": `["` + point + `"]`,
	}
	if diff := cmp.Diff(want, result.Values); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if len(result.Findings) != 1 {
		t.Fatalf("findings = %+v, want one", result.Findings)
	}
	f := result.Findings[0]
	if f.Code != fault.StaleSubPath || f.Container != "nginx-ingress-controller" || f.Volume != "logrotateconf" || f.Pod.UID != string(pod.UID) || f.Mount.Point != point {
		t.Errorf("finding = %+v", f)
	}
	evidence := strings.Join(f.Evidence, "\n")
	for _, part := range []string{"link count is 0", "mountinfo: ", "//deleted " + strings.ReplaceAll(point, " ", `\040`), `subPath "nginx.log"`, "waiting (CrashLoopBackOff)", "ContainerCannotRun, exit code 128"} {
		if !strings.Contains(evidence, part) {
			t.Errorf("the evidence does not speak of %q:\n%s", part, evidence)
		}
	}
}

// everyKind is a pod whose containers of every kind have a bind each of a volume of every kind, all of which are stale.
// No message says so.
func everyKind(t *testing.T) (s *kubelettest.Scene, pod *corev1.Pod, points []string) {
	t.Helper()
	s, pod = kubelettest.New(t), kubelettest.NewPod()
	mounts := map[string][]corev1.VolumeMount{}
	for _, c := range []struct{ container, plugin, volume string }{
		{"init", kubelettest.Secret, "secret"},
		{"app", kubelettest.ConfigMap, "configmap"},
		{"app", kubelettest.Projected, "projected"},
		{"sidecar", kubelettest.DownwardAPI, "downward"},
		{"debug", kubelettest.ConfigMap, "configmap"},
	} {
		index := len(mounts[c.container])
		mounts[c.container] = append(mounts[c.container], corev1.VolumeMount{Name: c.volume, MountPath: "/x", SubPath: "key"})
		version := s.Update(pod, c.plugin, c.volume, map[string]string{"key": "one"})
		points = append(points, s.Point(pod, c.volume, c.container, index))
		s.Bind(filepath.Join(version, "key"), points[len(points)-1])
	}
	for volume, plugin := range map[string]string{"secret": kubelettest.Secret, "configmap": kubelettest.ConfigMap, "projected": kubelettest.Projected, "downward": kubelettest.DownwardAPI} {
		s.Update(pod, plugin, volume, map[string]string{"key": "two"})
	}
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", VolumeMounts: mounts["init"]}}
	pod.Spec.Containers[0].VolumeMounts = mounts["app"]
	pod.Spec.Containers[1].VolumeMounts = mounts["sidecar"]
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", VolumeMounts: mounts["debug"]}}}
	return s, pod, points
}

func TestEveryKindOfContainerAndVolumeAtOnce(t *testing.T) {
	s, pod, points := everyKind(t)
	for name, c := range map[string]struct {
		container string
		want      []string
	}{
		"all containers": {"", points},
		"one of them":    {"app", points[1:3]},
		"an init":        {"init", points[:1]},
		"an ephemeral":   {"debug", points[4:]},
	} {
		t.Run(name, func(t *testing.T) {
			result := diagnose(t, s, pod, func(r *processor.Request) { r.Pod.Container = c.container })
			var got []string
			must(t, json.Unmarshal([]byte(result.Values[keyDestinationPaths]), &got))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("destinations (-want +got):\n%s", diff)
			}
			if len(result.Findings) != len(c.want) || result.Values[keyDestinationPath] != c.want[0] {
				t.Errorf("%d findings, first destination %q, want %d and %q", len(result.Findings), result.Values[keyDestinationPath], len(c.want), c.want[0])
			}
		})
	}
}

func TestIndexTenIsNotIndexOne(t *testing.T) {
	s, pod := kubelettest.New(t), kubelettest.NewPod()
	version := s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"one": "", "ten": ""})
	for i := range 11 {
		subPath := map[int]string{1: "one", 10: "ten"}[i]
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "configmap", MountPath: "/x", SubPath: subPath})
	}
	one, ten := s.Point(pod, "configmap", "app", 1), s.Point(pod, "configmap", "app", 10)
	s.Bind(filepath.Join(version, "ten"), ten)
	s.Bind(filepath.Join(version, "one"), one)
	must(t, os.Remove(filepath.Join(version, "ten")))
	must(t, os.WriteFile(filepath.Join(version, "ten"), nil, 0o644))
	result := diagnose(t, s, pod, nil)
	if got := result.Values[keyDestinationPaths]; got != `["`+ten+`"]` {
		t.Errorf("destinations %s, want index 10 alone", got)
	}
}

func TestNotThisFault(t *testing.T) {
	for name, c := range map[string]struct {
		setup   func(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod)
		request func(*processor.Request)
		reason  []string
		codes   []fault.Code
	}{
		"healthy": {reason: []string{"no stale subPath mount", "of 1 subPaths 1 are bound", "1 have a source that is alive"}},
		"no subPath": {
			setup:  func(_ *testing.T, _ *kubelettest.Scene, pod *corev1.Pod) { pod.Spec.Containers[0].VolumeMounts = nil },
			reason: []string{"pod default/web mounts no volume with a subPath"},
		},
		"a container without": {
			request: func(r *processor.Request) { r.Pod.Container = "sidecar" },
			reason:  []string{`container "sidecar" of pod default/web mounts no volume with a subPath`},
		},
		"another node": {
			request: func(r *processor.Request) { r.Node = "other" },
			reason:  []string{`runs on node "my-node", and this is node "other"`},
		},
		"nothing bound yet": {
			setup:  func(_ *testing.T, _ *kubelettest.Scene, pod *corev1.Pod) { pod.UID = "new" },
			reason: []string{"of 1 subPaths 0 are bound"},
		},
		"source missing": {
			setup: func(_ *testing.T, _ *kubelettest.Scene, pod *corev1.Pod) {
				pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "host", MountPath: "/h", SubPath: "x"})
				pod.Status.ContainerStatuses[0] = kubelettest.Failing("app", "stat /nowhere: no such file or directory")
			},
			reason: []string{"MissingBindSource", `"/nowhere"`, "waiting (CrashLoopBackOff)"},
			codes:  []fault.Code{fault.MissingBindSource},
		},
		"key is gone": {
			setup: func(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod) {
				s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"other": ""})
				must(t, os.Remove(filepath.Join(s.Volume(pod, kubelettest.ConfigMap, "configmap"), "key")))
			},
			reason: []string{"is left alone", "no entry of that name any more"},
			codes:  []fault.Code{fault.MissingBindSource},
		},
		"file onto directory, as the runtime says": {
			setup: func(_ *testing.T, s *kubelettest.Scene, pod *corev1.Pod) {
				pod.Status.ContainerStatuses[0] = kubelettest.Failing("app", fmt.Sprintf("error mounting %q to rootfs at %q: not a directory",
					s.Point(pod, "configmap", "app", 0), "/x"))
			},
			reason: []string{"SourceTypeMismatch", "is a file", `"/x"`},
			codes:  []fault.Code{fault.SourceTypeMismatch},
		},
		"whole volume onto a file, as the runtime says": {
			setup: func(_ *testing.T, s *kubelettest.Scene, pod *corev1.Pod) {
				pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "configmap", MountPath: "/etc/config.toml"})
				pod.Status.ContainerStatuses[0] = kubelettest.Failing("app", fmt.Sprintf("error mounting %q to rootfs at %q: not a directory",
					s.Volume(pod, kubelettest.ConfigMap, "configmap"), "/etc/config.toml"))
			},
			reason: []string{"SourceTypeMismatch", "is a directory", `"/etc/config.toml"`},
			codes:  []fault.Code{fault.SourceTypeMismatch},
		},
		"half-written volume of a container that runs": {
			setup: func(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod) {
				pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/etc/x"}}
				must(t, os.Remove(filepath.Join(s.Volume(pod, kubelettest.ConfigMap, "configmap"), "key")))
			},
			reason: []string{"MissingBindSource", `"key" is below "..data"`},
			codes:  []fault.Code{fault.MissingBindSource},
		},
		"path of a claim, as the kubelet says": {
			setup: func(_ *testing.T, _ *kubelettest.Scene, pod *corev1.Pod) {
				pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "claim", MountPath: "/data", SubPath: "x"})
				pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
					Reason: "CreateContainerConfigError", Message: "stat /srv/no-such-volume: no such file or directory",
				}}}
			},
			reason: []string{"MissingBindSource", `nothing is at "/srv/no-such-volume"`},
			codes:  []fault.Code{fault.MissingBindSource},
		},
		"another reason to wait": {
			setup: func(_ *testing.T, _ *kubelettest.Scene, pod *corev1.Pod) {
				pod.Status.ContainerStatuses[0] = kubelettest.Failing("app", "exec: no such program")
			},
			reason: []string{"no stale subPath mount", `container "app" is waiting (CrashLoopBackOff)`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, pod := kubelettest.New(t), kubelettest.NewPod()
			version := s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": ""})
			s.Bind(filepath.Join(version, "key"), s.Point(pod, "configmap", "app", 0))
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/x", SubPath: "key"}}
			if c.setup != nil {
				c.setup(t, s, pod)
			}
			result := diagnose(t, s, pod, c.request)
			for _, part := range c.reason {
				if !strings.Contains(result.NotApplicable, part) {
					t.Errorf("reason %q does not speak of %q", result.NotApplicable, part)
				}
			}
			var codes []fault.Code
			for _, f := range result.Findings {
				codes = append(codes, f.Code)
			}
			if diff := cmp.Diff(c.codes, codes); diff != "" || len(result.Values) != 0 {
				t.Errorf("results %v, findings (-want +got):\n%s", result.Values, diff)
			}
		})
	}
}

func TestRestartPolicyNeverIsSaidPlainly(t *testing.T) {
	s, pod, _ := everyKind(t)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	result := diagnose(t, s, pod, func(r *processor.Request) { r.Pod.Container = "app" })
	if evidence := strings.Join(result.Findings[0].Evidence, "\n"); !strings.Contains(evidence, `container "app" is not started again: restartPolicy is Never`) {
		t.Errorf("the evidence does not say that the container is not started again:\n%s", evidence)
	}
}
