// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/loopback"
)

// copyRole is a process in a mount namespace that is a copy of the test's, as a container with a hostPath of / has it.
// With an argument it has a file there open, and its mount lazily unmounted.
func copyRole(args []string, ready func(string)) error {
	if err := os.WriteFile("/proc/self/comm", []byte("exporter\x1b[2J"), 0); err != nil {
		return err
	}
	if len(args) > 0 {
		f, err := os.Open(filepath.Join(args[0], "lost+found"))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := systest.UnmountPath(args[0], true); err != nil {
			return err
		}
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// loopVolume is a loop device with an ext4 that a kubelet has mounted for a volume.
type loopVolume struct {
	scene *kubelettest.Scene
	blockdev.Device
	point string
}

func runTool(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// newLoopDevice binds an empty file to a loop device until the test ends. Every process that holds it must have ended
// by then.
func newLoopDevice(t testing.TB) blockdev.Device {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 32<<20))
	node := loopback.Attach(t, image, "--partscan")
	t.Cleanup(func() { loopback.Detach(t, node, image) })
	d, err := blockdev.Sys{}.Resolve(node)
	must(t, err)
	return d
}

func newLoopVolume(t testing.TB) loopVolume {
	t.Helper()
	p := loopVolume{scene: kubelettest.New(t), Device: newLoopDevice(t)}
	runTool(t, "mkfs.ext4", "-q", p.Node())
	p.point = filepath.Join(p.scene.Root, "plugins/kubernetes.io/local-volume/mounts/pv-1")
	must(t, os.MkdirAll(p.point, 0o755))
	must(t, sys.NewMount(p.Node(), p.point, "ext4", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(p.point, true) })
	return p
}

// runHolders runs the verb, and gives its report in JSON.
func (p loopVolume) runHolders(t *testing.T, args ...string) (holdersReport, error) {
	t.Helper()
	var r holdersReport
	err := p.runVerbInto(t, &r, args...)
	return r, err
}

// findAbandonedUse runs the verb without a device, and returns its report about this one.
func (p loopVolume) findAbandonedUse(t *testing.T) (deviceUse, bool) {
	t.Helper()
	var r abandonedReport
	if err := p.runVerbInto(t, &r); err != nil && !errors.Is(err, verb.ErrFaults) {
		t.Fatal(err)
	}
	if r.Looked.Passed.Mounts == 0 || r.Looked.Passed.Namespaces == 0 || r.Looked.Origin.KubeletRoot != p.scene.Root {
		t.Errorf("looked at %+v", r.Looked)
	}
	i := slices.IndexFunc(r.Devices, func(u deviceUse) bool { return u.Device.Name == p.Name })
	if i < 0 {
		return deviceUse{}, false
	}
	return r.Devices[i], true
}

func (p loopVolume) runVerbInto(t *testing.T, into any, args ...string) error {
	t.Helper()
	out, err := verbtest.Run(t, NewHoldersCommand(""), append([]string{"-o", "json", "--kubelet-root", p.scene.Root}, args...)...)
	if out != "" {
		must(t, json.Unmarshal([]byte(out), into))
	}
	return err
}

// awaitBusy waits until the device is busy or free. The kernel closes the files of a process a moment after its end.
func (p loopVolume) awaitBusy(t *testing.T, busy bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		is, err := blockdev.Sys{}.Busy(p.Device)
		must(t, err)
		if is == busy {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s busy: %t, want %t", p.Name, is, busy)
		}
	}
}

func TestHoldersOfAVolumeThatIsInUse(t *testing.T) {
	p := newLoopVolume(t)
	kerneltest.Start(t, "copy")
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(p.point, link))
	for spec, point := range map[string]string{
		p.Node(): "", p.Name: "", p.Number.String(): "", p.point: p.point, p.point + "/lost+found": p.point, link: p.point,
	} {
		r, err := p.runHolders(t, spec)
		must(t, err)
		if r.Device.State != stateInUse || !r.Busy || len(r.Device.InUseBy) == 0 || r.Device.Removable || r.Device.MountPoint != point {
			t.Errorf("%s: %+v, want it in use", spec, r.Device)
		}
		if len(r.Holders) != 2 || r.Device.Name != p.Name || r.Device.Number != p.Number.String() {
			t.Errorf("%s: %+v with %d holders, want both mounts", spec, r.Device, len(r.Holders))
		}
	}
	if u, there := p.findAbandonedUse(t); there {
		t.Errorf("left behind: %+v", u)
	}
}

