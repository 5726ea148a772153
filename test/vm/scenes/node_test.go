// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build vm

package scenes

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/program"
	"kubediag.org/kubediag/test/vm"
)

// Configuration of a node whose containerd runs containers by crun, in control groups that systemd makes.
const (
	containerdConfig = `version = 2
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
	"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + cluster.PauseImage + `"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "crun"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
BinaryName = "/usr/bin/crun"
SystemdCgroup = true
`
	kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /etc/kubernetes/manifests
cgroupDriver: systemd
readOnlyPort: 10255
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
makeIPTablesUtilChains: false
failSwapOn: false
fileCheckFrequency: 1s
evictionHard: {memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
`
	kubeletUnit = `[Service]
ExecStart=/usr/local/bin/kubelet --config=/etc/kubernetes/kubelet.yaml --hostname-override=vm --v=2
[Install]
WantedBy=multi-user.target
`
	// reader reads a volume of FUSE and a file bound by its subPath, and says in a file of the node what it saw.
	reader = `apiVersion: v1
kind: Pod
metadata: {name: reader, namespace: default}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  containers:
  - name: app
    image: ` + cluster.BusyboxImage + `
    imagePullPolicy: Never
    command: [sh, -c, "echo started $(cat /config) >>/seen/starts; while true; do cat /data/file >/seen/data 2>&1; sleep 0.5; done"]
    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: config, mountPath: /config, subPath: config}
    - {name: seen, mountPath: /seen}
  volumes:
  - {name: data, hostPath: {path: /srv/data}}
  - {name: config, hostPath: {path: /srv/config}}
  - {name: seen, hostPath: {path: /srv/seen}}
`
)

// TestNode is a node as people run them: systemd is process 1, the kubelet is a unit, and containerd has crun start
// containers in control groups of version 2. The daemon of a running container's volume ends and comes back: kubediag names
// the pod and repairs the mount, and the container is not restarted. A file bound by its subPath is replaced: this kubelet
// renews such binds, which kubediag knows, and crun starts the container again.
func TestNode(t *testing.T) {
	dir := t.TempDir()
	kubelet, err := cluster.Kubelet(t.Context())
	must(t, err)
	images := filepath.Join(dir, "images.tar")
	must(t, cluster.SaveDefaultImages(t.Context(), images))
	t.Setenv("CGO_ENABLED", "0")
	files := map[string]string{
		"/usr/local/bin/kubelet": kubelet, "/srv/images.tar": images,
		"/usr/local/bin/kubediag": program.Build(t, "cmd/kubediag"),
		"/usr/local/bin/diagnose": program.Build(t, "test/vm/diagnose"),
	}
	for path, content := range map[string]string{
		"/etc/containerd/config.toml": containerdConfig, "/etc/kubernetes/kubelet.yaml": kubeletConfig,
		"/etc/systemd/system/kubelet.service": kubeletUnit, "/srv/reader.yaml": reader,
		// Units that need a user at the console.
		"/etc/systemd/system/systemd-firstboot.service": "", "/etc/systemd/system/serial-getty@ttyS0.service": "",
	} {
		files[path] = filepath.Join(dir, filepath.Base(path))
		must(t, os.WriteFile(files[path], []byte(content), 0o644))
	}
	for _, kernel := range vm.Kernels {
		t.Run("Linux "+kernel, func(t *testing.T) {
			n := startNode(t, kernel, files)
			n.repairsRunning()
			n.leavesRenewed()
		})
	}
}

// node is a machine with a kubelet that runs one pod.
type node struct{ guest }

func startNode(t *testing.T, kernel string, files map[string]string) node {
	t.Helper()
	n := node{start(t, vm.Options{
		Kernel: kernel, Packages: []string{"systemd", "dbus", "containerd", "crun", "bindfs"}, Modules: []string{"overlay"},
		Files: files, Init: []string{"/lib/systemd/systemd"},
	})}
	n.waits("systemctl is-active --quiet multi-user.target", "systemctl list-jobs; journalctl -n 60 --no-pager")
	n.run("systemctl start containerd && ctr --namespace=k8s.io images import /srv/images.tar && systemctl start kubelet")
	n.run("mkdir -p /srv/back /srv/data /srv/config /srv/seen /etc/kubernetes/manifests; echo old >/srv/config/config; echo content >/srv/back/file")
	n.run("bindfs /srv/back /srv/data; cp /srv/reader.yaml /etc/kubernetes/manifests")
	n.waits("grep -q 'started old' /srv/seen/starts && grep -q content /srv/seen/data", "journalctl -n 60 --no-pager -u kubelet -u containerd")
	return n
}

