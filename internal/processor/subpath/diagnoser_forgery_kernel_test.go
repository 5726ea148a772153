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
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
)

// forgedPods is a pod with a bind for each of its two containers, of which the second is stale, and a neighbour with
// the same.
type forgedPods struct {
	*kubelettest.Scene
	pod, neighbour *corev1.Pod
	point          string // the stale bind of the pod
	healthy, stale string // the neighbour's binds
}

func newForgedPods(t *testing.T) *forgedPods {
	t.Helper()
	s := &forgedPods{Scene: kubelettest.New(t), pod: kubelettest.NewPod(), neighbour: kubelettest.NewPod()}
	s.neighbour.UID, s.neighbour.Name = "c0ffee00-0000-4000-8000-000000000001", "neighbour"
	for _, pod := range []*corev1.Pod{s.pod, s.neighbour} {
		version := s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "", "lost": ""})
		s.Bind(filepath.Join(version, "key"), s.Point(pod, "configmap", "app", 0))
		s.Bind(filepath.Join(version, "lost"), s.Point(pod, "configmap", "sidecar", 0))
		must(t, os.Remove(filepath.Join(version, "lost")))
		must(t, os.WriteFile(filepath.Join(version, "lost"), nil, 0o644))
	}
	s.pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/x", SubPath: "key"}}
	s.pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/x", SubPath: "lost"}}
	s.point = s.Point(s.pod, "configmap", "sidecar", 0)
	s.healthy, s.stale = s.Point(s.neighbour, "configmap", "app", 0), s.Point(s.neighbour, "configmap", "sidecar", 0)
	return s
}

// runDiagnoser runs the diagnoser with these values.
func (s *forgedPods) runDiagnoser(t *testing.T, values map[string]string) (processor.Result, error) {
	t.Helper()
	pods := &kubelettest.Pods{}
	pods.Set(s.pod)
	r := processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: s.pod.Namespace, Name: s.pod.Name}, Values: values}
	return (&Diagnoser{Pods: pods, Kubelet: s.Node}).Run(t.Context(), r)
}

// runOnRepairable is ask where the pod is one that can be looked at. It holds that what is said is short, printable and
// silent about the neighbour.
func (s *forgedPods) runOnRepairable(t *testing.T, values map[string]string) processor.Result {
	t.Helper()
	result, err := s.runDiagnoser(t, values)
	must(t, err)
	for _, f := range result.Findings {
		for _, line := range f.Evidence {
			speakable(t, line)
		}
	}
	speakable(t, result.NotApplicable)
	if text := fmt.Sprintf("%+v", result); strings.Contains(text, string(s.neighbour.UID)) {
		t.Errorf("the result speaks of the neighbour: %s", text)
	}
	return result
}

func speakable(t *testing.T, text string) {
	t.Helper()
	if len(text) > 8192 || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("text of %d bytes: %.200q", len(text), text)
	}
}

// mountLines are the lines of mountinfo of the scene's mounts, here and in the namespaces of processes.
func (s *forgedPods) mountLines(t *testing.T, pids ...int) []string {
	t.Helper()
	var lines []string
	for _, pid := range append(pids, 0) {
		table, err := mountns.Table(pid)
		must(t, err)
		for _, m := range table.Mounts() {
			if mountinfo.Within(filepath.Dir(s.Root), m.Point) {
				lines = append(lines, fmt.Sprintf("%d: %+v", pid, m))
			}
		}
	}
	return lines
}

// expectUnchanged runs what must not change a mount, neither here nor in a container that has copies of them all.
func (s *forgedPods) expectUnchanged(t *testing.T, fn func()) {
	t.Helper()
	// The process that serves FUSE does for a container: it has a mount of its own, in a namespace of its own.
	container := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{}), "fuse", s.Root)
	before := s.mountLines(t, container.PID)
	if len(before) < 10 {
		t.Fatalf("only %d mounts to be touched", len(before))
	}
	fn()
	if diff := cmp.Diff(before, s.mountLines(t, container.PID)); diff != "" {
		t.Errorf("mounts changed:\n%s", diff)
	}
}

