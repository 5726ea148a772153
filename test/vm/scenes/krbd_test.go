// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build vm

package scenes

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/ceph"
	"kubediag.org/kubediag/test/program"
	"kubediag.org/kubediag/test/vm"
)

// The paths at which the kubelet's own rbd plugin mounts an image, and the volume of a pod.
const (
	globalMount = "/var/lib/kubelet/plugins/kubernetes.io/rbd/mounts/rbd-image-held"
	podDir      = "/var/lib/kubelet/pods/29da79e5-386c-4e0d-82c1-215f93ff955d"
	podMount    = podDir + "/volumes/kubernetes.io~rbd/pvc-1"
)

// rbd is a machine whose kernel maps images of a Ceph that runs outside of it.
type rbd struct{ guest }

// TestHeldRBD has Debian's node exporter keep an image that krbd has mapped: the device cannot be unmapped until kubediag has
// released it. Other images are idle, and are unmapped.
func TestHeldRBD(t *testing.T) {
	cluster, err := ceph.StartBlock(t.Context())
	must(t, err)
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("CGO_ENABLED", "0")
	programs := map[string]string{
		"/usr/local/bin/kubediag": program.Build(t, "cmd/kubediag"),
		"/usr/local/bin/diagnose": program.Build(t, "test/vm/diagnose"),
	}
	for _, kernel := range vm.Kernels {
		t.Run("Linux "+kernel, func(t *testing.T) {
			held, idle := "held-"+kernel, "idle-"+kernel
			for _, image := range []string{held, idle} {
				must(t, cluster.CreateImage(t.Context(), image, 64))
			}
			r := startRBD(t, cluster, kernel, programs)
			node := r.mapImage(held)
			r.run("mkfs.ext4 -q " + node)
			r.sweepsIdle(node, r.mapImage(idle))
			exporter := r.hold(node)
			r.released(node, exporter)
			r.run("kill " + exporter)

			node = r.mapImage(held)
			exporter = r.hold(node)
			r.detached(node, exporter)
		})
	}
}

// startRBD starts a machine that finds the daemons of the cluster at the addresses that they have outside.
func startRBD(t *testing.T, cluster *ceph.Cluster, kernel string, programs map[string]string) *rbd {
	t.Helper()
	r := &rbd{start(t, vm.Options{
		Kernel: kernel, Packages: []string{"ceph-common", "prometheus-node-exporter", "socat"}, Modules: []string{"virtio_net", "rbd"},
		Files: programs, Network: true, Memory: 2048,
	})}
	addresses, err := cluster.Addresses(t.Context())
	must(t, err)
	r.run("ip link set lo up; ip link set eth0 up; ip address add 10.0.2.15/24 dev eth0")
	for _, a := range addresses {
		r.run(fmt.Sprintf("socat TCP-LISTEN:%d,bind=127.0.0.1,fork,reuseaddr TCP:10.0.2.2:%[1]d </dev/null >/dev/null 2>&1 &\n"+
			"until grep -q ':%04[1]X 00000000:0000 0A' /proc/net/tcp; do sleep 0.1; done", a.Port()))
	}
	r.run(fmt.Sprintf("mkdir -p /etc/ceph; printf '%%s\\n' '[global]' 'mon host = v1:%s' 'auth cluster required = none' "+
		"'auth service required = none' 'auth client required = none' >/etc/ceph/ceph.conf", cluster.Monitor()))
	return r
}

// mapImage has the kernel map an image, and gives the node.
func (r *rbd) mapImage(image string) string {
	r.t.Helper()
	return r.run("rbd map -o noudev " + image + " 2>/dev/null")
}

// mapped lists the devices that krbd has.
func (r *rbd) mapped() string {
	r.t.Helper()
	return r.run("cd /sys/bus/rbd/devices; echo *")
}

// sweepsIdle has the idle sweep unmap an unused device, and leave alone the one that the kubelet has mounted.
func (r *rbd) sweepsIdle(used, idle string) {
	r.t.Helper()
	r.run("mkdir -p " + globalMount + "; mount " + used + " " + globalMount)
	d := r.diagnose("-until 100s idle-device-op-set param.recover.system.idle_device.minimum_idle_seconds=1 param.recover.system.idle_device.limit=9")
	said := d.OperationResults["recover.system.idle_device.results"]
	if d.Phase != v1.DiagnosisSucceeded || !strings.HasPrefix(said, `["unmapped idle device `+idle+" (") || strings.Contains(said, used) {
		r.t.Errorf("the idle sweep: phase %q, results %s", d.Phase, said)
	}
	if got := r.mapped(); "/dev/rbd"+got != used {
		r.t.Errorf("krbd has the devices %q after the idle sweep, want %q alone", got, used)
	}
	r.run("umount " + globalMount)
}