// TestHoldersOfAMountInMemory names a mount that is on no device, and a path on it: its users are listed, and which of them keep it
// from being unmounted.
func TestHoldersOfAMountInMemory(t *testing.T) {
	p := loopVolume{scene: kubelettest.New(t)}
	point := filepath.Join(p.scene.Root, "pods/u/volumes/kubernetes.io~empty-dir/memory")
	must(t, os.MkdirAll(point, 0o755))
	must(t, sys.NewMount("memory", point, "tmpfs", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(point, true) })
	copied := kerneltest.Start(t, "copy")
	file, err := os.Create(filepath.Join(point, "file"))
	must(t, err)
	defer file.Close()
	for _, spec := range []string{point, file.Name()} {
		r, err := p.runHolders(t, spec)
		must(t, err)
		d := r.Device
		if d.State != stateInUse || d.Kind != "anonymous" || d.Node != "" || d.MountPoint != point || d.Removable || len(d.FileSystems) != 1 {
			t.Errorf("%s: %+v", spec, d)
		}
		var users []useHolder
		for _, h := range r.Holders {
			if h.Kind != "mount" {
				users = append(users, h)
			}
		}
		if len(r.Holders) != 3 || len(users) != 1 || users[0].Path != file.Name() || !users[0].Verdict.Blocks || users[0].MountPoint != point ||
			!slices.Contains(users[0].PIDs, os.Getpid()) || !slices.ContainsFunc(r.Holders, func(h useHolder) bool { return slices.Contains(h.PIDs, copied.PID) }) {
			t.Errorf("%s: holders %+v", spec, r.Holders)
		}
		text := r.reportText(terminal.Screen{})
		for _, part := range []string{"tmpfs (" + d.Number + ") is in use", "unmount    the kernel refuses to unmount it because of 1 user", "open file " + file.Name()} {
			if !strings.Contains(text, part) {
				t.Errorf("%q is not in\n%s", part, text)
			}
		}
	}
}

// TestHoldersOfWhatTheKubeletHadMounted names the path where the kubelet had a file system in memory, which a container still has.
func TestHoldersOfWhatTheKubeletHadMounted(t *testing.T) {
	p := loopVolume{scene: kubelettest.New(t)}
	point := filepath.Join(p.scene.Root, "plugins/kubernetes.io/csi/driver/0a/globalmount")
	must(t, os.MkdirAll(point, 0o755))
	must(t, sys.NewMount("memory", point, "tmpfs", ""))
	copied := kerneltest.Start(t, "copy")
	must(t, systest.UnmountPath(point, false))
	r, err := p.runHolders(t, point)
	if d := r.Device; !errors.Is(err, verb.ErrFaults) || d.State != stateHeld || d.Kind != "anonymous" || !d.Removable || len(r.Holders) != 1 {
		t.Fatalf("ends with %v: %+v", err, r)
	}
	if h := r.Holders[0]; h.Origin.HostPath != point || !slices.Equal(h.PIDs, []int{copied.PID}) || !h.Verdict.Removable {
		t.Errorf("holder %+v", h)
	}
	var all abandonedReport
	if err := p.runVerbInto(t, &all); !errors.Is(err, verb.ErrFaults) || !slices.ContainsFunc(all.Devices, func(u deviceUse) bool { return u.Device.Name == r.Device.Name }) {
		t.Errorf("with nothing named: %v, %+v", err, all.Devices)
	}
}

func TestHoldersOfACopy(t *testing.T) {
	p := newLoopVolume(t)
	copied := kerneltest.Start(t, "copy")
	must(t, systest.UnmountPath(p.point, false))
	ns, err := mountns.Of(copied.PID)
	must(t, err)
	r, err := p.runHolders(t, p.Node())
	if !errors.Is(err, verb.ErrFaults) || len(r.Holders) != 1 {
		t.Fatalf("ends with %v, %+v, want one holder", err, r)
	}
	h := r.Holders[0]
	want := useHolder{
		Kind: "mount", MountNamespace: ns.Inode, PIDs: []int{copied.PID}, Command: "exporter\x1b[2J", MountPoint: p.point,
		Mount: h.Mount, KeptBy: fmt.Sprintf("process %d", copied.PID), Origin: useOrigin{HostPath: p.point, Volume: "pv-1"},
		Verdict: useVerdict{Removable: true, Why: h.Verdict.Why},
	}
	if diff := cmp.Diff(want, h, cmp.AllowUnexported(useHolder{})); diff != "" {
		t.Errorf("holder (-want +got):\n%s", diff)
	}
	if m := h.Mount; m == nil || m.Device != p.Number.String() || m.FSType != "ext4" || m.Root != "/" || m.MountInfoID == 0 {
		t.Errorf("mount %+v", m)
	}
	if r.Device.State != stateHeld || !r.Busy || !r.Device.Removable || len(r.Hidden) > 0 || r.Looked.Passed.Mounts == 0 {
		t.Errorf("report %+v", r)
	}
	u, there := p.findAbandonedUse(t)
	if diff := cmp.Diff(r.Holders, u.Holders, cmp.AllowUnexported(useHolder{})); !there || diff != "" {
		t.Errorf("with no device named %t (-named +left):\n%s", there, diff)
	}
	scanned, err := scanJSON(t, nil, "--kubelet-root", p.scene.Root)
	if !errors.Is(err, verb.ErrFaults) || len(scanned.Faults) != 1 {
		t.Fatalf("scan ends with %v, %+v, want one fault", err, scanned)
	}
	f := scanned.Faults[0]
	if f.Code != fault.HeldDevice || f.Mount.Device != p.Number.String() || f.Mount.Namespace != ns.Inode || f.Volume != "pv-1" ||
		!strings.Contains(f.Holder, fmt.Sprint(copied.PID)) || scanned.Looked.Counts.DevicesElsewhere < 1 {
		t.Errorf("fault %+v, looked %+v", f, scanned.Looked)
	}
	copied.End()
	p.awaitBusy(t, false)
	if r, err := p.runHolders(t, p.Node()); err != nil || r.Device.State != stateFree || r.Busy || len(r.Holders) > 0 {
		t.Errorf("after its end: %v, %+v, want it free", err, r)
	}
	if scanned, err := scanJSON(t, nil, "--kubelet-root", p.scene.Root); err != nil {
		t.Errorf("after its end the scan finds %v, %+v", err, scanned.Faults)
	}
}

