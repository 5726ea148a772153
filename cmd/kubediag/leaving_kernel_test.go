// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// leavingUID is the pod's that is being deleted.
const leavingUID = "2b1c6f0a-8c3d-4a57-9a0e-0123456789ab"

// leavingNode is a kubelet's root with one pod.
type leavingNode struct {
	root, pod string
	program   string
}

func newLeavingNode(t *testing.T) *leavingNode {
	t.Helper()
	root := filepath.Join(t.TempDir(), "k")
	n := &leavingNode{root, filepath.Join(root, "pods", leavingUID), program(t)}
	kerneltest.Must(t, os.MkdirAll(n.pod, 0o755))
	kerneltest.Must(t, sys.BindMount(root, root))
	t.Cleanup(func() { _ = systest.UnmountPath(root, true) })
	return n
}

// dir makes a directory of the pod.
func (n *leavingNode) dir(t *testing.T, name string) string {
	t.Helper()
	name = filepath.Join(n.pod, name)
	kerneltest.Must(t, os.MkdirAll(name, 0o755))
	return name
}

// tmpfs mounts one at a place of the pod.
func (n *leavingNode) tmpfs(t *testing.T, name string) string {
	t.Helper()
	at := n.dir(t, name)
	kerneltest.Must(t, sys.NewMount("tmpfs", at, "tmpfs", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(at, true) })
	return at
}

// bind binds a file of the pod to another place of it.
func (n *leavingNode) bind(t *testing.T, source, target string) {
	t.Helper()
	for _, name := range []string{source, target} {
		n.dir(t, filepath.Dir(name))
		kerneltest.Must(t, os.WriteFile(filepath.Join(n.pod, name), nil, 0o644))
	}
	at := filepath.Join(n.pod, target)
	kerneltest.Must(t, sys.BindMount(filepath.Join(n.pod, source), at))
	t.Cleanup(func() { _ = systest.UnmountPath(at, true) })
}

// record writes the kubelet's record of a CSI volume.
func (n *leavingNode) record(t *testing.T, volume string) {
	t.Helper()
	text := `{"attachmentID":"a","driverName":"csi.example.com","nodeName":"n1","specVolID":"pvc-1","volumeHandle":"h","volumeLifecycleMode":"Persistent"}`
	kerneltest.Must(t, os.WriteFile(filepath.Join(n.dir(t, volume), "vol_data.json"), []byte(text), 0o644))
}

// specs is a file with the pod, which was deleted so long ago.
func (n *leavingNode) specs(t *testing.T, ago time.Duration) string {
	t.Helper()
	pod := map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"namespace": "shop", "name": "web", "uid": leavingUID, "deletionTimestamp": time.Now().Add(-ago).UTC().Format(time.RFC3339),
			"deletionGracePeriodSeconds": 30,
		},
		"spec": map[string]any{"nodeName": "n1", "containers": []any{map[string]any{"name": "app"}}},
		"status": map[string]any{"phase": "Running", "containerStatuses": []any{map[string]any{"name": "app", "state": map[string]any{
			"terminated": map[string]any{"exitCode": 137, "reason": "Error", "finishedAt": time.Now().Add(-ago).UTC().Format(time.RFC3339)},
		}}}},
	}
	text, err := json.Marshal(pod)
	kerneltest.Must(t, err)
	file := filepath.Join(t.TempDir(), "pods.json")
	kerneltest.Must(t, os.WriteFile(file, text, 0o644))
	return file
}

// leavingDoors are the verbs that speak of a pod which is being deleted.
var leavingDoors = map[string][]string{
	"scan": {"scan"}, "evidence": {"scan", "-v"}, "brief": {"scan", "--brief"}, "of the pod": {"scan", "--pod=shop/web"},
	"Diagnosis of the pod": {"diagnose", "--pod=shop/web"}, "Diagnosis of the node": {"diagnose"},
}

// ask has front doors look at the node.
func (n *leavingNode) ask(t *testing.T, ago time.Duration, doors ...string) map[string]*result {
	t.Helper()
	pods, all := n.specs(t, ago), map[string]*result{}
	for _, name := range doors {
		all[name] = callers[0].run(t, n.program, "", append(slices.Clone(leavingDoors[name]), "--kubelet-root="+n.root, "--pods="+pods)...)
	}
	return all
}

