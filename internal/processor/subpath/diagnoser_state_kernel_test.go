// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/processor"
)

const runcText = `failed to create containerd task: OCI runtime create failed: error mounting "%s" to rootfs at "/x": mount %[1]s:/x (via ` +
	`/proc/self/fd/6), flags: 0x5000: no such file or directory: unknown`

// newStalePod is a pod whose container app, or init container init, has a bind that an update has made stale.
func newStalePod(t *testing.T, key string) (s *kubelettest.Scene, pod *corev1.Pod, point string) {
	t.Helper()
	s, pod = kubelettest.New(t), kubelettest.NewPod()
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/x", SubPath: key}}
	version := s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{key: "one"})
	point = s.Point(pod, "configmap", "app", 0)
	s.Bind(filepath.Join(version, key), point)
	s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{key: "two"})
	return s, pod, point
}

// TestStaleWhereverTheFailureIsReported has the failure be told of in every place, and in none.
func TestStaleWhereverTheFailureIsReported(t *testing.T) {
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	ended := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, Message: message, ExitCode: 128}}
	}
	for name, status := range map[string]func(message string) *corev1.ContainerStatus{
		"CRI-O": func(m string) *corev1.ContainerStatus {
			return &corev1.ContainerStatus{Name: "app", State: waiting("CreateContainerError", "container create failed: "+m)}
		},
		"configuration": func(string) *corev1.ContainerStatus {
			return &corev1.ContainerStatus{Name: "app", State: waiting("CreateContainerConfigError", `failed to prepare subPath for volumeMount "configmap" of container "app"`)}
		},
		"just ended": func(m string) *corev1.ContainerStatus {
			return &corev1.ContainerStatus{Name: "app", State: ended("StartError", m)}
		},
		"backing off": func(m string) *corev1.ContainerStatus {
			return &corev1.ContainerStatus{Name: "app", State: waiting("CrashLoopBackOff", "back-off"), LastTerminationState: ended("ContainerCannotRun", m)}
		},
		"events only": func(string) *corev1.ContainerStatus {
			return &corev1.ContainerStatus{Name: "app", State: waiting("RunContainerError", "")}
		},
		"it runs":       func(string) *corev1.ContainerStatus { s := kubelettest.Running("app"); return &s },
		"no status":     func(string) *corev1.ContainerStatus { return nil },
		"nothing in it": func(string) *corev1.ContainerStatus { return &corev1.ContainerStatus{Name: "app"} },
		"another's error": func(string) *corev1.ContainerStatus {
			s := kubelettest.Failing("app", "exec: no such program")
			return &s
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, pod, point := newStalePod(t, "key")
			pod.Status.ContainerStatuses = nil
			if status := status(fmt.Sprintf(runcText, point)); status != nil {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{*status}
			}
			result := diagnose(t, s, pod, nil)
			if len(result.Findings) != 1 || result.Values[keyDestinationPath] != point {
				t.Fatalf("result = %+v, want the bind at %q", result, point)
			}
			evidence := strings.Join(result.Findings[0].Evidence, "\n")
			if strings.Contains(evidence, "no such file") || strings.Contains(evidence, "no such program") {
				t.Errorf("the evidence quotes a message:\n%s", evidence)
			}
			if !strings.Contains(evidence, "not known whether this kubelet renews") {
				t.Errorf("the evidence does not say what the kubelet does:\n%s", evidence)
			}
		})
	}
}

func TestNamesOfEveryKind(t *testing.T) {
	for _, key := range []string{"sp ace", `back\slash`, "new\nline", "tab\t", "żółć.ini", "//deleted"[2:], `"quoted"`, "#", "\\040", "-a"} {
		t.Run(key, func(t *testing.T) {
			s, pod, point := newStalePod(t, key)
			result := diagnose(t, s, pod, nil)
			var sources []string
			must(t, json.Unmarshal([]byte(result.Values[keySourcePaths]), &sources))
			if len(sources) != 1 || !strings.HasSuffix(sources[0], "/"+key+"//deleted") || result.Values[keyDestinationPath] != point {
				t.Errorf("sources %q, want one of %q", sources, key)
			}
		})
	}
}

// TestInitContainers has a stale bind in an init container of each kind, in each state.
func TestInitContainers(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	succeeded := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}
	for name, c := range map[string]struct {
		policy *corev1.ContainerRestartPolicy
		state  corev1.ContainerState
		says   string
	}{
		"has succeeded":     {nil, succeeded, `container "init" is idle: it has succeeded, and runs again only if the pod's sandbox is created again`},
		"waits":             {nil, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, "waiting (CrashLoopBackOff)"},
		"stays, and runs":   {&always, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, ": running"},
		"stays, and waits":  {&always, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}, "waiting (PodInitializing)"},
		"stays, has failed": {&always, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1}}, "exit code 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s, pod, _ := newStalePod(t, "key")
			pod.Spec.InitContainers = []corev1.Container{{Name: "init", RestartPolicy: c.policy, VolumeMounts: pod.Spec.Containers[0].VolumeMounts}}
			pod.Spec.Containers[0].VolumeMounts = nil
			pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", State: c.state}}
			point := s.Point(pod, "configmap", "init", 0)
			source := filepath.Join(s.Volume(pod, kubelettest.ConfigMap, "configmap"), "key")
			s.Bind(source, point)
			s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "three"})
			result := diagnose(t, s, pod, nil)
			if len(result.Findings) != 1 || result.Findings[0].Container != "init" || result.Values[keyDestinationPath] != point {
				t.Fatalf("result = %+v, want the bind at %q", result, point)
			}
			if evidence := strings.Join(result.Findings[0].Evidence, "\n"); !strings.Contains(evidence, c.says) {
				t.Errorf("the evidence does not say %q:\n%s", c.says, evidence)
			}
		})
	}
}

