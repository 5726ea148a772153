// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/ceph"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/csi"
)

// TestDeadVolume kills what a volume of a CephFS lives on: its ceph-fuse, and then the container of the CSI driver whose
// child the next one is. Then kubediag heals the pods, in their running containers too.
func TestDeadVolume(t *testing.T) {
	for _, version := range []string{cluster.Kubernetes118, cluster.Kubernetes136} {
		t.Run("kubelet "+version, func(t *testing.T) {
			v := startVolume(t, version)
			v.checkPlaces(t, version)
			v.killDaemon(t)
			v.restartDriver(t)
			v.heal(t)
			v.replacePods(t)
		})
	}
}

const (
	volumeName   = "shared"
	volumeDir    = "csi/volumes/shared" // in the file system
	notConnected = "cat: can't open '/data/file': Transport endpoint is not connected"
)

// readers are two pods that read from the volume.
var readers = csi.Readers{Name: "readers", Volume: volumeName, Pods: 2, File: "file", SubPath: "sub"}

// cephVolume is a volume of a CephFS, and two pods that read from it.
type cephVolume struct {
	*env
	files  *ceph.Cluster
	driver *csi.Driver
	pods   []corev1.Pod
	number string // of its file system when they had started, major:minor
}

// startVolume starts a Ceph, a cluster with a CSI driver for that, and two pods with a volume.
func startVolume(t *testing.T, version string) *cephVolume {
	t.Helper()
	files, err := ceph.Start(t.Context())
	must(t, err)
	t.Cleanup(func() { must(t, files.Stop()) }) // once the cluster is gone
	fillVolume(t, files)
	v := &cephVolume{env: start(t, cluster.Options{Kubelet: version}), files: files}
	v.driver = csi.Install(t, v.Env, "ceph-fuse", "-f", "--conf="+files.Conf(), "--name=client.admin", "--pid-file=", "{}",
		"-o", "fsname=ceph-fuse")
	v.driver.AddVolume(t, volumeName, volumeDir)
	v.pods = v.driver.Start(t, readers)
	v.checkReaders(t, "whole", "part")
	v.number = deviceOf(t, v.staging(t))
	return v
}

// fillVolume writes two files.
func fillVolume(t *testing.T, files *ceph.Cluster) {
	t.Helper()
	all := t.TempDir()
	c, err := files.Mount(t.Context(), all, ceph.MountOptions{})
	must(t, err)
	dir := filepath.Join(all, volumeDir)
	err = errors.Join(
		os.MkdirAll(filepath.Join(dir, "sub"), 0o755),
		os.WriteFile(filepath.Join(dir, "file"), []byte("whole\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "sub/file"), []byte("part\n"), 0o600))
	must(t, errors.Join(err, c.Close(t.Context())))
}

// checkReaders waits until the containers of all pods say this.
func (v *cephVolume) checkReaders(t *testing.T, whole, part string) {
	t.Helper()
	for i := range v.pods {
		v.driver.Await(t, &v.pods[i], csi.Whole, whole)
		v.driver.Await(t, &v.pods[i], csi.Part, part)
	}
}

// staging is where the kubelet has the volume mounted for the node.
func (v *cephVolume) staging(t *testing.T) string {
	t.Helper()
	return v.driver.Staged(t, volumeName).Path
}

// mounted is where the kubelet has the volume mounted for a pod.
func (v *cephVolume) mounted(p *corev1.Pod) string {
	return filepath.Join(v.KubeletRoot(), "pods", string(p.UID), "volumes/kubernetes.io~csi", volumeName, "mount")
}

// subPath is where the kubelet has the part of it mounted that one of the pod's containers gets.
func (v *cephVolume) subPath(p *corev1.Pod) string {
	return filepath.Join(v.KubeletRoot(), "pods", string(p.UID), "volume-subpaths", volumeName, csi.Part, "0")
}

// checkPlaces shows where both kubelets have what belongs to a volume, and what they write down about it.
func (v *cephVolume) checkPlaces(t *testing.T, version string) {
	t.Helper()
	handle := v.driver.Staged(t, volumeName).Handle
	staging := "pv/" + volumeName
	if version == cluster.Kubernetes136 {
		staging = fmt.Sprintf("%s/%x", csi.Name, sha256.Sum256([]byte(handle)))
	}
	staging = filepath.Join(v.KubeletRoot(), "plugins/kubernetes.io/csi", staging, "globalmount")
	if got := v.staging(t); got != staging {
		t.Errorf("staged at %q, not %q", got, staging)
	}
	want := []string{staging}
	v.checkRecord(t, staging, map[string]string{"driverName": csi.Name, "volumeHandle": handle})
	for i := range v.pods {
		p := &v.pods[i]
		want = append(want, v.mounted(p), v.subPath(p))
		v.checkRecord(t, v.mounted(p), map[string]string{
			"driverName": csi.Name, "volumeHandle": handle, "specVolID": volumeName, "nodeName": v.NodeName(),
			"volumeLifecycleMode": "Persistent",
			"attachmentID":        fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+csi.Name+v.NodeName()))),
		})
	}
	got := pointsOf(tableOf(t, v.KubeletPID()), v.number)
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("where the file system is mounted (-want +got):\n%s", diff)
	}
}