func TestHoldersOfWhatIsMountedNowhere(t *testing.T) {
	p := newLoopVolume(t)
	copier := kerneltest.Start(t, "copy", p.point)
	must(t, systest.UnmountPath(p.point, false))
	r, err := p.runHolders(t, p.Node())
	if !errors.Is(err, verb.ErrFaults) || len(r.Holders) != 1 {
		t.Fatalf("ends with %v, %+v, want one holder", err, r)
	}
	h := r.Holders[0]
	if h.Kind != "open file" || !slices.Equal(h.PIDs, []int{copier.PID}) || h.Path == "" || h.MountPoint != "" || h.Verdict.Removable || r.Device.Removable {
		t.Errorf("holder %+v", h)
	}
	if !r.Looked.Processes.Looked || r.Looked.Processes.Tasks == 0 {
		t.Errorf("looked at %+v, want the processes counted", r.Looked)
	}
	if _, there := p.findAbandonedUse(t); there {
		t.Error("what is mounted nowhere is among the devices that are mounted elsewhere")
	}
}

// TestHoldersOfAPartition has a mount that no kubelet has made.
func TestHoldersOfAPartition(t *testing.T) {
	p := newLoopVolume(t)
	disk := newLoopDevice(t)
	runTool(t, "addpart", disk.Node(), "1", "2048", "32768") // sectors
	part := disk.Name + "p1"
	if r, err := p.runHolders(t, part); err != nil || r.Device.State != stateFree || r.Device.Parent != disk.Name {
		t.Errorf("free partition: %v, %+v", err, r.Device)
	}
	runTool(t, "mkfs.ext4", "-q", "/dev/"+part)
	point := t.TempDir()
	must(t, sys.NewMount("/dev/"+part, point, "ext4", ""))
	copied := kerneltest.Start(t, "copy")
	for _, spec := range []string{part, disk.Name} {
		if r, err := p.runHolders(t, spec); err != nil || r.Device.State != stateInUse {
			t.Errorf("%s in use: %v, %+v", spec, err, r.Device)
		}
	}
	must(t, systest.UnmountPath(point, false))
	for _, spec := range []string{part, disk.Name} {
		r, err := p.runHolders(t, spec)
		if err != nil || r.Device.State != stateInUse || len(r.Holders) != 1 || r.Holders[0].Origin.HostPath != "" || r.Device.Removable {
			t.Errorf("%s mounted by somebody else: %v, %+v", spec, err, r)
		}
	}
	other := p
	other.Name = part
	if u, there := other.findAbandonedUse(t); !there || u.Device.State != stateInUse || u.Device.Removable {
		t.Errorf("with no device named: %t, %+v", there, u.Device)
	}
	if scanned, err := scanJSON(t, nil, "--kubelet-root", p.scene.Root); err != nil {
		t.Errorf("what was never the kubelet's is a fault: %v, %+v", err, scanned.Faults)
	}
	copied.End()
}

func TestHoldersOfSwap(t *testing.T) {
	p := newLoopVolume(t)
	swap := newLoopDevice(t)
	runTool(t, "mkswap", swap.Node())
	runTool(t, "swapon", swap.Node())
	t.Cleanup(func() { runTool(t, "swapoff", swap.Node()) })
	r, err := p.runHolders(t, swap.Name)
	must(t, err)
	if r.Device.State != stateInUse || !r.Busy || len(r.Holders) != 1 || r.Holders[0].Kind != "swap" {
		t.Errorf("report %+v, want it in use", r)
	}
}

func TestHoldersOfWhatIsNoDevice(t *testing.T) {
	loop := filepath.Join(t.TempDir(), "loop")
	must(t, os.Symlink(loop, loop))
	for spec, want := range map[string]string{
		"/dev/nosuch": "no such block device", "nosuch": "no such block device", "4095:1048575": "no such block device", "7:x": "want major:minor",
		loop: "too many levels of symbolic links", "/no/such": "no such file", "0:1048575": "no such block device", "a/b": "has a slash", "": "no path, name or number",
	} {
		if out, err := verbtest.Run(t, NewHoldersCommand(""), "--kubelet-root", t.TempDir(), spec); err == nil || errors.Is(err, verb.ErrFaults) || out != "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %q, want %q", spec, err, out, want)
		}
	}
}