// falseMessages are texts that want something else to be blamed.
func (s *forgedPods) falseMessages() map[string]string {
	lies := map[string]string{
		"newlines":  "mounting volume-subpaths: no such file or directory\n1 1 1:1 /x//deleted " + s.healthy + " rw - ext4 /dev/vda rw\n",
		"NULs":      "mounting \"" + s.healthy + "\x00//deleted\" volume-subpaths to rootfs\x00: no such file or directory",
		"1 MiB":     "mounting volume-subpaths " + strings.Repeat(s.healthy+"//deleted ", 1<<20/len(s.healthy)) + noEntry,
		"not UTF-8": "mounting \"" + s.healthy + "\xff\xfe//deleted \" volume-subpaths" + noEntry,
	}
	for what, target := range map[string]string{
		"another pod's healthy bind": s.healthy, "another pod's stale bind": s.stale, "a mark": s.healthy + "//deleted",
		"the root": "/", "the mark alone": "//deleted", "through process 1": "/proc/1/root" + s.healthy, "an option": "-a",
		"a long option": "--all-targets", "an option with a value": "-o",
	} {
		lies[what] = target
		lies[what+" by runc of 2018"] = `rootfs_linux.go:58: mounting \\\"` + target + `\\\" to rootfs \\\"/r\\\" at ` +
			`\\\"/r/volume-subpaths\\\" caused \\\"no such file or directory\\\"`
		lies[what+" by runc"] = `error mounting "` + target + `" to rootfs at "/x": mount src=` + target +
			`, dst=/x, dstFd=/proc/thread-self/fd/11, flags=MS_BIND|MS_REC` + noEntry
		lies[what+" of the other kind"] = `error mounting "` + target + `" to rootfs at "/y": not a directory`
		lies[what+" by crun"] = "mount `" + target + "` to `volume-subpaths`: No such file or directory"
		lies[what+" by CRI-O"] = "container create failed: mount `" + target + "` to `/x`: No such file or directory"
		lies[what+" by the kubelet"] = `failed to prepare subPath for volumeMount "x" of container "app": lstat ` + target + noEntry
	}
	return lies
}

// TestForgedTextsDecideNothing has the same lie in every message of the status, every value and every label.
func TestForgedTextsDecideNothing(t *testing.T) {
	for name, stale := range map[string]bool{"of a pod with a stale bind": true, "of a healthy pod": false} {
		t.Run(name, func(t *testing.T) {
			s := newForgedPods(t)
			if !stale {
				s.pod.Spec.Containers[1].VolumeMounts = nil
			}
			s.expectUnchanged(t, func() {
				s.setMessage("")
				truth := s.runOnRepairable(t, nil)
				if stale != (truth.Values[keyDestinationPath] == s.point) || stale != (truth.NotApplicable == "") {
					t.Fatalf("the truth is %+v", truth)
				}
				for what, lie := range s.falseMessages() {
					s.setMessage(lie)
					result := s.runOnRepairable(t, valueForEveryKey(lie))
					if !stale { // reasons say what messages point at; what comes first is what was seen
						truth.NotApplicable, _, _ = strings.Cut(truth.NotApplicable, ";")
						result.NotApplicable, _, _ = strings.Cut(result.NotApplicable, ";")
					}
					if diff := cmp.Diff(truth, result); diff != "" {
						t.Errorf("result with the lie %q (-truth +got):\n%s", what, diff)
					}
				}
			})
		})
	}
}

// setMessage has the message in state.waiting, lastState.terminated and state.terminated, and wherever else a pod has
// room.
func (s *forgedPods) setMessage(message string) {
	app, sidecar := kubelettest.Failing("app", message), kubelettest.Failing("sidecar", message)
	app.State.Waiting.Message = message
	sidecar.State = corev1.ContainerState{Terminated: sidecar.LastTerminationState.Terminated.DeepCopy()}
	s.pod.Status.ContainerStatuses = []corev1.ContainerStatus{app, sidecar}
	s.pod.Status.Message, s.pod.Status.Reason = message, message
	s.pod.Labels, s.pod.Annotations = map[string]string{"mount": message}, map[string]string{"mount": message}
}

