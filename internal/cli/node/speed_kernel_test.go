// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/program"
)

// fullNode is a node of 250 pods with 6 subPaths each, and 5,000 mounts in all.
const (
	fullNodePods     = 250
	fullNodeSubPaths = 6
	fullNodeMounts   = 5000
)

// newFullNode adds the mounts that a kubelet and a runtime have of such pods to those of their subPaths: tokens, disks in memory, and those
// that each container and sandbox has outside of the kubelet's root.
func newFullNode(b *testing.B) (*kubelettest.Scene, []*corev1.Pod) {
	b.Helper()
	s, pods := newStage(b, fullNodePods, fullNodeSubPaths)
	for _, pod := range pods {
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			corev1.Volume{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
			corev1.Volume{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}})
	}
	state := filepath.Join(filepath.Dir(s.Root), "containerd")
	left := fullNodeMounts - fullNodePods*fullNodeSubPaths
	for i := 0; left > 0; i++ {
		pod := pods[i%len(pods)]
		at := filepath.Join(state, string(pod.UID), fmt.Sprint(i))
		switch i / len(pods) {
		case 0:
			at = s.Volume(pod, kubelettest.Projected, "kube-api-access")
		case 1:
			at = s.Volume(pod, kubelettest.EmptyDir, "memory")
		}
		must(b, os.MkdirAll(at, 0o755))
		must(b, sys.NewMount("tmpfs", at, "tmpfs", "size=64k"))
		left--
	}
	return s, pods
}

// toolTimes are how long each tool took, and how long it computed, in milliseconds.
type toolTimes map[string]struct{ wall, computing []float64 }

// run runs a tool, whose output is not empty.
func (t toolTimes) run(b *testing.B, name string, command ...string) {
	b.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	start := time.Now()
	out, err := cmd.Output()
	took := time.Since(start)
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || !exit.Exited()) || len(out) == 0 {
		b.Fatalf("%s: %v, %d bytes", name, err, len(out))
	}
	entry := t[name]
	entry.wall = append(entry.wall, float64(took.Microseconds())/1000)
	entry.computing = append(entry.computing, float64((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()).Microseconds())/1000)
	t[name] = entry
}

func median(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }

// report reports the medians, and how many times longer each of some tools takes than holders.
func (t toolTimes) report(b *testing.B, others ...string) {
	for name, entry := range t {
		b.ReportMetric(median(entry.wall), "ms-"+name)
		b.ReportMetric(median(entry.computing), "ms-of-processor-"+name)
	}
	for _, name := range others {
		b.ReportMetric(median(t[name].wall)/median(t["holders"].wall), "x-"+name)
	}
}

// useMount has a process keep a file of a mount open, and returns the number of the process.
func useMount(b *testing.B, dir string) int {
	b.Helper()
	file, err := os.Create(filepath.Join(dir, "used"))
	must(b, err)
	user := exec.Command("sleep", "infinity")
	user.Stdout = file
	must(b, user.Start())
	must(b, file.Close())
	b.Cleanup(func() {
		_ = user.Process.Kill() // else it has ended
		_ = user.Wait()         // it was killed
	})
	return user.Process.Pid
}

// BenchmarkFullNode runs the program that ships, from its start to its end, on a full node where nothing is wrong: scan, auto on one pod none
// of whose volumes can hang, and holders of the volume of a pod of which a process has a file open. Beside it, by turns, are the commands of today:
// two only print the table, and two look for that process.
func BenchmarkFullNode(b *testing.B) {
	kubediag := program.Build(b, "cmd/kubediag")
	s, pods := newFullNode(b)
	specs := filepath.Join(b.TempDir(), "pods.json")
	must(b, os.WriteFile(specs, podList(b, pods...), 0o600))
	b.Setenv("XDG_RUNTIME_DIR", b.TempDir())
	if out, err := exec.Command(kubediag, "scan", "--kubelet-root", s.Root, "--pods", specs).CombinedOutput(); !strings.Contains(string(out), ": nothing broken") {
		b.Fatalf("%v\n%s", err, out)
	}
	used := s.Volume(pods[7], kubelettest.EmptyDir, "memory")
	user := fmt.Sprint(useMount(b, used))
	holders := []string{kubediag, "holders", "--kubelet-root", s.Root, used}
	if out, err := exec.Command(holders[0], holders[1:]...).CombinedOutput(); !strings.Contains(string(out), user) {
		b.Fatalf("%v, and %s is not in\n%s", err, user, out)
	}
	times := toolTimes{}
	for b.Loop() {
		times.run(b, "holders", holders...)
		times.run(b, "lsof", "lsof", "+f", "--", used)
		times.run(b, "fuser", "fuser", "-vm", used)
		times.run(b, "scan", kubediag, "scan", "--kubelet-root", s.Root)
		times.run(b, "scan-with-specs", kubediag, "scan", "--kubelet-root", s.Root, "--pods", specs)
		times.run(b, "auto", kubediag, "diagnose", "--kubelet-root", s.Root, "--pods", specs, "--pod", pods[7].Namespace+"/"+pods[7].Name)
		times.run(b, "start", kubediag, "version")
		times.run(b, "findmnt", "findmnt", "-n")
		times.run(b, "mount-grep", "sh", "-c", "mount | grep kube")
	}
	times.report(b, "lsof", "fuser")
}
