// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/csi"
	"kubediag.org/kubediag/test/install"
	"kubediag.org/kubediag/test/program"
)

// TestNewerVolumes has pods with volumes and mounts that old kubelets and runtimes lack: a user namespace of the pod's own, volumes of images, and
// mounts that are read-only with all mounts below them. They are healthy, and kept as they are. When the daemon of a volume ends, the volume of
// the pod with users of its own is replaced on the node alone. Its containers keep their dead mounts until they are restarted, as the refusal
// says. The read-only mount of the other pod is replaced in the running container, and is read-only then.
func TestNewerVolumes(t *testing.T) {
	t.Parallel()
	kerneltest.Needs(t, sys.HasNamespaceWalk) // the same version allows mapped owners on FUSE
	n := startNewer(t, cluster.Options{Kubelet: cluster.Kubernetes137, Containerd: cluster.Containerd2})
	n.checkHealthy(t, "at-first")
	n.driver.KillDaemon(t, volumeName)
	n.checkReaders(t, notConnected, notConnected)
	n.driver.Restart(t)
	n.checkDead(t, n.mounted(&n.pods[0]))
	n.healNode(t)
	n.refuseContainers(t)
	n.restartContainers(t)
	n.healReadOnly(t)
	n.checkHealthy(t, "in-the-end")
}

// newerPods are a pod with users of its own, and another one with a volume of an image and mounts that are read-only with all below them.
type newerPods struct {
	*cephVolume
	other corev1.Pod
	kept  []mountLine // of the container of the other pod, but for that of the volume
}

// newerPod has the arguments volume and directory of the node, in which a file system is mounted.
const newerPod = `
apiVersion: v1
kind: Pod
metadata: {name: newer, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: ` + install.Busybox + `
    imagePullPolicy: Never
    command: [sleep, "2147483647"]
    volumeMounts:
    - {name: data, mountPath: /data, readOnly: true, recursiveReadOnly: Enabled}
    - {name: tree, mountPath: /tree, readOnly: true, recursiveReadOnly: Enabled}
    - {name: image, mountPath: /image}
    - {name: image, mountPath: /part, subPath: etc}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: %[1]s}}
  - {name: tree, hostPath: {path: %[2]s, type: Directory}}
  - {name: image, image: {reference: "` + install.Busybox + `", pullPolicy: Never}}
`

func startNewer(t *testing.T, o cluster.Options) *newerPods {
	t.Helper()
	data, tree := t.TempDir(), t.TempDir()
	below := filepath.Join(tree, "below")
	must(t, errors.Join(fillVolume(data), os.Mkdir(below, 0o755), unix.Mount("below", below, "tmpfs", 0, "size=1m")))
	t.Cleanup(func() { must(t, unix.Unmount(below, unix.MNT_DETACH)) })
	n := &newerPods{cephVolume: &cephVolume{env: start(t, o)}}
	n.driver = csi.Install(t, n.Env, program.Build(t, "test/csi/mapped"), data, "{}")
	n.driver.AddVolume(t, volumeName, "")
	readers := readersOf("readers", volumeName, 1)
	readers.OwnUsers = true
	n.pods = n.driver.Start(t, readers)
	n.checkReaders(t, "whole", "part")
	n.Kubectl(t, fmt.Sprintf(newerPod, volumeName, tree), "apply", "-f", "-")
	n.Wait(t, "the pod with a volume of an image to run", func(ctx context.Context) bool {
		return n.Get(ctx, client.ObjectKey{Namespace: "default", Name: "newer"}, &n.other) == nil && running(&n.other)
	})
	n.kept = n.otherMounts(t)
	return n
}

// exec runs a line of sh in the container of the other pod, and returns its output.
func (n *newerPods) exec(t *testing.T, line string) string {
	t.Helper()
	return n.Kubectl(t, "", "exec", "-n", "default", n.other.Name, "--", "sh", "-c", line+" 2>&1; true")
}

