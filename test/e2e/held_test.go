// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/cluster"
)

// heldSamples is the file with the Operations and the OperationSet for devices that are held.
const heldSamples = "../../config/operations/held-device.yaml"

// TestHeldDevice has Debian's node exporter keep the disks of pods that are gone. The node has mounts of its own, and no other
// cluster runs beside it: who copies the machine's mounts, or has its root, would keep the disks as well.
func TestHeldDevice(t *testing.T) {
	for _, version := range []string{cluster.Kubernetes118, cluster.Kubernetes137} {
		t.Run("kubelet "+version, func(t *testing.T) {
			h := &heldDisk{env: start(t, cluster.Options{Kubelet: version, OwnMounts: true})}
			must(t, h.LoadExporter(t.Context()))
			h.Kubectl(t, "", "apply", "-f", heldSamples)
			h.add(t)
			h.foundByDevice(t)
			h.foundByMessage(t)
			h.heldNoMore(t)
		})
	}
}

// foundByDevice releases the disk that a Diagnosis names by its device. Until the pod is deleted, nothing is done to it.
func (h *heldDisk) foundByDevice(t *testing.T) {
	h.startWriter(t, "writer-1", "")
	x := h.startExporter(t, "exporter-1", "/")
	used, before := h.tableOfExporter(t, x), h.mounts(t)
	d := h.diagnose(t, "in-use", map[string]string{paramDevice: h.device})
	checkEnd(t, d, v1.DiagnosisFailed, v1.OutcomeNoFault)
	if diff := cmp.Diff(used, h.tableOfExporter(t, x)); diff != "" {
		t.Errorf("mounts of the exporter (-before +after):\n%s", diff)
	}
	h.checkOtherMounts(t, before, func(string) bool { return false })
	if _, status := h.holders(t); status != 0 {
		t.Errorf("of a disk in use: kubediag holders ends with status %d", status)
	}
	h.deleteWriter(t, "writer-1")
	h.checkHeld(t, x)

	before = h.mounts(t)
	d = h.diagnose(t, "by-device", map[string]string{paramDevice: h.device})
	h.checkReleased(t, d, x)
	h.checkOtherMounts(t, before, func(string) bool { return false })
	h.releaseMountPoint(t)
	h.bystander = x
}

// foundByMessage releases the disk that a line of a kubelet's log names, the older one's way, and detaches it as well.
func (h *heldDisk) foundByMessage(t *testing.T) {
	h.startWriter(t, "writer-2", "writer-1\n")
	x := h.startExporter(t, "exporter-2", h.KubeletRoot())
	h.deleteWriter(t, "writer-2")
	h.checkHeld(t, x)

	line := fmt.Sprintf(`E0708 09:50:14.407804   26508 nestedpendingoperations.go:267] Operation for "\"kubernetes.io/rbd/k8s:disk\"" `+
		`failed. No retries permitted until 2019-07-08 09:50:14.907753132 +0800 CST (durationBeforeRetry 500ms). Error: `+
		`"UnmountDevice failed for volume \"disk\" (UniqueName: \"kubernetes.io/rbd/k8s:disk\") on node \"%s\" : rbd: failed to unmap `+
		`device %s, error exit status 16, rbd output: %v"`, h.NodeName(), h.device,
		[]byte("rbd: sysfs write failed\nrbd: unmap failed: (16) Device or resource busy\n"))
	d := h.diagnose(t, "by-message", map[string]string{paramMessage: line, paramDetach: "true"})
	h.checkReleased(t, d, x)
	if over := h.loopFile(t); over == h.image {
		t.Errorf("the loop device is over %q still", over)
	}
	// Another program of the machine may have the device by now, for a while.
	apitest.Eventually(t, func() error {
		out, err := exec.CommandContext(t.Context(), "losetup", h.device, h.image).CombinedOutput()
		if err != nil {
			return fmt.Errorf("losetup %s %s: %w\n%s", h.device, h.image, err, out)
		}
		return nil
	})
	h.releaseMountPoint(t)
	h.startWriter(t, "writer-3", "writer-1\nwriter-2\n")
	h.deleteWriter(t, "writer-3")
	h.releaseMountPoint(t)
}

// heldNoMore gives the exporter what the Diagnosis advises. It can be given because the kubelet's root is a shared mount,
// which / need not be.
func (h *heldDisk) heldNoMore(t *testing.T) {
	h.startWriter(t, "writer-4", "writer-1\nwriter-2\nwriter-3\n")
	h.Kubectl(t, "", "patch", "-n", "default", "daemonset/exporter-2", "--patch", h.patch)
	h.Kubectl(t, "", "rollout", "status", "-n", "default", "daemonset/exporter-2", "--timeout=2m")
	x := h.awaitExporter(t, "exporter-2", h.KubeletRoot())
	h.deleteWriter(t, "writer-4")
	if got := h.copies(t, x); len(got) != 0 {
		t.Errorf("the exporter has kept the disk at %q", got)
	}
	h.awaitFree(t)
	if report, status := h.holders(t); status != 0 || report.Busy {
		t.Errorf("of a free disk: kubediag holders ends with status %d: %+v", status, report)
	}
}

