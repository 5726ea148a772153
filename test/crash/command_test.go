// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/test/program"
)

// minBoundaries is how often the verb may be killed at least: before and after a begin, a plan, an action and its end, the proof and the end.
const minBoundaries = 12

// TestRecoverKilledAtEveryRecordEndsTheSame kills the verb before, and another time after, it writes its nth record, for every n, and
// has another one go on. A second unmount would take the new bind.
func TestRecoverKilledAtEveryRecordEndsTheSame(t *testing.T) {
	built := program.Build(t, "cmd/kubediag", "-trimpath", "-tags=grpcnotrace,crash")
	for n := 1; ; n++ {
		if !recoverKilledAt(t, built, n) { // it has fewer records than n
			t.Logf("the same end after a SIGKILL at each of %d boundaries", n-1)
			if n <= minBoundaries {
				t.Errorf("only %d boundaries were found", n-1)
			}
			return
		}
	}
}

// recoverKilledAt breaks a subPath, and repairs it by a program that is killed at boundary n, and then by another. It reports whether there
// is such a boundary.
func recoverKilledAt(t *testing.T, built string, n int) (killed bool) {
	t.Helper()
	scene, pod, dir := kubelettest.New(t), kubelettest.NewPod(), t.TempDir()
	app := &pod.Spec.Containers[0]
	app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{Name: "configmap", MountPath: "/x", SubPath: "key"})
	place := scene.Point(pod, "configmap", app.Name, 0)
	version := scene.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "one"})
	scene.Stack(filepath.Join(version, "key"), place)
	scene.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"key": "two"})
	stale, err := mount.Inspect(place)
	kerneltest.Must(t, err)
	text, err := json.Marshal(pod)
	kerneltest.Must(t, err)
	pods := filepath.Join(dir, "pods.json")
	kerneltest.Must(t, os.WriteFile(pods, text, 0o600))
	run := func(at int) (string, int) {
		cmd := exec.Command(built, "recover", "--yes", "--kubelet-root="+scene.Root, "--pods="+pods, "--data-root="+filepath.Join(dir, "data"))
		cmd.Env = append(os.Environ(), fmt.Sprint("KUBEDIAG_CRASH_AT=", at))
		out, err := cmd.CombinedOutput()
		if err != nil {
			if _, ended := errors.AsType[*exec.ExitError](err); !ended {
				t.Fatal(err)
			}
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, status := run(n)
	if killed = status == -1; killed {
		out, status = run(0)
	}
	if status != 0 {
		t.Fatalf("boundary %d: status %d: %s", n, status, out)
	}
	if got, err := os.ReadFile(place); err != nil || string(got) != "two" {
		t.Errorf("boundary %d: the bind has %q, %v\n%s", n, got, err, out)
	}
	table, err := scene.Node.Mounts(t.Context())
	kerneltest.Must(t, err)
	var left []int // the ids of the mounts at the place
	for _, m := range table.Mounts() {
		if m.Point == place {
			left = append(left, m.ID)
		}
	}
	if len(left) != 1 || left[0] == stale.ID.MountInfoID {
		t.Errorf("boundary %d: the mounts %v are at the place, want another one than the stale %d\n%s", n, left, stale.ID.MountInfoID, out)
	}
	return killed
}