// TestPodsThatDoNotGo have something mounted or left, though nothing of them is broken: each front door names it, and none
// calls it clean.
func TestPodsThatDoNotGo(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, n *leavingNode)
		want    []string
	}{
		"a bind inside an emptyDir": {func(t *testing.T, n *leavingNode) {
			n.bind(t, "containers/app/5d0f", "volumes/kubernetes.io~empty-dir/w/dev/termination-log")
		}, []string{"kubernetes.io~empty-dir/w/dev/termination-log", "containers/app/5d0f"}},
		"a volume without its record": {func(t *testing.T, n *leavingNode) {
			n.tmpfs(t, "volumes/kubernetes.io~csi/pvc-1/mount")
		}, []string{"kubernetes.io~csi/pvc-1/mount", "vol_data.json", "is missing"}},
		"a record, and nothing mounted": {func(t *testing.T, n *leavingNode) {
			n.dir(t, "volumes/kubernetes.io~csi/pvc-1/mount")
			n.record(t, "volumes/kubernetes.io~csi/pvc-1")
		}, []string{`volume "pvc-1"`, "with nothing mounted", "csi.example.com"}},
		"a tmpfs below a later mount": {func(t *testing.T, n *leavingNode) {
			n.tmpfs(t, "volumes/kubernetes.io~empty-dir/m")
			kerneltest.Must(t, sys.BindMount(n.root, n.root))
			t.Cleanup(func() { _ = systest.UnmountPath(n.root, true) })
		}, []string{`of type "tmpfs"`, "kubernetes.io~empty-dir/m", "hidden by mount"}},
		"a file that is open": {func(t *testing.T, n *leavingNode) {
			at := n.tmpfs(t, "volumes/kubernetes.io~empty-dir/m")
			file, err := os.Create(filepath.Join(at, "open"))
			kerneltest.Must(t, err)
			t.Cleanup(func() { file.Close() })
		}, []string{`of type "tmpfs"`, "kubernetes.io~empty-dir/m", "the target is busy", "a file there open"}},
		"a subPath bind": {func(t *testing.T, n *leavingNode) {
			n.bind(t, "volumes/kubernetes.io~configmap/cfg/key", "volume-subpaths/cfg/app/0")
		}, []string{"volume-subpaths/cfg/app/0"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLeavingNode(t)
			tc.prepare(t, n)
			for door, r := range n.ask(t, time.Hour, slices.Collect(maps.Keys(leavingDoors))...) {
				if r.status != 1 || strings.Contains(r.out, "✓") || !strings.Contains(r.out, string(fault.StuckTermination)) {
					t.Errorf("%s: %s, want status 1 and the fault", door, r)
				}
				if door != "evidence" {
					continue
				}
				for _, part := range append(tc.want, "being deleted") {
					if text := strings.Join(strings.Fields(r.out), " "); !strings.Contains(text, part) {
						t.Errorf("%s: %s\nwant %q", door, text, part)
					}
				}
			}
			for door, r := range n.ask(t, 0, "scan", "Diagnosis of the pod") { // in time
				if r.status != 0 {
					t.Errorf("%s, at once: %s, want status 0", door, r)
				}
			}
		})
	}
}

// TestPodThatRunsOn: as long as a process is in the pod's control group, the kubelet is not late.
func TestPodThatRunsOn(t *testing.T) {
	n := newLeavingNode(t)
	n.tmpfs(t, "volumes/kubernetes.io~empty-dir/m")
	group := kerneltest.ControlGroup(t, "kubepods-pod"+strings.ReplaceAll(leavingUID, "-", "_")+".slice")
	app := sleeper(t)
	kerneltest.JoinControlGroup(t, group, app.Pid)
	asked := n.ask(t, time.Hour, "scan", "Diagnosis of the pod")
	for door, r := range asked {
		if r.status != 0 {
			t.Errorf("%s: %s, want status 0", door, r)
		}
	}
	r := asked["Diagnosis of the pod"]
	if want := fmt.Sprintf("it still runs: process %d,", app.Pid); !strings.Contains(strings.Join(strings.Fields(r.out), " "), want) {
		t.Errorf("Diagnosis: %s, want %q", r, want)
	}
	kerneltest.Must(t, app.Kill())
	_, _ = app.Wait()
	kerneltest.AwaitEmpty(t, group)
	for door, r := range n.ask(t, time.Hour, "scan", "Diagnosis of the pod") {
		if r.status != 1 || !strings.Contains(r.out, string(fault.StuckTermination)) {
			t.Errorf("%s, after its end: %s, want status 1 and the fault", door, r)
		}
	}
}

// sleeper is a process that does nothing.
func sleeper(t *testing.T) *os.Process {
	t.Helper()
	p, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{})
	kerneltest.Must(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	return p
}
