// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/program"
)

// stackedMounts is how many mounts lie at one place.
const stackedMounts = 3000

// csiVolume makes the place of a CSI volume of the pod, with its record.
func csiVolume(t testing.TB, s *kubelettest.Scene, pod *corev1.Pod) string {
	t.Helper()
	point := s.Node.VolumePoint(kubelet.Volume{PodUID: string(pod.UID), Plugin: kubelet.CSIPlugin, Name: "pvc-stacked"})
	must(t, os.MkdirAll(point, 0o755))
	record, err := json.Marshal(map[string]string{"driverName": "test.csi", "volumeHandle": "one", "specVolID": "pvc-stacked"})
	must(t, err)
	must(t, os.WriteFile(kubelet.VolumeRecordPath(point), record, 0o600))
	return point
}

// stackedScenes make many mounts at one place of the first pod.
var stackedScenes = map[string]func(t testing.TB, s *kubelettest.Scene, pod *corev1.Pod){
	"file systems at a volume": func(t testing.TB, s *kubelettest.Scene, pod *corev1.Pod) {
		point := csiVolume(t, s, pod)
		for range kerneltest.Fewer(stackedMounts) {
			must(t, mount.Tmpfs(point, 1<<20))
		}
	},
	"binds of the kubelet's disk at a volume": func(t testing.TB, s *kubelettest.Scene, pod *corev1.Pod) {
		point := csiVolume(t, s, pod)
		for range kerneltest.Fewer(stackedMounts) {
			s.Stack(s.Node.PodsDir(), point)
		}
	},
	"binds at a subPath": func(_ testing.TB, s *kubelettest.Scene, pod *corev1.Pod) {
		source := filepath.Join(s.Volume(pod, kubelettest.ConfigMap, "configmap"), "app.ini")
		for range kerneltest.Fewer(stackedMounts) {
			s.Stack(source, s.Point(pod, "configmap", "app", 0))
		}
	},
	"a stale bind on others at a subPath": func(t testing.TB, s *kubelettest.Scene, pod *corev1.Pod) {
		source, point := filepath.Join(s.Volume(pod, kubelettest.ConfigMap, "configmap"), "app.ini"), s.Point(pod, "configmap", "app", 0)
		other := filepath.Join(s.Root, "other")
		must(t, os.WriteFile(other, nil, 0o600))
		must(t, systest.UnmountPath(point, false)) // else the source would be a place of mounts, and could not be removed
		for range kerneltest.Fewer(stackedMounts) {
			s.Stack(other, point)
		}
		s.Stack(source, point)
		updateConfigMap(s, pod)
	},
	"binds of a dead file system at a volume": func(t testing.TB, s *kubelettest.Scene, pod *corev1.Pod) {
		point, source := csiVolume(t, s, pod), t.TempDir()
		server := kerneltest.FUSE(t, source)
		for range kerneltest.Fewer(stackedMounts) {
			must(t, mount.Bind(source, point))
		}
		server.Kill()
	},
	"file systems at a volume that another mount hides": func(t testing.TB, s *kubelettest.Scene, pod *corev1.Pod) {
		point := csiVolume(t, s, pod)
		for range kerneltest.Fewer(stackedMounts) {
			must(t, mount.Tmpfs(point, 1<<20))
		}
		must(t, mount.Tmpfs(filepath.Dir(point), 1<<20))
	},
}

// TestScanReadsTheMountTableFewTimes has many mounts lie at one place. The kernel walks down the whole stack for each of them, at
// each read of the table, so a scan reads it four times at most: once for all searches, once for the pass over all namespaces, and
// without statmount after each of two rounds of questions. A recovery reads it as often for its plan. The rest of the node is judged.
func TestScanReadsTheMountTableFewTimes(t *testing.T) {
	for name, stack := range stackedScenes {
		t.Run(name, func(t *testing.T) {
			s, pods := newStage(t, 3, 1)
			stack(t, s, pods[0])
			updateConfigMap(s, pods[2])
			specs, place := podList(t, pods...), s.Point(pods[2], "configmap", "app", 0)
			for _, given := range []string{"no", "all"} {
				args, stdin := []string{"--kubelet-root", s.Root}, []byte(nil)
				if given == "all" {
					args, stdin = append(args, "--pods", "-"), specs
				}
				host, err := mountns.Self()
				must(t, err)
				reads, stop := mountns.CountReads(host)
				r, err := scanJSON(t, stdin, args...)
				stop()
				if n := reads(); n == 0 || n > 4 {
					t.Errorf("%s specs: the table was read %d times, want 1 to 4", given, n)
				}
				if !slices.ContainsFunc(r.Faults, func(f scanFault) bool { return f.Code == fault.StaleSubPath && f.Mount.Point == place }) {
					t.Errorf("%s specs: %v, faults %+v, want that of the other pod", given, err, r.Faults)
				}
			}
			cmd := NewRecoverCommand("")
			cmd.SetIn(bytes.NewReader(specs))
			host, err := mountns.Self()
			must(t, err)
			reads, stop := mountns.CountReads(host)
			out, err := verbtest.Run(t, cmd, "--kubelet-root", s.Root, "--pods", "-", "--dry-run")
			stop()
			if n := reads(); n == 0 || n > 8 {
				t.Errorf("recover: the table was read %d times, want 1 to 8", n)
			}
			if !strings.Contains(out, "would replace "+place+" ") {
				t.Errorf("recover: %v, prints %s, want a plan for the other pod", err, out)
			}
		})
	}
}

// BenchmarkScanOfStackedMounts compares the processor time of a scan with that of a scan of as many mounts side by side. It fails above
// twice that, and four reads of the mount table.
func BenchmarkScanOfStackedMounts(b *testing.B) {
	const mounts = 8192
	program := program.Build(b, "cmd/kubediag")
	run := func(b *testing.B, name string, args ...string) (spent time.Duration) {
		for b.Loop() {
			cmd := exec.Command(name, args...)
			if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() > 1 { // a stack is a fault
				b.Fatalf("%v, %s", err, out)
			}
			spent += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
		b.ReportMetric(0, "ns/op") // others want the processors, too
		spent /= time.Duration(b.N)
		b.ReportMetric(float64(spent.Microseconds())/1000, "ms")
		return spent
	}
	var flat, read time.Duration
	for _, name := range []string{"side by side", "stacked"} {
		s, pods := newStage(b, 1, 1)
		point := csiVolume(b, s, pods[0])
		for i := range mounts {
			if name != "stacked" && i > 0 {
				point = filepath.Join(s.Root, "other", strconv.Itoa(i))
				must(b, os.MkdirAll(point, 0o755))
			}
			must(b, mount.Tmpfs(point, 1<<20))
		}
		b.Run("table "+name, func(b *testing.B) { read = run(b, "cat", "/proc/self/mountinfo") })
		b.Run(name, func(b *testing.B) {
			spent := run(b, program, "scan", "--kubelet-root", s.Root)
			if name != "stacked" {
				flat = spent
				return
			}
			b.ReportMetric(float64(spent)/float64(flat), "x-side-by-side")
			without := float64(spent-4*read) / float64(flat)
			b.ReportMetric(without, "x-side-by-side-without-4-reads")
			if without > 2 {
				b.Errorf("without four reads of the table it takes %.1f times as long as one of mounts side by side, want 2 at most", without)
			}
		})
		must(b, systest.UnmountPath(filepath.Dir(s.Root), true))
	}
}