func TestKubeletThatReplacesBinds(t *testing.T) {
	s, pod, point := newStalePod(t, "key")
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Failing("app", fmt.Sprintf(runcText, point))}
	s.Renews(false)
	result := diagnose(t, s, pod, nil)
	if len(result.Findings) != 1 || !strings.Contains(strings.Join(result.Findings[0].Evidence, "\n"), "this kubelet keeps such a bind") {
		t.Errorf("a kubelet that does not renew: %+v, want the fault", result)
	}
	s.Renews(true)
	result = diagnose(t, s, pod, nil)
	if len(result.Values) != 0 || len(result.Findings) != 0 {
		t.Errorf("a kubelet that renews: %+v, want no fault", result)
	}
	expectParts(t, result, "no subPath mount that stays stale", `"`+point+`" is out of date, and this kubelet replaces it itself at the container's next start`,
		"link count is 0", "//deleted")
}

// TestKubeletThatReplacesBindsKeepsTheSameFile has a name be unlinked and put back: a kubelet sees no difference, and
// the kernel refuses the bind for ever.
func TestKubeletThatReplacesBindsKeepsTheSameFile(t *testing.T) {
	s, pod := kubelettest.New(t), kubelettest.NewPod()
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "empty", MountPath: "/x", SubPath: "key"}}
	source := filepath.Join(s.Volume(pod, kubelettest.EmptyDir, "empty"), "key")
	must(t, os.WriteFile(source, nil, 0o644))
	point := s.Point(pod, "empty", "app", 0)
	s.Bind(source, point)
	must(t, os.Link(source, source+".bak"))
	must(t, os.Remove(source))
	must(t, os.Link(source+".bak", source))
	s.Renews(true)
	result := diagnose(t, s, pod, nil)
	if len(result.Findings) != 1 || !strings.Contains(strings.Join(result.Findings[0].Evidence, "\n"), "the very file that is bound") {
		t.Errorf("result = %+v, want the fault", result)
	}
}

// TestFailedStartWithLiveBind has a container fail to start, with a text about a subPath whose bind is alive: as it is
// after a race between an update and the start.
func TestFailedStartWithLiveBind(t *testing.T) {
	const never = "the pod must be replaced: its restartPolicy is Never"
	for name, c := range map[string]struct {
		change func(pod *corev1.Pod)
		says   string
		not    []string
	}{
		"will be started again": {says: `container "app" is waiting (CrashLoopBackOff)`, not: []string{never, "not started again"}},
		"never, and the pod has failed": {change: func(pod *corev1.Pod) {
			pod.Spec.RestartPolicy, pod.Status.Phase = corev1.RestartPolicyNever, corev1.PodFailed
			pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: pod.Status.ContainerStatuses[0].LastTerminationState.Terminated}
		}, says: never},
		"pod is being deleted": {change: func(pod *corev1.Pod) { pod.DeletionTimestamp = pod.CreationTimestamp.DeepCopy() },
			says: `container "app" is not started again: the pod is being deleted`, not: []string{never}},
	} {
		t.Run(name, func(t *testing.T) {
			s, pod := kubelettest.New(t), kubelettest.NewPod()
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/x", SubPath: "key"}}
			point := s.Point(pod, "configmap", "app", 0)
			s.Bind(filepath.Join(s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": ""}), "key"), point)
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Failing("app", fmt.Sprintf(runcText, point))}
			if c.change != nil {
				c.change(pod)
			}
			result := diagnose(t, s, pod, nil)
			expectParts(t, result, c.says)
			for _, part := range append(c.not, "no such file", point) {
				if strings.Contains(result.NotApplicable, part) {
					t.Errorf("reason %q speaks of %q", result.NotApplicable, part)
				}
			}
			if len(result.Findings) != 0 {
				t.Errorf("findings = %+v, want none", result.Findings)
			}
		})
	}
}

func TestMissingSubPathOfHostPath(t *testing.T) {
	s, pod := kubelettest.New(t), kubelettest.NewPod()
	dir := filepath.Join(s.Root, "host")
	must(t, os.MkdirAll(filepath.Join(dir, "there"), 0o755))
	must(t, os.Symlink("/nowhere", filepath.Join(dir, "out")))
	pod.Spec.Volumes[len(pod.Spec.Volumes)-1].HostPath.Path = dir
	for _, subPath := range []string{"there", "gone/x", "out", "out/x", "moved"} {
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "host", MountPath: "/" + subPath, SubPath: subPath})
	}
	must(t, os.Mkdir(filepath.Join(dir, "moved"), 0o755))
	s.Bind(filepath.Join(dir, "moved"), s.Point(pod, "host", "app", 4))
	must(t, os.Rename(filepath.Join(dir, "moved"), filepath.Join(dir, "away")))
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{kubelettest.Failing("app", "CreateContainerConfigError: stat: no such file or directory")}
	result := diagnose(t, s, pod, nil)
	var got []string
	for _, f := range result.Findings {
		got = append(got, string(f.Code)+" "+f.Evidence[0])
	}
	want := []string{fmt.Sprintf("%s %q in %q is to be mounted at %q: nothing is there", fault.MissingBindSource, "gone/x", dir, "/gone/x")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func expectParts(t *testing.T, result processor.Result, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(result.NotApplicable, part) {
			t.Errorf("reason %q does not speak of %q", result.NotApplicable, part)
		}
	}
}