const (
	paramDevice  = "param.diagnoser.system.held_device.device"
	paramMessage = "param.diagnoser.system.held_device.message"
	paramDetach  = "param.recover.system.held_device.detach"
)

// diagnose runs the OperationSet of the samples to its end.
func (h *heldDisk) diagnose(t *testing.T, name string, parameters map[string]string) *v1.Diagnosis {
	t.Helper()
	d := diagnosisOf("default", name, "held-device-op-set", h.NodeName(), nil)
	d.Spec.Parameters = parameters
	return h.runDiagnosis(t, d)
}

// checkHeld shows that nothing but the exporter's copy of the mount for the node holds the disk, and that kubediag
// says so. The copy of the mount for the pod went with the directory that it was on.
func (h *heldDisk) checkHeld(t *testing.T, x *exporter) {
	t.Helper()
	h.checkBystander(t)
	if got, want := h.copies(t, x), []string{x.sees(h.mountPoint())}; !slices.Equal(got, want) || !h.busy(t) {
		t.Fatalf("the exporter has the disk at %q, not %q, or it is free", got, want)
	}
	if !h.exports(t, x) {
		t.Error("the exporter exports no figures of the disk")
	}
	report, status := h.holders(t)
	want := holdersReport{Device: heldDevice{h.device, "held"}, Busy: true, Holders: []heldBy{h.holding(x, "")}, Hidden: []string{}}
	if diff := cmp.Diff(want, report, cmpopts.IgnoreUnexported(holdersReport{})); diff != "" || status != 1 {
		t.Errorf("kubediag holders ends with status %d (-want +got):\n%s\nIt says:\n%s", status, diff, report.raw)
	}
}

// holding is what kubediag reports of an exporter that holds the disk. Without the API server it does not know how the volume
// is called.
func (h *heldDisk) holding(x *exporter, volume string) heldBy {
	by := heldBy{Kind: "mount", PIDs: []int{x.pid}, MountPoint: x.sees(h.mountPoint()), Container: "node-exporter", Patch: advice}
	by.Pod.Namespace, by.Pod.Name = "default", x.pod.Name
	by.VolumeMount.HostPath, by.VolumeMount.MountPath, by.VolumeMount.MountPropagation = x.root, "/host", "None"
	if volume != "" {
		by.VolumeMount.Name, by.Patch = volume, advice+"          name: "+volume+"\n"
	}
	by.Patch = h.caveat(x.root) + by.Patch
	return by
}

// caveat is what has to be said where the mount that the exporter is to follow is private.
func (h *heldDisk) caveat(root string) string {
	table, err := mountns.Table(h.KubeletPID())
	if err != nil {
		return err.Error()
	}
	m, ok := table.On(root)
	if !ok || m.Shared != 0 || m.Master != 0 {
		return ""
	}
	return fmt.Sprintf("# The mount at %q is private on this node: make it shared first (mount --make-rshared), or name the kubelet's root\n"+
		"# directory as hostPath, which is shared; else the container does not start.\n", m.Point)
}

// advice is the patch for the exporter.
const advice = `spec:
  template:
    spec:
      containers:
      - name: node-exporter
        volumeMounts:
        - mountPath: /host
          mountPropagation: HostToContainer
`

// checkReleased compares the end of a Diagnosis with what is true: the disk is free, and the exporter as it was but for
// the one mount.
func (h *heldDisk) checkReleased(t *testing.T, d *v1.Diagnosis, x *exporter) {
	t.Helper()
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != v1.OutcomeHealed {
		t.Fatalf("phase %q, outcome %q", d.Status.Phase, d.Status.Outcome)
	}
	var reports []holdersReport
	must(t, json.Unmarshal([]byte(d.Status.OperationResults["diagnoser.system.held_device.holders"]), &reports))
	want := h.holding(x, "root")
	if len(reports) != 1 || len(reports[0].Holders) != 1 || !cmp.Equal(reports[0].Holders[0], want) {
		t.Errorf("the Diagnosis reports %+v, not %+v", reports, want)
	}
	if got := d.Status.OperationResults["diagnoser.system.held_device.device"]; got != h.device {
		t.Errorf("the Diagnosis names device %q", got)
	}
	h.patch = d.Status.OperationResults["diagnoser.system.held_device.patch"]
	if h.patch != want.Patch {
		t.Errorf("the Diagnosis advises %q", h.patch)
	}
	t.Logf("the Diagnosis says: %s; %s", d.Status.OperationResults["diagnoser.system.held_device.result"],
		d.Status.OperationResults["recover.system.held_device.result"])
	h.awaitFree(t)
	if h.exports(t, x) {
		t.Error("the disk is still in the figures of the exporter")
	}
	h.checkUntouched(t, x)
	h.checkBystander(t)
	apitest.Eventually(t, func() error { // another program of the machine may take a device that was detached, for a while
		if report, status := h.holders(t); status != 0 || report.Busy || len(report.Holders) > 0 {
			return fmt.Errorf("of a free disk: kubediag holders ends with status %d: %+v", status, report)
		}
		return nil
	})
}