// waits waits until a script succeeds; where it does not, another one says why.
func (n node) waits(script, why string) {
	n.t.Helper()
	for end := time.Now().Add(4 * time.Minute); ; time.Sleep(300 * time.Millisecond) {
		if _, status := n.shell(script); status == 0 {
			return
		}
		if time.Now().After(end) {
			out, _ := n.shell(why)
			n.t.Fatalf("%s did not become true\n%s", script, out)
		}
	}
}

// scan runs the verb with the pods that the kubelet knows.
func (n node) scan() (codes []string, said string, status int) {
	n.t.Helper()
	n.run("busybox wget -q -O /srv/pods.json http://127.0.0.1:10255/pods")
	said, status = n.shell("kubediag scan --pods /srv/pods.json -o json")
	var report struct {
		Faults []struct {
			Code string
			Pod  struct{ Name string }
		}
	}
	if err := json.NewDecoder(strings.NewReader(said)).Decode(&report); err != nil {
		n.t.Fatalf("scan: status %d, %v\n%s", status, err, said)
	}
	for _, f := range report.Faults {
		codes = append(codes, f.Code+" "+f.Pod.Name)
	}
	return codes, said, status
}

// repairsRunning ends the daemon of a volume that a container has, has the driver mount it again, and runs a Diagnosis.
func (n node) repairsRunning() {
	n.t.Helper()
	if codes, said, status := n.scan(); status != 0 || len(codes) != 0 {
		n.t.Errorf("scan of a healthy node: status %d, %q\n%s", status, codes, said)
	}
	n.run("pkill -9 bindfs; until grep -q 'not connected' /srv/seen/data; do sleep 0.2; done")
	// One on the node, and the container's copy.
	want := []string{"DisconnectedFUSE reader-vm", "DisconnectedFUSE reader-vm"}
	if codes, said, status := n.scan(); status != 1 || !slices.Equal(codes, want) {
		n.t.Errorf("scan with a daemon that has ended: status %d, %q\n%s", status, codes, said)
	}
	n.run("umount -l /srv/data; bindfs /srv/back /srv/data; echo new >/srv/back/file")
	var d v1.DiagnosisStatus
	said := n.run("diagnose -kubelet-root= -pods /srv/pods.json -pod default/reader-vm volume-health-op-set")
	if err := json.Unmarshal([]byte(said), &d); err != nil {
		n.t.Fatal(err)
	}
	if d.Phase != v1.DiagnosisSucceeded || d.Outcome != v1.OutcomeHealed {
		n.t.Errorf("a Diagnosis of the volume: phase %q, outcome %q\n%s", d.Phase, d.Outcome, said)
	}
	n.waits("grep -q new /srv/seen/data", "cat /srv/seen/data; mount | grep /srv")
	if starts := n.run("cat /srv/seen/starts"); starts != "started old" {
		n.t.Errorf("the container was started %q, want once", starts)
	}
	if codes, said, status := n.scan(); status != 0 || len(codes) != 0 {
		n.t.Errorf("scan after the repair: status %d, %q\n%s", status, codes, said)
	}
}

// leavesRenewed replaces a file that is bound by its subPath, and has the container start again.
func (n node) leavesRenewed() {
	n.t.Helper()
	n.run("echo new >/srv/config/next; mv /srv/config/next /srv/config/config")
	if codes, said, status := n.scan(); status != 0 || len(codes) != 0 || !strings.Contains(said, `"renewedByKubelet": 1`) {
		n.t.Errorf("scan with a bind that the kubelet renews: status %d, %q\n%s", status, codes, said)
	}
	n.run("kill -9 $(ctr --namespace=k8s.io tasks ls | awk '$3 == \"RUNNING\" {print $2}' | while read pid; do " +
		"grep -q seen /proc/$pid/cmdline && echo $pid; done)")
	n.waits("grep -q 'started new' /srv/seen/starts", "cat /srv/seen/starts; journalctl -n 60 --no-pager -u kubelet -u containerd")
}

var must = kerneltest.Must
