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
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/test/ceph"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/csi"
)

// TestDeadVolume takes away what volumes of a CephFS live on: the ceph-fuse of one, and the container of the CSI driver
// whose children they are; or stops a ceph-fuse. kubediag reports it, repairs the pods in their running containers, and
// evicts the one that cannot be repaired.
func TestDeadVolume(t *testing.T) {
	t.Parallel()
	for _, version := range []string{cluster.Kubernetes118, cluster.Kubernetes137} {
		t.Run("kubelet "+version, func(t *testing.T) {
			t.Parallel()
			checkDeadVolume(t, cluster.Options{Kubelet: version})
		})
	}
}

func checkDeadVolume(t *testing.T, options cluster.Options) {
	version := options.Kubelet
	v := startVolume(t, options)
	o := &orphans{cephVolume: v, version: version}
	stage(t, "places", func(t *testing.T) { v.checkPlaces(t, version) })
	stage(t, "pods stranded", o.strand)
	stage(t, "daemon killed", v.killDaemon)
	stage(t, "driver killed", v.killDriver)
	stage(t, "driver back", v.restartDriver)
	stage(t, "healed by Diagnoses", v.heal)
	stage(t, "daemon stopped", func(t *testing.T) { v.stopDaemon(t, version) })
	stage(t, "evicted", v.evict)
	stage(t, "healed by the sentinel", v.healAlone)
	stage(t, "pods replaced", v.replacePods)
	stage(t, "orphans found", o.find)
	stage(t, "orphans removed", o.heal)
}

const (
	volumeName   = "shared"
	volumeDir    = "csi/volumes/shared" // in the file system
	otherName    = "other"
	otherDir     = "csi/volumes/other"
	notConnected = "cat: can't open '/data/file': Transport endpoint is not connected"
)

// readers are two pods that read from the volume.
var readers = readersOf("readers", volumeName, 2)

func readersOf(name, volume string, pods int) csi.Readers {
	return csi.Readers{Name: name, Volume: volume, Pods: pods, File: "file", SubPath: "sub"}
}

// cephVolume is a volume of a CephFS, and two pods that read from it.
type cephVolume struct {
	*env
	files  *ceph.Cluster
	driver *csi.Driver
	pods   []corev1.Pod
	number string // of its file system when they had started, major:minor
	killed int    // the process ID of the daemon that the kernel has killed
	others []corev1.Pod

	service int // the process ID of a service of the node
}

// startVolume starts a Ceph, a cluster with a CSI driver for that, and two pods with a volume.
func startVolume(t *testing.T, o cluster.Options) *cephVolume {
	t.Helper()
	v := &cephVolume{}
	started := v.startCeph(t)
	o.KubeletArgs = []string{"--vmodule=kubelet_volumes=5"}
	v.env = start(t, o, youngOrphans)
	must(t, started())
	files := v.files
	fillVolumes(t, files)
	v.driver = csi.Install(t, v.Env, cephFuse(files)...)
	v.driver.AddVolume(t, volumeName, volumeDir)
	v.driver.AddVolume(t, otherName, otherDir)
	v.startService(t)
	v.pods = v.driver.Start(t, readers)
	v.checkReaders(t, "whole", "part")
	v.number = deviceOf(t, v.staging(t))
	return v
}

// startCeph starts a Ceph while the caller goes on. The function that it gives waits for that.
func (v *cephVolume) startCeph(t *testing.T) (wait func() error) {
	t.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		v.files, err = ceph.Start(t.Context())
	}()
	t.Cleanup(func() { // once the cluster is gone
		if <-done; v.files != nil {
			must(t, v.files.Stop())
		}
	})
	return func() error {
		<-done
		return err
	}
}

// cephFuse is the command line that mounts a file system of a Ceph at {}.
func cephFuse(files *ceph.Cluster) []string {
	return []string{"ceph-fuse", "-f", "--conf=" + files.Conf(), "--name=client.admin", "--pid-file=", "{}", "-o", "fsname=ceph-fuse"}
}

