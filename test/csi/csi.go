// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package csi gives the node of a test's cluster volumes of a FUSE file system, by way of a CSI driver that works as real
// ones do, and lets tests kill the processes behind such volumes: the daemon of one, or the driver's container with the
// daemons of all. The driver mounts a volume once for the node, at the kubelet's staging path, and binds a directory of it
// for each pod. It has no controller, and volumes are made by hand.
package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/csi/staged"
	"kubediag.org/kubediag/test/install"
	"kubediag.org/kubediag/test/program"
)

const (
	// Name is the name of the driver.
	Name = "fuse.csi.kubediag.org"

	// Image is the driver's. It holds the program test/csi/driver and nothing else.
	Image = "kubediag.org/test/csi-driver:1"

	namespace = "csi-driver"
	container = "driver"
)

// manifest installs a driver. In addition to the node's root directory, for its programs, it has the kubelet's at its own
// path, so that mounts of the driver there reach the node, and mounts of the node the driver.
const manifest = `
apiVersion: v1
kind: Namespace
metadata: {name: ` + namespace + `}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + Name + `}
spec: {attachRequired: false, podInfoOnMount: false}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: csi-driver, namespace: ` + namespace + `}
spec:
  selector: {matchLabels: {app: csi-driver}}
  template:
    metadata: {labels: {app: csi-driver}}
    spec:
      hostNetwork: true
      hostPID: true
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 1
      containers:
      - name: ` + container + `
        image: ` + Image + `
        imagePullPolicy: Never
        args: %[2]s
        securityContext: {privileged: true}
        volumeMounts:
        - {name: host, mountPath: /host}
        - {name: kubelet, mountPath: %[1]s, mountPropagation: Bidirectional}
      volumes:
      - name: host
        hostPath: {path: /}
      - name: kubelet
        hostPath: {path: %[1]s, type: Directory}
`

// Driver is the driver on the node.
type Driver struct {
	env *install.Env
	dir string // of the driver's own, on the node
}

// Install installs the driver and waits until the kubelet knows it. Its volumes are the mounts of the daemon: a program of
// the node with its arguments, of which "{}" stands for the mount point, that stays in the foreground.
func Install(t testing.TB, e *install.Env, daemon ...string) *Driver {
	t.Helper()
	must(t, e.LoadBinaryImage(t.Context(), Image, program.Build(t, "test/csi/driver", "-trimpath", "-ldflags=-s -w")))
	text, err := Manifest(e.KubeletRoot(), e.NodeName(), daemon...)
	must(t, err)
	d := &Driver{env: e, dir: staged.Dir(e.KubeletRoot(), Name)}
	t.Cleanup(func() {
		if t.Failed() {
			text, err := os.ReadFile(filepath.Join(d.dir, staged.Log))
			t.Logf("CSI driver: %v\n%s", err, text)
		}
	})
	e.Kubectl(t, text, "apply", "-f", "-")
	d.await(t, 0)
	return d
}

// Manifest installs the driver on the node whose kubelet has that root directory. Install explains daemon.
func Manifest(kubeletRoot, node string, daemon ...string) (string, error) {
	root, err := filepath.EvalSymlinks(kubeletRoot)
	if err != nil {
		return "", fmt.Errorf("resolve kubelet root: %w", err)
	}
	args, err := json.Marshal(append([]string{"-host=/host", "-name=" + Name, "-node=" + node, "-root=" + root, "--"}, daemon...))
	if err != nil {
		return "", fmt.Errorf("write arguments of the driver: %w", err)
	}
	return fmt.Sprintf(manifest, root, args), nil
}

// await waits until the kubelet has registered a driver that is not the process of that ID.
func (d *Driver) await(t testing.TB, not int) {
	t.Helper()
	d.env.Wait(t, "the CSI driver to be registered", func(context.Context) bool {
		pid := d.pid(t)
		return pid != 0 && pid != not
	})
}

// pid is the process ID of the driver that was registered last, or 0.
func (d *Driver) pid(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.dir, staged.Registered))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	must(t, err)
	pid, err := strconv.Atoi(string(text))
	must(t, err)
	return pid
}

// Restart kills the driver's container, and with it the daemons of all volumes, and waits for the next one to be
// registered. The next container mounts every volume again at its staging path.
func (d *Driver) Restart(t testing.TB) {
	t.Helper()
	if err := os.Remove(filepath.Join(d.dir, staged.Leave)); !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
	d.restart(t)
}

// RestartAndLeave does the same with a driver that mounts a volume again only for a pod that is new: the old mounts stay as
// they are, dead.
func (d *Driver) RestartAndLeave(t testing.TB) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(d.dir, staged.Leave), nil, 0o600))
	d.restart(t)
}

// CrashAndLeave has the effect of RestartAndLeave, but the runtime keeps its record of the container, which a signal ended.
// The kubelet starts the next one at once the first time only.
func (d *Driver) CrashAndLeave(t testing.TB) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(d.dir, staged.Leave), nil, 0o600))
	before := d.pid(t)
	must(t, unix.Kill(before, unix.SIGKILL))
	d.await(t, before)
}

func (d *Driver) restart(t testing.TB) {
	t.Helper()
	before := d.pid(t)
	must(t, d.env.RemoveContainers(t.Context(), string(d.Pod(t).UID)))
	d.await(t, before)
}

// Hide keeps the driver from a kubelet that starts, as if the driver started later than that. show ends it, and waits until
// the driver is registered.
func (d *Driver) Hide(t testing.TB) (show func()) {
	t.Helper()
	socket := filepath.Join(d.env.KubeletRoot(), "plugins_registry", Name+"-reg.sock")
	hidden := filepath.Join(d.dir, "hidden.sock")
	must(t, errors.Join(os.Rename(socket, hidden), os.Remove(filepath.Join(d.dir, staged.Registered))))
	return func() {
		t.Helper()
		must(t, os.Rename(hidden, socket))
		d.await(t, 0)
	}
}

// Pod is the driver's, on the node.
func (d *Driver) Pod(t testing.TB) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	must(t, d.env.List(t.Context(), &pods, client.InNamespace(namespace)))
	if len(pods.Items) != 1 {
		t.Fatalf("there are %d pods of the CSI driver", len(pods.Items))
	}
	return &pods.Items[0]
}

// Staged describes a volume that is staged: its staging path, and the process ID of its daemon.
func (d *Driver) Staged(t testing.TB, volume string) staged.Volume {
	t.Helper()
	v, err := staged.Load(d.dir, handle(volume))
	must(t, err)
	return v
}

// KillDaemon kills the daemon of a volume and waits until it is gone. The driver does nothing about that.
func (d *Driver) KillDaemon(t testing.TB, volume string) {
	t.Helper()
	pid := d.Staged(t, volume).PID
	must(t, unix.Kill(pid, unix.SIGKILL))
	d.env.Wait(t, "the daemon to end", func(context.Context) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
}

var must = kerneltest.Must
