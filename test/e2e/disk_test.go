// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/install"
)

// diskManifest is a volume of the kind local, made of a block device and nothing else, and the claim to it: the kubelet
// makes the file system, mounts it for the node and then for each pod, and unmounts it.
const diskManifest = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 64Mi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  volumeMode: Filesystem
  claimRef: {namespace: default, name: disk}
  local: {path: %s, fsType: ext4}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: disk
  resources: {requests: {storage: 64Mi}}
`

// writerManifest prints what is in a file of the volume and adds its own name to that.
const writerManifest = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default, labels: {app: %[1]s}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: writer
    image: ` + install.Busybox + `
    imagePullPolicy: Never
    command: ["/bin/sh", "-c", "touch /data/names; cat /data/names; echo %[1]s >> /data/names; sync; exec sleep 1000000"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: disk}
`

// exporterManifest is what many nodes have: a program that looks at the node, has all or much of its files in its
// container, and so gets a copy of each mount among them.
const exporterManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: %[1]s, namespace: default}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: node-exporter
        image: ` + cluster.ExporterImage + `
        imagePullPolicy: Never
        args: [--path.rootfs=/host, "--web.listen-address=:9100"]
        volumeMounts: [{name: root, mountPath: /host, readOnly: true}]
      volumes:
      - name: root
        hostPath: {path: %[2]s}
`

// exporterProgram is what runs in it.
const exporterProgram = "prometheus-node-exporter"

// heldDisk is a disk that pods use and exporters keep.
type heldDisk struct {
	*env
	device, image string    // the loop device and the file below it
	number        string    // of the device, major:minor
	bystander     *exporter // one that is no longer concerned
	patch         string    // what was advised last
}

// exporter is a running one, as it was when it had started.
type exporter struct {
	pod   *corev1.Pod
	pid   int
	root  string // the directory of the node that it has
	table []mountLine
}

// mountLine is a line of mountinfo: the mount, and all that is told of it.
type mountLine struct{ Number, Point, Line string }

// add makes the disk, and the volume and the claim for it.
func (h *heldDisk) add(t *testing.T) {
	t.Helper()
	var err error
	h.device, h.image, err = h.AddDisk(t.Context(), 64<<20)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(h.device, &st))
	h.number = fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	h.Kubectl(t, fmt.Sprintf(diskManifest, h.device, h.NodeName()), "apply", "-f", "-")
}

// startWriter has a pod use the disk, in which it is to find what others wrote before.
//
// A file is put below the mount point, so that the kubelet cannot remove it: with the directory would go every mount that
// is on it, in all namespaces (Linux 3.18 and later). If nothing is in the way, copies are left by those who detach a
// device before they remove the directory, as the kubelet does itself with rbd; there is none of these for a local volume.
func (h *heldDisk) startWriter(t *testing.T, name, before string) {
	t.Helper()
	must(t, os.MkdirAll(h.mountPoint(), 0o750))
	must(t, os.WriteFile(filepath.Join(h.mountPoint(), "below"), nil, 0o600))
	h.Kubectl(t, fmt.Sprintf(writerManifest, name), "apply", "-f", "-")
	pod := h.awaitPod(t, name)
	h.Wait(t, fmt.Sprintf("%s to say that it has found %q in the volume", name, before), func(context.Context) bool {
		return h.Kubectl(t, "", "logs", "-n", "default", name) == before
	})
	want := []string{h.mountPoint(), filepath.Join(h.KubeletRoot(), "pods", string(pod.UID), "volumes/kubernetes.io~local-volume/disk")}
	if got := pointsOf(tableOf(t, h.KubeletPID()), h.number); !slices.Equal(got, want) {
		t.Fatalf("the kubelet has the disk mounted at %q, not %q", got, want)
	}
}

// deleteWriter deletes a pod and waits until the kubelet has unmounted the disk.
func (h *heldDisk) deleteWriter(t *testing.T, name string) {
	t.Helper()
	h.DeletePods(t, "default", name)
	h.Wait(t, "the kubelet to unmount the disk", func(context.Context) bool {
		return len(pointsOf(tableOf(t, h.KubeletPID()), h.number)) == 0
	})
}

// releaseMountPoint lets the kubelet finish its work on the disk.
func (h *heldDisk) releaseMountPoint(t *testing.T) {
	t.Helper()
	must(t, os.Remove(filepath.Join(h.mountPoint(), "below")))
	h.Wait(t, "the kubelet to remove its mount point", func(context.Context) bool {
		_, err := os.Lstat(h.mountPoint())
		return os.IsNotExist(err)
	})
}

// startExporter starts one that looks at the directory root of the node, while the disk is mounted.
func (h *heldDisk) startExporter(t *testing.T, name, root string) *exporter {
	t.Helper()
	h.Kubectl(t, fmt.Sprintf(exporterManifest, name, root), "apply", "-f", "-")
	return h.awaitExporter(t, name, root)
}

// awaitExporter waits until it runs. It has a copy of each mount of the disk.
func (h *heldDisk) awaitExporter(t *testing.T, name, root string) *exporter {
	t.Helper()
	x := &exporter{pod: h.awaitPod(t, name), root: root}
	x.pid = processIn(t, string(x.pod.UID), exporterProgram)
	x.table = h.tableOfExporter(t, x)
	if got := h.copies(t, x); len(got) != 2 {
		t.Fatalf("%s has the disk at %q", name, got)
	}
	return x
}

// sees is where the exporter has a directory of the node.
func (x *exporter) sees(dir string) string {
	return filepath.Join("/host", strings.TrimPrefix(dir, strings.TrimSuffix(x.root, "/")))
}

// awaitPod waits until the pod with the label app=name runs.
func (h *heldDisk) awaitPod(t *testing.T, name string) (pod *corev1.Pod) {
	t.Helper()
	h.Wait(t, "pod "+name+" to run", func(ctx context.Context) bool {
		pod = h.podOf(ctx, name)
		return pod != nil && running(pod)
	})
	return pod
}

// copies lists where an exporter has the disk.
func (h *heldDisk) copies(t *testing.T, x *exporter) []string {
	t.Helper()
	return pointsOf(tableOf(t, x.pid), h.number)
}

// exports reports whether an exporter has figures of the disk.
func (h *heldDisk) exports(t *testing.T, x *exporter) bool {
	t.Helper()
	figures := install.Fetch(t, "http://"+x.pod.Status.PodIP+":9100/metrics")
	if !strings.Contains(figures, `node_filesystem_size_bytes{device="/dev/`) {
		t.Errorf("the exporter exports no figures of any disk")
	}
	return strings.Contains(figures, `node_filesystem_size_bytes{device="`+h.device+`"`)
}