// startService starts a process of the node that has a mount namespace of its own, as systemd starts many services: what is
// mounted and unmounted on the node from now on is so there, too.
func (v *cephVolume) startService(t *testing.T) {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation=slave", "sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	v.service = cmd.Process.Pid
}

// fillVolumes writes two files to each volume.
func fillVolumes(t *testing.T, files *ceph.Cluster) {
	t.Helper()
	all := t.TempDir()
	c, err := files.Mount(t.Context(), all, ceph.MountOptions{})
	must(t, err)
	for _, volume := range []string{volumeDir, otherDir} {
		err = errors.Join(err, fillVolume(filepath.Join(all, volume)))
	}
	must(t, errors.Join(err, c.Close(t.Context())))
}

// fillVolume writes the two files that readers read.
func fillVolume(dir string) error {
	return errors.Join(
		os.MkdirAll(filepath.Join(dir, "sub"), 0o755),
		os.WriteFile(filepath.Join(dir, "file"), []byte("whole\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "sub/file"), []byte("part\n"), 0o600))
}

// checkReaders waits until the containers of all pods say this.
func (v *cephVolume) checkReaders(t *testing.T, whole, part string) {
	t.Helper()
	v.checkSaid(t, v.pods, whole, part)
}

func (v *cephVolume) checkSaid(t *testing.T, pods []corev1.Pod, whole, part string) {
	t.Helper()
	for i := range pods {
		v.driver.Await(t, &pods[i], csi.Whole, whole)
		v.driver.Await(t, &pods[i], csi.Part, part)
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
	if version != cluster.Kubernetes118 {
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

// killDaemon has the kernel kill the ceph-fuse. Every container loses the volume, kubediag reports that, nobody else does
// anything about it, and containers of these pods cannot be started again.
func (v *cephVolume) killDaemon(t *testing.T) {
	before := v.copies(t)
	v.killed = v.driver.Staged(t, volumeName).PID
	v.driver.ExhaustDaemon(t, volumeName)
	ended := time.Now()
	v.forget(t, v.killed)
	v.checkEvents(t, ended)
	v.checkReaders(t, notConnected, notConnected)
	// A kubelet that has its driver publish the volume again has the directory looked up through the dead mount: the kernel marks it then.
	unmarked := cmp.Transformer("unmarked", func(line mountLine) mountLine {
		line.Line = strings.ReplaceAll(line.Line, "//deleted ", " ")
		return line
	})
	if diff := cmp.Diff(before, v.copies(t), unmarked); diff != "" {
		t.Errorf("mounts of the file system (-before +after):\n%s", diff)
	}
	v.checkDead(t, v.staging(t))
	v.checkNoNewContainers(t, &v.pods[0])
}

// restartDriver has a driver come that mounts the volume again for the node. The mounts of the pods stay dead.
func (v *cephVolume) restartDriver(t *testing.T) {
	daemon := v.driver.Staged(t, volumeName).PID
	v.driver.Restart(t)
	v.checkStaged(t, daemon)
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
	var first corev1.Pod
	must(t, v.Get(t.Context(), client.ObjectKeyFromObject(&v.pods[0]), &first))
	if running(&first) {
		t.Errorf("pod %s runs again", first.Name)
	}
}

// checkStaged shows that the volume is mounted for the node, by another file system and daemon than before.
func (v *cephVolume) checkStaged(t *testing.T, before int) {
	t.Helper()
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

// replacePods deletes the pods: the next ones get what is mounted for the node, and nothing is left of these.
func (v *cephVolume) replacePods(t *testing.T) {
	old := v.pods
	v.DeletePods(t, "default", old[0].Name, old[1].Name)
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

// checkDead fails the test unless the daemon of the mount at a path is gone. A stat may still succeed, as the kernel remembers the root's attributes.
func (v *cephVolume) checkDead(t *testing.T, path string) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("statfs of %q: %v, not %v", path, err, unix.ENOTCONN)
	}
}

// checkNoNewContainers kills the containers of a pod, if it has any, and shows that none of them can be started again, from
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
		must(t, v.Nudge(t.Context(), p.DeepCopy()))
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