// checkRecord reads what the kubelet has written down beside a mount point.
func (v *cephVolume) checkRecord(t *testing.T, point string, want map[string]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(point), "vol_data.json"))
	must(t, err)
	var got map[string]string
	must(t, json.Unmarshal(text, &got))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record of %q (-want +got):\n%s", point, diff)
	}
}

// killDaemon kills the ceph-fuse. Every container loses the volume, nobody does anything about it, and containers of
// these pods cannot be started anew.
func (v *cephVolume) killDaemon(t *testing.T) {
	before := v.copies(t)
	v.driver.KillDaemon(t, volumeName)
	v.checkReaders(t, notConnected, notConnected)
	if diff := cmp.Diff(before, v.copies(t)); diff != "" {
		t.Errorf("mounts of the file system (-before +after):\n%s", diff)
	}
	v.checkDead(t, v.staging(t))
	v.checkNoNewContainers(t, &v.pods[0])
}

// restartDriver kills the container of the driver. The first that comes after it leaves the mount for the node as it is,
// the second mounts the volume anew there, the third has to do it again, because the daemon of the second went with it.
// What the pods have stays dead.
func (v *cephVolume) restartDriver(t *testing.T) {
	v.driver.RestartAndLeave(t)
	v.checkDead(t, v.staging(t))
	for range 2 {
		daemon := v.driver.Staged(t, volumeName).PID
		v.driver.Restart(t)
		v.checkStaged(t, daemon)
	}
	for i := range v.pods {
		v.checkDead(t, v.mounted(&v.pods[i]))
		v.checkDead(t, v.subPath(&v.pods[i]))
	}
	for _, container := range []string{csi.Whole, csi.Part} {
		said := v.Kubectl(t, "", "exec", "-n", "default", v.pods[1].Name, "-c", container, "--", "sh", "-c", "cat /data/file 2>&1; true")
		if said != notConnected+"\n" {
			t.Errorf("container %s, which has run all the time, says %q", container, said)
		}
	}
	v.checkNoNewContainers(t, &v.pods[0])
}

// checkStaged shows that the volume is mounted for the node, by another file system and daemon than before.
func (v *cephVolume) checkStaged(t *testing.T, before int) {
	t.Helper()
	v.evict(t, before)
	if pid := v.driver.Staged(t, volumeName).PID; pid == before {
		t.Errorf("the daemon is %d still", pid)
	}
	if err := unix.Kill(before, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the daemon of the driver's last container: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(v.staging(t), volumeDir, "file"))
	if err != nil || string(text) != "whole\n" {
		t.Errorf("the volume for the node has %q, %v", text, err)
	}
	if got := deviceOf(t, v.staging(t)); got == v.number {
		t.Errorf("the volume for the node is of the same file system, %s", got)
	}
}

// healVolume asks for a pod's volumes.
const healVolume = `
apiVersion: diagnosis.kubediag.org/v1
kind: Diagnosis
metadata: {name: %[1]s, namespace: default}
spec:
  operationSet: volume-health-op-set
  nodeName: %[2]s
  podReference: {namespace: default, name: %[1]s}
`

// heal has kubediag put the volume that is mounted for the node in the place of the dead one, for both pods: one has
// containers that cannot be started, the other has containers that run, and go on running.
func (v *cephVolume) heal(t *testing.T) {
	v.checkScan(t, 1)
	v.Kubectl(t, "", "apply", "-f", "../../config/samples/volume-health.yaml")
	for i := range v.pods {
		p := &v.pods[i]
		v.Kubectl(t, fmt.Sprintf(healVolume, p.Name, v.NodeName()), "apply", "-f", "-")
		d := &v1.Diagnosis{}
		v.Wait(t, "Diagnosis "+p.Name+" to end", func(ctx context.Context) bool {
			err := v.Get(ctx, client.ObjectKeyFromObject(p), d)
			return err == nil && (d.Status.Phase == v1.DiagnosisSucceeded || d.Status.Phase == v1.DiagnosisFailed)
		})
		if code := d.Status.OperationResults["diagnoser.kubernetes.volume_health.code"]; d.Status.Phase != v1.DiagnosisSucceeded ||
			code != "DisconnectedFUSE" {
			t.Errorf("phase %q, code %q", d.Status.Phase, code)
		}
		t.Logf("outcome %s: %s", d.Status.Outcome, d.Status.OperationResults["recover.kubernetes.volume_rebind.results"])
		for _, point := range []string{v.mounted(p), v.subPath(p)} {
			if got, want := deviceOf(t, point), deviceOf(t, v.staging(t)); got != want {
				t.Errorf("at %q is file system %s, not %s", point, got, want)
			}
		}
	}
	v.checkReaders(t, "whole", "part")
	if left := v.copies(t); len(left) > 0 {
		t.Errorf("still there: %+v", left)
	}
	var now corev1.Pod
	must(t, v.Get(t.Context(), client.ObjectKeyFromObject(&v.pods[1]), &now))
	for i, s := range now.Status.ContainerStatuses {
		if before := v.pods[1].Status.ContainerStatuses[i]; s.ContainerID != before.ContainerID || s.RestartCount != before.RestartCount {
			t.Errorf("container %s was started anew", s.Name)
		}
	}
	v.checkScan(t, 0)
}

// checkScan runs kubediag scan on the node. It ends with status 1 where it finds that the volume of both pods is dead.
func (v *cephVolume) checkScan(t *testing.T, want int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), v.Build(t, "kubediag"), "scan")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	for i := range v.pods {
		found := strings.Contains(string(out), v.mounted(&v.pods[i]))
		if got := cmd.ProcessState.ExitCode(); got != want || found != (want == 1) || found && !strings.Contains(string(out), "DisconnectedFUSE") {
			t.Errorf("kubediag scan ends with status %d, not %d:\n%s", got, want, out)
		}
	}
}