// checkUntouched shows that an exporter runs as it did and has all of its mounts but the one of the disk.
func (h *heldDisk) checkUntouched(t *testing.T, x *exporter) {
	t.Helper()
	now := h.podOf(t.Context(), x.pod.Labels["app"])
	if now == nil || now.UID != x.pod.UID || !running(now) ||
		now.Status.ContainerStatuses[0].ContainerID != x.pod.Status.ContainerStatuses[0].ContainerID ||
		now.Status.ContainerStatuses[0].RestartCount != x.pod.Status.ContainerStatuses[0].RestartCount {
		t.Errorf("the exporter is not as it was: %+v", now)
	}
	left := slices.DeleteFunc(slices.Clone(x.table), func(m mountLine) bool { return m.Number == h.number })
	// Other mount points on the host may be removed, which takes the copies that are on them away; nothing else may go.
	got := h.tableOfExporter(t, x)
	if gone := slices.DeleteFunc(left, func(m mountLine) bool { return slices.Contains(got, m) || h.removed(x, m) }); len(gone) > 0 {
		t.Errorf("the exporter has lost %+v", gone)
	}
	if come := slices.DeleteFunc(got, func(m mountLine) bool { return slices.Contains(x.table, m) && m.Number != h.number }); len(come) > 0 {
		t.Errorf("the exporter has got %+v", come)
	}
}

// tableOfExporter is the mount table of an exporter, without its copies of what others have mounted on this machine.
func (h *heldDisk) tableOfExporter(t *testing.T, x *exporter) []mountLine {
	t.Helper()
	return slices.DeleteFunc(tableOf(t, x.pid), func(m mountLine) bool {
		below, ok := strings.CutPrefix(m.Point, "/host/")
		return ok && m.Number != h.number && !strings.HasPrefix(filepath.Join(x.root, below), h.Dir()+"/")
	})
}

// removed reports whether the directory of the node is gone that one of the exporter's mounts was on.
func (h *heldDisk) removed(x *exporter, m mountLine) bool {
	below, ok := strings.CutPrefix(m.Point, "/host/")
	name := filepath.Join(x.root, below)
	_, err := os.Lstat(name)
	return ok && strings.HasPrefix(name, h.Dir()+"/") && os.IsNotExist(err)
}

// checkBystander shows that the first exporter is as it was while others held the disk.
func (h *heldDisk) checkBystander(t *testing.T) {
	t.Helper()
	if h.bystander != nil {
		h.checkUntouched(t, h.bystander)
	}
}

// holdersReport is what the tests read of what kubediag holders writes, and of the document in a Diagnosis.
type holdersReport struct {
	Device  heldDevice
	Busy    bool
	Holders []heldBy
	Hidden  []string
	Looked  looked

	raw string
}

// looked is an object with more in it, or, in a Diagnosis, a sentence.
type looked struct{ NameErrors []string }

func (l *looked) UnmarshalJSON(text []byte) error {
	type object looked
	return decodeObject(text, (*object)(l), new(string))
}

// heldDevice is an object with a name and more, or, in a Diagnosis, the name.
type heldDevice struct{ Node, State string }

func (d *heldDevice) UnmarshalJSON(text []byte) error {
	type object heldDevice
	return decodeObject(text, (*object)(d), &d.Node)
}

// decodeObject decodes what is an object in one report and a text in the other.
func decodeObject(text []byte, object any, otherwise *string) error {
	if json.Unmarshal(text, otherwise) == nil {
		return nil
	}
	return json.Unmarshal(text, object)
}

type heldBy struct {
	Kind        string
	PIDs        []int
	MountPoint  string
	Pod         struct{ Namespace, Name string }
	Container   string
	VolumeMount struct{ Name, HostPath, MountPath, MountPropagation string }
	Patch       string
}

// holders runs kubediag holders on the node and gives its report and exit status. If the runtime is too busy to give
// the names in time, the report says so, and it is run again; so it is if there is no report, since another program of the machine may have the
// device for a moment.
func (h *heldDisk) holders(t *testing.T) (report holdersReport, status int) {
	t.Helper()
	h.Wait(t, "kubediag holders to know all names", func(ctx context.Context) bool {
		cmd := h.onNode(ctx, t, "holders", h.device, "-o", "json")
		out, err := cmd.Output()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		report, status = holdersReport{raw: string(out)}, cmd.ProcessState.ExitCode()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(out) == 0 {
			t.Logf("kubediag holders ends with status %d: %s", status, exit.Stderr)
			return false
		}
		must(t, json.Unmarshal(out, &report))
		for _, missing := range report.Looked.NameErrors {
			t.Log("kubediag holders says: ", missing)
		}
		return len(report.Looked.NameErrors) == 0
	})
	return report, status
}

// mountPoint is where the kubelet mounts the disk for the node.
func (h *heldDisk) mountPoint() string {
	return filepath.Join(h.KubeletRoot(), "plugins/kubernetes.io/local-volume/mounts/disk")
}