// busy asks the kernel for the disk.
func (h *heldDisk) busy(t *testing.T) bool {
	t.Helper()
	f, err := os.OpenFile(h.device, os.O_RDONLY|os.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return true
	}
	must(t, err)
	must(t, f.Close())
	return false
}

// awaitFree waits until nothing has the disk. A program of the machine that begins in a mount namespace of its own may have it for a moment.
func (h *heldDisk) awaitFree(t *testing.T) {
	t.Helper()
	apitest.Eventually(t, func() error {
		if h.busy(t) {
			return fmt.Errorf("device %s is busy", h.device)
		}
		return nil
	})
}

// loopFile is what the loop device is over.
func (h *heldDisk) loopFile(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(h.device), "loop/backing_file"))
	if os.IsNotExist(err) {
		return ""
	}
	must(t, err)
	return strings.TrimSpace(string(text))
}

// tableOf reads the mount table of a process.
func tableOf(t *testing.T, pid int) []mountLine {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	must(t, err)
	var table []mountLine
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		table = append(table, mountLine{words[2], words[4], line})
	}
	return table
}

// pointsOf lists where a device is mounted, in the order of the table.
func pointsOf(table []mountLine, number string) []string {
	var points []string
	for _, m := range table {
		if m.Number == number {
			points = append(points, m.Point)
		}
	}
	return points
}