// evict has Ceph forget a daemon that was killed: until then the next one waits for what that had been given, a minute.
func (v *cephVolume) evict(t *testing.T, pid int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ceph", "--conf="+v.files.Conf(), "tell", "mds.a", "session", "evict",
		fmt.Sprintf("client_metadata.pid=%d", pid))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// replacePods deletes the pods: the next ones get what is mounted for the node, and nothing is left of these.
func (v *cephVolume) replacePods(t *testing.T) {
	old := v.pods
	for _, p := range old {
		v.Kubectl(t, "", "delete", "pod", "-n", p.Namespace, p.Name)
	}
	v.pods = v.driver.Start(t, readers)
	v.checkReaders(t, "whole", "part")
	for _, p := range old {
		v.Wait(t, "all of pod "+p.Name+" to go", func(context.Context) bool {
			_, err := os.Lstat(filepath.Join(v.KubeletRoot(), "pods", string(p.UID)))
			return errors.Is(err, fs.ErrNotExist)
		})
	}
}

// copies lists the mounts of the volume in the kubelet's mount table.
func (v *cephVolume) copies(t *testing.T) []mountLine {
	t.Helper()
	return slices.DeleteFunc(tableOf(t, v.KubeletPID()), func(m mountLine) bool {
		return m.Number != v.number || !strings.Contains(m.Line, " - fuse ") // the number of one that is gone is given again
	})
}

// checkDead shows that the daemon of what is mounted on a path is gone.
func (v *cephVolume) checkDead(t *testing.T, path string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("stat of %q: %v, not %v", path, err, unix.ENOTCONN)
	}
}

// checkNoNewContainers kills the containers of a pod, if it has any, and shows that none of them can be started anew, from
// now on too.
func (v *cephVolume) checkNoNewContainers(t *testing.T, p *corev1.Pod) {
	t.Helper()
	must(t, v.RemoveContainers(t.Context(), string(p.UID)))
	v.awaitFailure(t, p, csi.Part, func(w *corev1.ContainerStateWaiting) bool {
		return w.Reason == "CreateContainerConfigError" &&
			w.Message == `failed to prepare subPath for volumeMount "data" of container "`+csi.Part+`"`
	})
	var before string // every one that is not started has a name of its own
	for range 2 {
		v.awaitFailure(t, p, csi.Whole, func(w *corev1.ContainerStateWaiting) bool {
			if w.Reason != "CreateContainerError" || w.Message == before ||
				!strings.HasSuffix(w.Message, "stat "+v.mounted(p)+": transport endpoint is not connected") {
				return false
			}
			before = w.Message
			return true
		})
	}
}

// awaitFailure waits until a container waits for such a reason.
func (v *cephVolume) awaitFailure(t *testing.T, p *corev1.Pod, container string, such func(*corev1.ContainerStateWaiting) bool) {
	t.Helper()
	v.Wait(t, "the start of container "+container+" to fail", func(ctx context.Context) bool {
		var now corev1.Pod
		err := v.Get(ctx, client.ObjectKeyFromObject(p), &now)
		return err == nil && slices.ContainsFunc(now.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.Name == container && s.State.Waiting != nil && such(s.State.Waiting)
		})
	})
}

// deviceOf gives the number of the file system at a path, major:minor.
func deviceOf(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
}
