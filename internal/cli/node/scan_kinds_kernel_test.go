// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
)

// onlyFault scans a node whose one pod is as change makes it, and returns the one fault; empty: there is none.
func onlyFault(t *testing.T, s *kubelettest.Scene, pod *corev1.Pod) (code fault.Code, volume, evidence string) {
	t.Helper()
	must(t, os.MkdirAll(s.Node.PodDir(string(pod.UID)), 0o755))
	r, _ := scanJSON(t, podList(t, pod), "--kubelet-root", s.Root, "--pods", "-", "--only",
		"MissingBindSource,SourceTypeMismatch,StaleSubPath")
	switch len(r.Faults) {
	case 0:
		return "", "", ""
	case 1:
		return r.Faults[0].Code, r.Faults[0].Volume, strings.Join(r.Faults[0].Evidence, "\n")
	}
	t.Fatalf("%d faults, want one at most: %+v", len(r.Faults), r.Faults)
	return "", "", ""
}

// refusedAt is the status of a container that the runtime refused because of the source of the mount at that path.
func refusedAt(source, mountPath string) corev1.ContainerStatus {
	return kubelettest.Failing("app", fmt.Sprintf("failed to create shim task: OCI runtime create failed: runc create failed: unable to start container "+
		"process: error during container init: error mounting %q to rootfs at %q: create mountpoint for %s mount: not a directory: unknown: Are you trying "+
		"to mount a directory onto a file (or vice-versa)? Check if the specified host path exists and is the expected type", source, mountPath, mountPath))
}

// TestScanOfKinds has a container be refused because its hostPath is of another kind than the place for it in the image.
func TestScanOfKinds(t *testing.T) {
	for name, says := range map[string]string{"file": "is a file; the image may have a directory", "": "is a directory; the image may have a file"} {
		t.Run(says, func(t *testing.T) {
			s, pod := kubelettest.New(t), kubelettest.NewPod()
			source := filepath.Join(s.Root, "onhost", name)
			must(t, os.Mkdir(filepath.Join(s.Root, "onhost"), 0o755))
			if name != "" {
				must(t, os.WriteFile(source, nil, 0o600))
			}
			for i, v := range pod.Spec.Volumes {
				if v.HostPath != nil {
					pod.Spec.Volumes[i].HostPath.Path = source
				}
			}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/etc/x"}, {Name: "projected", MountPath: "/other"}}
			s.Volume(pod, "kubernetes.io~projected", "projected")
			pod.Status.ContainerStatuses[0] = refusedAt(source, "/etc/x")
			code, volume, evidence := onlyFault(t, s, pod)
			if code != fault.SourceTypeMismatch || volume != "host" || !strings.Contains(evidence, says) {
				t.Errorf("%s of %q: %s", code, volume, evidence)
			}
			for what, status := range map[string]corev1.ContainerStatus{
				"refused for another mount": refusedAt("/elsewhere", "/not/mounted"), "a container that runs": kubelettest.Running("app"),
			} {
				pod.Status.ContainerStatuses[0] = status
				if code, volume, _ = onlyFault(t, s, pod); code != "" {
					t.Errorf("%s: %s of %q", what, code, volume)
				}
			}
		})
	}
}

// TestScanOfHalfWrittenVolumes has a kubelet be stopped between the content of a volume and the links to it.
func TestScanOfHalfWrittenVolumes(t *testing.T) {
	for name, c := range map[string]struct {
		subPath   string
		running   bool
		directory bool
		change    func(t *testing.T, dir string)
		want      string
	}{
		"the volume":                          {want: `"key" is below "..data"`},
		"the volume of a container that runs": {running: true, want: `"key" is below "..data"`},
		"the entry":                           {subPath: "key", want: `"key" is below "..data"`},
		"another entry":                       {subPath: "other"},
		"a directory in the place":            {directory: true, want: "a directory is in its place"},
		"whole":                               {change: func(t *testing.T, dir string) { must(t, os.Symlink("..data/key", filepath.Join(dir, "key"))) }},
		"never written":                       {change: func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "..data"))) }},
	} {
		t.Run(name, func(t *testing.T) {
			s, pod := kubelettest.New(t), kubelettest.NewPod()
			s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "", "other": ""})
			dir := s.Volume(pod, kubelettest.ConfigMap, "configmap")
			must(t, os.Remove(filepath.Join(dir, "key")))
			if c.directory {
				must(t, os.Mkdir(filepath.Join(dir, "key"), 0o755))
			}
			if c.change != nil {
				c.change(t, dir)
			}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/etc/x", SubPath: c.subPath}}
			if !c.running {
				pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
					Reason: "CreateContainerConfigError", Message: `failed to prepare subPath for volumeMount "configmap" of container "app"`}}}
			}
			code, volume, evidence := onlyFault(t, s, pod)
			if c.want == "" && code != "" || c.want != "" && (code != fault.MissingBindSource || volume != "configmap" || !strings.Contains(evidence, c.want)) {
				t.Errorf("%s of %q, want %q: %s", code, volume, c.want, evidence)
			}
		})
	}
}

// TestScanOfTheKubeletsPathOfAClaim: without an API server it is not known that a path is that of a claim.
func TestScanOfTheKubeletsPathOfAClaim(t *testing.T) {
	s, pod := kubelettest.New(t), kubelettest.NewPod()
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/data", SubPath: "x"}}
	pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason: "CreateContainerConfigError", Message: "stat " + filepath.Join(t.TempDir(), "pv") + ": no such file or directory"}}}
	if code, _, evidence := onlyFault(t, s, pod); code != "" {
		t.Errorf("%q: %s, want no fault", code, evidence)
	}
}

// TestScanOfDeletedDirectories deletes the directories that volumes of several plugins are binds of, on a tmpfs. An emptyDir and a Secret are the
// kubelet's own.
func TestScanOfDeletedDirectories(t *testing.T) {
	for plugin, want := range map[string]fault.Code{
		"kubernetes.io/local-volume": fault.DeletedVolumeSource, "kubernetes.io/nfs": fault.DeletedVolumeSource,
		"example.com/flex": fault.DeletedVolumeSource, kubelettest.EmptyDir: "", kubelettest.Secret: "",
	} {
		t.Run(plugin, func(t *testing.T) {
			s, pod := kubelettest.New(t), kubelettest.NewPod()
			source := filepath.Join(s.Root, "onhost")
			must(t, os.Mkdir(source, 0o755))
			s.Bind(source, s.Volume(pod, plugin, "data"))
			scan := func() string {
				r, _ := scanJSON(t, nil, "--kubelet-root", s.Root)
				var codes []string
				for _, f := range r.Faults {
					codes = append(codes, string(f.Code)+" of "+f.Volume)
				}
				return strings.Join(codes, ", ")
			}
			if got := scan(); got != "" {
				t.Errorf("before: %s", got)
			}
			must(t, os.Remove(source))
			expected := ""
			if want != "" {
				expected = string(want) + " of data"
			}
			if got := scan(); got != expected {
				t.Errorf("got %q, want %q", got, expected)
			}
		})
	}
}