// hold mounts an image as the kubelet does for a pod, has an exporter start with a copy of that, and ends the pod. It gives the
// exporter's process.
func (r *rbd) hold(node string) (pid string) {
	r.t.Helper()
	r.run(fmt.Sprintf("mkdir -p %[1]s %[2]s; mount %[3]s %[1]s; mount --bind %[1]s %[2]s; echo content >%[2]s/file", globalMount, podMount, node))
	pid = r.run("unshare --mount --propagation private prometheus-node-exporter --web.listen-address=127.0.0.1:9100 " +
		"--collector.disable-defaults --collector.filesystem </dev/null >/tmp/exporter 2>&1 & echo $!\n" +
		"until busybox wget -q -O /tmp/figures http://127.0.0.1:9100/metrics 2>/dev/null; do sleep 0.2; done\n" +
		"grep -q 'node_filesystem_size_bytes{device=\"" + node + "\"' /tmp/figures")
	if out, status := r.shell("kubediag holders " + node); status != 0 || !strings.Contains(out, "is in use, and not held") {
		r.t.Errorf("holders of a device in use: status %d\n%s", status, out)
	}
	r.run(fmt.Sprintf("umount %s; umount %s; rm -r %s", podMount, globalMount, podDir))
	if out, status := r.shell("rbd unmap -o noudev " + node); status != 16 || !strings.Contains(out, "rbd: unmap failed: (16) Device or resource busy") {
		r.t.Fatalf("rbd unmap of a held device: status %d\n%s", status, out)
	}
	r.wantHeld(node, pid)
	return pid
}

// wantHeld compares what kubediag holders says with what is so. The copy for the pod went with the directory that it was on.
func (r *rbd) wantHeld(node, pid string) {
	r.t.Helper()
	out, status := r.shell("kubediag holders -o json " + node)
	type holder struct {
		Kind, Command, MountPoint string
		PIDs                      []int
		Removable                 bool
	}
	var got struct {
		Device  struct{ Node, Kind, State string }
		Busy    bool
		Holders []holder
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		r.t.Fatalf("holders of a held device: status %d: %v\n%s", status, err, out)
	}
	want := got
	want.Device.Node, want.Device.Kind, want.Device.State, want.Busy = node, "krbd", "held", true
	want.Holders = []holder{{Kind: "mount", Command: "prometheus-node", MountPoint: globalMount, Removable: true}}
	if len(got.Holders) > 0 && fmt.Sprint(got.Holders[0].PIDs) == "["+pid+"]" {
		want.Holders[0].PIDs = got.Holders[0].PIDs
	}
	if diff := cmp.Diff(want, got); diff != "" || status != 1 {
		r.t.Errorf("holders of a held device: status %d (-want +got):\n%s", status, diff)
	}
}

// diagnose runs an OperationSet in the machine.
func (r *rbd) diagnose(args string) v1.DiagnosisStatus {
	r.t.Helper()
	var d v1.DiagnosisStatus
	if err := json.Unmarshal([]byte(r.run("diagnose "+args)), &d); err != nil {
		r.t.Fatal(err)
	}
	return d
}

// released has a Diagnosis of what rbd has said release the device, and rbd unmap it.
func (r *rbd) released(node, exporter string) {
	r.t.Helper()
	d := r.diagnose("held-device-op-set param.recover.system.held_device.detach=false 'param.diagnoser.system.held_device.message=" +
		"rbd: failed to unmap device " + node + ", error exit status 16, rbd output: rbd: unmap failed: (16) Device or resource busy'")
	said := d.OperationResults["recover.system.held_device.result"]
	if d.Outcome != v1.OutcomeHealed || !strings.HasPrefix(said, "released device "+node+": unmounted 1 copies") || !strings.Contains(said, "free, and left to its driver") {
		r.t.Errorf("outcome %q, result %q", d.Outcome, said)
	}
	if out, status := r.shell("kubediag holders " + node); status != 0 || !strings.Contains(out, "is free: no holder was found") {
		r.t.Errorf("holders of a device that was released: status %d\n%s", status, out)
	}
	r.run("rbd unmap -o noudev " + node)
	r.wantGone(exporter)
}

// detached has a Diagnosis that names nothing release the device and unmap it.
func (r *rbd) detached(node, exporter string) {
	r.t.Helper()
	d := r.diagnose("held-device-op-set")
	said := d.OperationResults["recover.system.held_device.result"]
	if d.Outcome != v1.OutcomeHealed || !strings.HasPrefix(said, "released device "+node+": unmounted 1 copies") || !strings.Contains(said, "it is detached") {
		r.t.Errorf("outcome %q, result %q", d.Outcome, said)
	}
	r.wantGone(exporter)
}

// wantGone checks that nothing is mapped any more, and that the exporter still works.
func (r *rbd) wantGone(exporter string) {
	r.t.Helper()
	if got := r.mapped(); got != "*" {
		r.t.Errorf("krbd has the devices %q still", got)
	}
	r.run("kill -0 " + exporter + " && busybox wget -q -O - http://127.0.0.1:9100/metrics | grep node_filesystem_size_bytes")
}