// valueForEveryKey has a lie for every parameter and every result that there is.
func valueForEveryKey(lie string) map[string]string {
	values := map[string]string{}
	for _, key := range []string{
		keyDiagnoserResult, keyBugLink, keySourcePath, keySourcePaths, keyDestinationPath, keyDestinationPaths,
		"recover.kubernetes.subpath_remount.result", "recover.kubernetes.subpath_remount.results",
		"recover.kubernetes.subpath_remount.running_after_seconds", "target", "pod.uid",
		"param.recover.kubernetes.subpath_remount.bring_forward", "param.recover.kubernetes.subpath_remount.wait_seconds",
		"param.diagnoser.kubernetes.subpath_remount.target", "collector.system.mountinfo", "collector.kubernetes.pod.detail",
		processor.KeyPodNamespace, processor.KeyPodName, processor.KeyContainer, processor.KeyNode, processor.KeyDiagnosisUID,
	} {
		values[key] = lie
		if strings.HasSuffix(key, "paths") || strings.HasSuffix(key, "results") {
			values[key] = fmt.Sprintf("[%q]", lie)
		}
	}
	return values
}

// TestDiagnosesConfusingPods: only the pod's UID, and the whole of its spec, say which binds are its own.
func TestDiagnosesConfusingPods(t *testing.T) {
	uid := func(of func(s *forgedPods) string) func(s *forgedPods) bool {
		return func(s *forgedPods) bool {
			s.pod.UID = types.UID(of(s))
			return false
		}
	}
	for name, change := range map[string]func(s *forgedPods) (found bool){
		"another's UID for a name": func(s *forgedPods) bool {
			s.pod.Name = string(s.neighbour.UID)
			return true
		},
		"the mirror of a static pod, with another's directory": func(s *forgedPods) bool {
			uid := string(s.neighbour.UID)
			s.pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: uid, "kubernetes.io/config.hash": uid}
			return false
		},
		"names of volume and container swapped": func(s *forgedPods) bool {
			s.pod.Spec.Volumes[0].Name = "sidecar"
			mounts := []corev1.VolumeMount{{Name: "sidecar", MountPath: "/x", SubPath: "lost"}}
			s.pod.Spec.Containers = []corev1.Container{{Name: "configmap", VolumeMounts: mounts}}
			return false
		},
		"another volume at the same index": func(s *forgedPods) bool {
			s.pod.Spec.Containers[1].VolumeMounts[0].Name = "secret"
			return false
		},
		"another index": func(s *forgedPods) bool {
			c := &s.pod.Spec.Containers[1]
			c.VolumeMounts = append([]corev1.VolumeMount{{Name: "configmap", MountPath: "/y"}}, c.VolumeMounts...)
			return false
		},
		"another's UID and not its spec": func(s *forgedPods) bool {
			s.pod.UID, s.pod.Spec.Containers[1].VolumeMounts[0].SubPath = s.neighbour.UID, ""
			return false
		},
		"a UID that climbs":        uid(func(s *forgedPods) string { return "../" + string(s.neighbour.UID) }),
		"a UID that leads on":      uid(func(s *forgedPods) string { return "x/../" + string(s.neighbour.UID) }),
		"a UID with a slash":       uid(func(s *forgedPods) string { return string(s.neighbour.UID) + "/" }),
		"a UID that is the parent": uid(func(*forgedPods) string { return ".." }),
		"a UID that is the same":   uid(func(*forgedPods) string { return "." }),
	} {
		t.Run(name, func(t *testing.T) {
			s := newForgedPods(t)
			found := change(s)
			s.expectUnchanged(t, func() {
				result, err := s.runDiagnoser(t, nil)
				right := err != nil || result.NotApplicable != "" && len(result.Values) == 0
				if found {
					right = err == nil && result.Values[keyDestinationPath] == s.point
				}
				if !right {
					t.Errorf("result %+v, error %v, want the stale bind found: %v", result, err, found)
				}
				for _, f := range result.Findings {
					if f.Code == fault.StaleSubPath && f.Mount.Point != s.point {
						t.Errorf("finding %+v", f)
					}
				}
			})
		})
	}
}

