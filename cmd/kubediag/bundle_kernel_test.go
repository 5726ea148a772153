// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// secret is the value of an environment variable of the pod.
const secret, variable = "do-not-show-this", "VARIABLE_OF_THE_APP"

// breakMore adds to the scenery a volume whose directory was deleted, and a hostPath that is not there. It returns the
// file of pods that shows the second.
func (s *scenery) breakMore(t *testing.T) (pods string) {
	t.Helper()
	pod := kubelettest.NewPod()
	mounts := &pod.Spec.Containers[0].VolumeMounts
	*mounts = append(*mounts, corev1.VolumeMount{Name: "configmap", MountPath: "/app.ini", SubPath: "app.ini"}) // that of s.stale
	point := s.Node.VolumePoint(kubelet.Volume{PodUID: string(pod.UID), Plugin: kubelet.CSIPlugin, Name: "replaced"})
	source := filepath.Join(t.TempDir(), "source")
	must(t, os.MkdirAll(source, 0o755))
	s.Stack(source, point)
	must(t, os.Remove(source))
	file, directory := corev1.HostPathFile, corev1.HostPathDirectory
	for name, kind := range map[string]*corev1.HostPathType{"none": &directory, "kind": &file} {
		at := filepath.Join(t.TempDir(), "none")
		if name == "kind" {
			at = s.Root
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: at, Type: kind}},
		})
		*mounts = append(*mounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: variable, Value: secret})
	pod.Annotations = map[string]string{"example.org/note": "x"}
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
		{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
		kubelettest.Running("sidecar"),
	}}
	pod.Kind, pod.APIVersion = "Pod", "v1"
	text, err := json.Marshal(pod)
	must(t, err)
	pods = filepath.Join(t.TempDir(), "pods.json")
	must(t, os.WriteFile(pods, text, 0o600))
	return pods
}

// entriesOf are the entries of a bundle.
func entriesOf(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	zip, err := gzip.NewReader(f)
	must(t, err)
	all := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		content, err := io.ReadAll(archive)
		must(t, err)
		all[header.Name] = string(content)
	}
}

// timeless reads a report, and takes out how long it took.
func timeless(t *testing.T, text string) map[string]any {
	t.Helper()
	var r map[string]any
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	delete(r["looked"].(map[string]any), "milliseconds")
	return r
}

// TestABundleReachesTheSameFindings makes a bundle of a node with a fault of each family, and scans from it where the
// node cannot be seen. The kubelet of another root is noted.
func TestABundleReachesTheSameFindings(t *testing.T) {
	s := newScenery(t)
	kerneltest.Start(t, "kubelet", "--root-dir="+t.TempDir(), "--container-runtime-endpoint=unix:///nowhere/s")
	pods := s.breakMore(t)
	log := filepath.Join(t.TempDir(), "kubelet.log")
	must(t, os.WriteFile(log, []byte("nothing of interest\nrbd: failed to unmap device /dev/rbd3, error exit status 16: Device or resource busy\n"), 0o600))
	file := filepath.Join(t.TempDir(), "ticket.tar.gz")
	root := "--kubelet-root=" + s.Root
	made := callers[0].run(t, s.program, "", "bundle", root, "--pods", pods, "--log", log, "-o", file)
	if made.status != 0 || !strings.Contains(made.out, "kubediag scan --from "+file) {
		t.Fatalf("bundle: %v", made)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("file %v, %v", st, err)
	}
	all := entriesOf(t, file)
	live := callers[0].run(t, s.program, "", "scan", "-o", "json", root, "--pods", pods)
	content, err := os.ReadFile(file)
	must(t, err)
	for _, c := range []caller{callers[0], callers[1], callers[5]} { // root, user 65534, and one without /proc
		from := c.run(t, s.program, string(content), "scan", "-o", "json", "--from", "-")
		if from.status != live.status {
			t.Errorf("%s: scan --from: %v, want status %d", c.name, from, live.status)
		}
		onNode := strings.ReplaceAll(all["scan.json"], " '"+root+"'", "") // a bundle's words are no part of a line to paste
		if diff := cmp.Diff(timeless(t, onNode), timeless(t, from.out)); diff != "" {
			t.Errorf("%s: report on the node, and from the bundle (-node +bundle):\n%s", c.name, diff)
		}
	}
	want := []fault.Code{
		fault.DeletedVolumeSource, fault.DisconnectedFUSE, fault.HeldDevice, fault.HungMount, fault.MissingBindSource, fault.SourceTypeMismatch,
		fault.StaleSubPath,
	}
	judgeBundle(t, s.program, string(content), live)
	if got := codesOf(t, all["scan.json"]); !slices.Equal(got, want) || !slices.Equal(codesOf(t, live.out), want) {
		t.Errorf("found %q in the bundle and %q on the node, want %q", got, codesOf(t, live.out), want)
	}
	for name, content := range all {
		for _, not := range []string{secret, variable, "example.org/note"} {
			if strings.Contains(content, not) {
				t.Errorf("entry %q has %q", name, not)
			}
		}
	}
	for name, want := range map[string]string{
		"mountinfo/kubelet.txt": "/volume-subpaths/configmap/app/0", "logs/kubelet.txt": "/dev/rbd3", "scan.txt": "HeldDevice", "features.json": "backends",
		"block.json": filepath.Base(s.device), "namespaces.json": fmt.Sprintf(`"pid": %d`, s.holder.PID), "pods.json": `"kind": "PodList"`,
	} {
		if !strings.Contains(all[name], want) {
			t.Errorf("entry %q does not have %q: %.300s", name, want, all[name])
		}
	}
	again := callers[0].run(t, s.program, "", "bundle", root, "-o", file)
	if now, err := os.ReadFile(file); again.status != 3 || err != nil || !bytes.Equal(now, content) {
		t.Errorf("a file that was there: %v, %v", again, err)
	}
	if forced := callers[0].run(t, s.program, "", "bundle", root, "--force", "--whole-pods", "--pods", pods, "-o", file); forced.status != 0 {
		t.Errorf("with --force: %v", forced)
	}
	if whole := entriesOf(t, file)["pods.json"]; !strings.Contains(whole, variable) || !strings.Contains(whole, "example.org/note") || strings.Contains(whole, secret) {
		t.Errorf("with --whole-pods: %s", whole)
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// judgeBundle has diagnose find the same in a bundle as scan on the node.
func judgeBundle(t *testing.T, program, content string, live *result) {
	t.Helper()
	judged := callers[1].run(t, program, content, "diagnose", "-o", "json", "--from", "-")
	var d v1.Diagnosis
	if err := json.Unmarshal([]byte(judged.out), &d); err != nil {
		t.Fatalf("diagnose --from: %v: %v", err, judged)
	}
	if judged.status != live.status || d.Status.Outcome != v1.OutcomeFaultFound {
		t.Errorf("diagnose --from: status %d, want %d: %s", judged.status, live.status, judged.out)
	}
	for _, code := range codesOf(t, live.out) {
		if !slices.ContainsFunc(d.Status.Faults, func(f v1.Fault) bool { return f.Code == string(code) }) {
			t.Errorf("diagnose --from has no %s: %s", code, judged.out)
		}
	}
}

// codesOf are the codes of a report's faults, each once.
func codesOf(t *testing.T, text string) (codes []fault.Code) {
	t.Helper()
	var r scanned
	must(t, json.Unmarshal([]byte(text), &r))
	for _, f := range r.Faults {
		codes = append(codes, f.Code)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}