// otherMounts are the mounts of the container of the other pod, but for that of the volume.
func (n *newerPods) otherMounts(t *testing.T) (table []mountLine) {
	t.Helper()
	for line := range strings.Lines(n.exec(t, "cat /proc/1/mountinfo")) {
		if words := strings.Fields(line); words[4] != "/data" {
			table = append(table, mountLine{words[2], words[4], line})
		}
	}
	return table
}

// checkHealthy shows that the pods have the volumes that they ask for, and that neither a scan of the node, nor the agent, nor a Diagnosis of one
// of them finds anything.
func (n *newerPods) checkHealthy(t *testing.T, when string) {
	t.Helper()
	n.checkReaders(t, "whole", "part")
	ids := n.Kubectl(t, "", "exec", "-n", "default", n.pods[0].Name, "-c", csi.Whole, "--", "cat", "/proc/self/uid_map")
	if words := strings.Fields(ids); len(words) < 2 || words[1] == "0" {
		t.Errorf("the pod has the users of the node: %q", ids)
	}
	for line, want := range map[string]string{
		"cat /data/file":               "whole\n",
		"touch /data/new":              "touch: /data/new: Read-only file system\n",
		"touch /tree/below/new":        "touch: /tree/below/new: Read-only file system\n",
		"head -c 10 /image/etc/passwd": "root:x:0:0",
		"ls /part":                     "group\npasswd\n",
		"touch /image/new":             "touch: /image/new: Read-only file system\n",
	} {
		if got := n.exec(t, line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	n.awaitFaults(t, "", 0)
	n.awaitCleanScan(t)
	for _, pod := range []string{n.pods[0].Name, n.other.Name} {
		d := n.diagnosePod(t, when+"-"+pod, pod)
		if d.Status.Outcome != v1.OutcomeNoFault || len(d.Status.Faults) > 0 || strings.Contains(d.Status.Summary, "not known") {
			t.Errorf("pod %s: outcome %q, faults %+v: %s", pod, d.Status.Outcome, d.Status.Faults, d.Status.Summary)
		}
	}
}

// diagnosePod runs a Diagnosis of a pod that names no OperationSet.
func (n *newerPods) diagnosePod(t *testing.T, name, pod string) *v1.Diagnosis {
	t.Helper()
	d := n.runDiagnosis(t, automatic(name, pod))
	t.Logf("%s", d.Status.Summary)
	return d
}

// healNode has a Diagnosis of the pod with users of its own give the volume back to the node. The containers keep their dead mounts, and the
// Diagnosis says why. Only if a file system has not answered it, another one follows, at most three in all.
func (n *newerPods) healNode(t *testing.T) {
	t.Helper()
	p := &n.pods[0]
	before := n.containerMounts(t, p)
	want := map[string]v1.FaultState{
		n.mounted(p): v1.FaultHealed, n.subPath(p): v1.FaultHealed, csi.Whole: v1.FaultPresent, csi.Part: v1.FaultPresent,
	}
	d := n.diagnosePod(t, "users", p.Name)
	for i := 2; i <= 3 && d.Status.Phase != v1.DiagnosisSucceeded && strings.Contains(d.Status.Summary, "not answer"); i++ {
		d = n.diagnosePod(t, fmt.Sprintf("users-%d", i), p.Name)
		for _, point := range []string{n.mounted(p), n.subPath(p)} { // the one before may have repaired it, and lacked the proof
			if !slices.ContainsFunc(d.Status.Faults, func(f v1.Fault) bool { return f.Mount != nil && f.Mount.Point == point }) {
				delete(want, point)
			}
		}
	}
	for _, point := range []string{n.mounted(p), n.subPath(p)} {
		if got, want := deviceOf(t, point), deviceOf(t, n.staging(t)); got != want {
			t.Errorf("at %q is file system %s, not %s", point, got, want)
		}
	}
	checkStates(t, d, want)
	checkRefusal(t, d)
	n.checkUntouched(t, p, before)
}

// refuseContainers runs another Diagnosis of the pod. It may replace no mount.
func (n *newerPods) refuseContainers(t *testing.T) {
	t.Helper()
	p := &n.pods[0]
	before := n.containerMounts(t, p)
	d := n.diagnosePod(t, "users-again", p.Name)
	checkStates(t, d, map[string]v1.FaultState{csi.Whole: v1.FaultPresent, csi.Part: v1.FaultPresent})
	checkRefusal(t, d)
	n.checkUntouched(t, p, before)
}

// checkStates compares the states of the faults: those of the node by their points, and those of containers by their names.
func checkStates(t *testing.T, d *v1.Diagnosis, want map[string]v1.FaultState) {
	t.Helper()
	if d.Status.Outcome != v1.OutcomeFaultFound || len(d.Status.Faults) != len(want) {
		text, err := json.MarshalIndent(d.Status, "", " ")
		t.Errorf("outcome %q, %d faults, want %d: %s %v", d.Status.Outcome, len(d.Status.Faults), len(want), text, err)
	}
	for _, f := range d.Status.Faults {
		place := f.Container
		if f.Mount != nil && f.Mount.Point != "/data" {
			place = f.Mount.Point
		}
		if f.Code != "DisconnectedFUSE" || f.State != want[place] {
			t.Errorf("fault at %s, want state %q: %+v", place, want[place], f)
		}
	}
}

// checkRefusal holds that the Diagnosis says why the containers keep their mounts, and the step that helps.
func checkRefusal(t *testing.T, d *v1.Diagnosis) {
	t.Helper()
	text, err := json.Marshal(d.Status)
	must(t, err)
	checkContains(t, string(text), "the container runs in a user namespace of its own", "restart the container")
}

// containerMounts are the mounts of the containers of a pod at the place of the volume.
func (n *newerPods) containerMounts(t *testing.T, p *corev1.Pod) (lines []string) {
	t.Helper()
	for _, container := range []string{csi.Whole, csi.Part} {
		lines = append(lines, n.Kubectl(t, "", "exec", "-n", "default", p.Name, "-c", container, "--", "grep", " /data ", "/proc/1/mountinfo"))
	}
	return lines
}

// checkUntouched holds that the containers of a pod run on, with the dead mounts that they had.
func (n *newerPods) checkUntouched(t *testing.T, p *corev1.Pod, before []string) {
	t.Helper()
	n.checkReaders(t, notConnected, notConnected)
	n.checkSame(t, []corev1.Pod{*p})
	if now := n.containerMounts(t, p); !slices.Equal(before, now) {
		t.Errorf("mounts of the containers before:\n%q\nand now:\n%q", before, now)
	}
}

// restartContainers does as the refusal says.
func (n *newerPods) restartContainers(t *testing.T) {
	t.Helper()
	before := n.pods[0].DeepCopy()
	must(t, n.RemoveContainers(t.Context(), string(before.UID)))
	n.Wait(t, "the containers to run again", func(ctx context.Context) bool {
		p := &n.pods[0]
		must(t, n.Get(ctx, client.ObjectKeyFromObject(p), p))
		return running(p) && !slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return slices.ContainsFunc(before.Status.ContainerStatuses, func(old corev1.ContainerStatus) bool { return s.ContainerID == old.ContainerID })
		})
	})
	n.checkReaders(t, "whole", "part")
}

// healReadOnly has a Diagnosis give the volume back to the running container of the other pod.
func (n *newerPods) healReadOnly(t *testing.T) {
	t.Helper()
	d := n.diagnosePod(t, "read-only", n.other.Name)
	checkEnd(t, d, v1.DiagnosisSucceeded, v1.OutcomeHealed)
	n.checkSame(t, []corev1.Pod{n.other})
	if now := n.otherMounts(t); !slices.Equal(n.kept, now) {
		t.Errorf("mounts of the container before:\n%+v\nand now:\n%+v", n.kept, now)
	}
}