// TestDiagnosesNamesThatLookDeleted has sources whose names look like the kernel's mark, all alive, and then removes
// one by one.
func TestDiagnosesNamesThatLookDeleted(t *testing.T) {
	s := newForgedPods(t)
	s.pod.Spec.Containers[1].VolumeMounts = nil
	names := []string{
		"deleted", "x (deleted)", "x/deleted", "y//deleted", "d/deleted/deleted", `z\057\057deleted`, `\040//deleted`,
		"line\n1 1 0:1 /x//deleted /y rw - tmpfs tmpfs rw",
	}
	app := &s.pod.Spec.Containers[0]
	volume := s.Volume(s.pod, kubelettest.EmptyDir, "empty")
	for i, name := range names {
		app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{Name: "empty", MountPath: "/y", SubPath: name})
		must(t, os.MkdirAll(filepath.Join(volume, name), 0o755))
		s.Bind(filepath.Join(volume, name), s.Point(s.pod, "empty", "app", i+1))
	}
	result, err := s.runDiagnoser(t, nil)
	if err != nil || result.NotApplicable == "" || len(result.Findings) != 0 {
		t.Fatalf("result %+v, %v, want all alive", result, err)
	}
	var want []string
	for i, name := range names {
		must(t, os.Remove(filepath.Join(volume, name)))
		want = append(want, s.Point(s.pod, "empty", "app", i+1))
		result, err = s.runDiagnoser(t, nil)
		must(t, err)
		var got []string
		must(t, json.Unmarshal([]byte(result.Values[keyDestinationPaths]), &got))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("destinations after %q was removed (-want +got):\n%s", name, diff)
		}
	}
}

// TestDiagnosisFollowsNoPlantedLinks has a container put links into its volume that lead out of it, to files that are
// not those that are bound, and to a file system that never answers.
func TestDiagnosisFollowsNoPlantedLinks(t *testing.T) {
	for where, c := range map[string]struct{ subPath, link string }{
		"the subPath": {"sub", "sub"}, "a parent": {"parent/sub", "parent"}, "..data": {"..data/sub", "..data"},
	} {
		t.Run("for "+where, func(t *testing.T) {
			s := newForgedPods(t)
			s.pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "empty", MountPath: "/y", SubPath: c.subPath}}
			volume, theirs := s.Volume(s.pod, kubelettest.EmptyDir, "empty"), s.Volume(s.neighbour, kubelettest.EmptyDir, "empty")
			link, hanging := filepath.Join(volume, c.link), filepath.Join(s.Root, "hanging")
			for _, dir := range []string{volume + "/" + c.subPath, theirs + "/sub", volume + "/inside/sub", hanging} {
				must(t, os.MkdirAll(dir, 0o755))
			}
			s.Bind(filepath.Join(volume, c.subPath), s.Point(s.pod, "empty", "sidecar", 0))
			must(t, os.Rename(link, link+".bak"))
			fuse := kerneltest.FUSE(t, hanging)
			put := func(to string) {
				if err := os.Remove(link); !os.IsNotExist(err) {
					must(t, err)
				}
				must(t, os.Symlink(to, link))
			}
			near, err := filepath.Rel(filepath.Dir(link), theirs) // on the same mount
			must(t, err)
			s.expectUnchanged(t, func() {
				for _, to := range []string{
					"/", theirs, near, filepath.Dir(link) + "/" + near, strings.Repeat("../", 40) + theirs[1:], "/proc/self/root",
					"/proc/self/root" + theirs, "/proc/thread-self/cwd", filepath.Dir(s.healthy), c.link,
					hanging + "/hang", hanging + "/hang/x",
				} {
					put(to)
					late := time.AfterFunc(10*time.Second, fuse.Kill) // ends what waits for it
					result := s.runOnRepairable(t, nil)
					if !late.Stop() {
						t.Errorf("with a link to %q: it hung", to)
					}
					if len(result.Findings) != 0 || !strings.Contains(result.NotApplicable, "of these 2 have a source that is alive") {
						t.Errorf("with a link to %q: %+v, want the bind alive", to, result)
					}
				}
			})
			put("inside") // is followed: the subPath names another directory now
			if result := s.runOnRepairable(t, nil); result.Values[keyDestinationPath] != s.Point(s.pod, "empty", "sidecar", 0) {
				t.Errorf("with a link that stays inside: %+v, want the bind stale", result)
			}
		})
	}
}
