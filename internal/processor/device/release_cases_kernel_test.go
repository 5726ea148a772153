// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/test/holders"
)

// caseRoles begin with a copy of the kubelet's mounts, whose points are the arguments, and keep the device by them. The
// answer is the process that does.
var caseRoles = kerneltest.Roles{
	"keep":               withMountsKept(func([]string) error { return nil }),
	"keep covered":       withMountsKept(func(points []string) error { return sys.NewMount("cover", points[1], "tmpfs", "") }),
	"keep below a cover": withMountsKept(coverAbove),
	"keep chrooted":      withMountsKept(func([]string) error { return systest.Chroot("/usr") }),
	"keep moved":         withMountsKept(func(points []string) error { return kerneltest.MoveOverRoot(points[0]) }),
	"keep in a thread":   holders.InThread(makePrivate, nil),
	"keep a table":       holders.InThread(makePrivate, func() (*os.File, error) { return os.Open("/proc/thread-self/mountinfo") }),

	"leave a file":      unmountWhileUsed(holders.OpenFile),
	"leave a directory": unmountWhileUsed(func(dir string) (holders.Kept, error) { return holders.Kept{}, os.Chdir(dir) }),
	"leave a mapping":   unmountWhileUsed(holders.RunLibrary),
	"leave a tree":      unmountWhileUsed(holders.CloneTree),
	"leave an overlay":  unmountWhileUsed(holders.OverlayOn),
	"leave a loop":      unmountWhileUsed(holders.LoopOn),
	"leave a message":   unmountWhileUsed(holders.SendFile),
	"open the device":   openDevice,
}

func init() { maps.Copy(devicetest.Roles, caseRoles) } // TestMain hands these to the processes of the package

// withMountsKept keeps the mounts as they are, and does something else.
func withMountsKept(do func(points []string) error) holders.Role {
	return func(args []string, ready func(string)) error {
		if err := sys.SetPropagation("/", sys.Private, true); err != nil {
			return err
		}
		if err := do(args); err != nil {
			return err
		}
		return holders.Kept{}.Stay(ready)
	}
}

// coverAbove mounts something on a directory that is above the mounts.
func coverAbove(points []string) error {
	for dir := filepath.Dir(points[0]); ; dir = filepath.Dir(dir) {
		if strings.HasPrefix(points[1], dir+"/") {
			return sys.NewMount("cover", dir, "tmpfs", "")
		}
	}
}

// makePrivate keeps the copy to itself.
func makePrivate([]string) error { return sys.SetPropagation("/", sys.Private, true) }

// unmountWhileUsed uses the file system and gives up its mounts.
func unmountWhileUsed(use func(dir string) (holders.Kept, error)) holders.Role {
	return func(args []string, ready func(string)) error {
		if err := sys.SetPropagation("/", sys.Private, true); err != nil {
			return err
		}
		k, err := use(args[1])
		if err != nil {
			return err
		}
		for _, point := range args[:2] {
			if err := systest.UnmountPath(point, true); err != nil {
				return err
			}
		}
		return k.Stay(ready)
	}
}

// openDevice has the device itself open, which is the third argument.
func openDevice(args []string, ready func(string)) error {
	return unmountWhileUsed(func(string) (holders.Kept, error) {
		f, err := os.Open(args[2])
		return holders.Kept{End: f.Close}, err
	})(args, ready)
}

// situation is a way to hold a device that the kubelet no longer mounts.
type situation struct {
	hold func(t *testing.T, w *heldScene) (pid int) // 0: none
	// refused is in what the plan says where it has no action. Empty: it is released.
	refused string
	free    bool // the kernel does not call it busy
	// walkOnly is whether only the walk over all mount namespaces finds the holder. It is left alone on other kernels.
	walkOnly bool
}

// withRole has a process with a mount namespace of its own play a role.
func withRole(role string) func(*testing.T, *heldScene) int {
	return withAttr(sys.PrivateMounts(sys.Clone{}), role)
}

// withAttr has a process made with attr play a role; nil leaves it in the host's namespace.
func withAttr(attr *sys.ProcAttr, role string) func(*testing.T, *heldScene) int {
	return func(t *testing.T, w *heldScene) int {
		t.Helper()
		w.exporter = kerneltest.StartWith(t, attr, role, w.Global, w.Mount, w.Device.Node())
		pid, err := strconv.Atoi(w.exporter.Answer)
		must(t, err)
		return pid
	}
}

func inContainer(_ *testing.T, w *heldScene) int {
	w.exporter = w.Container("exporter")
	w.Runtime.Of = devicetest.Exporter()
	return w.exporter.PID
}

func noHolder(_ *testing.T, w *heldScene) int { return w.Orphan().PID }

// boundNamespace has a namespace be bound to a file.
func boundNamespace(t *testing.T, w *heldScene) int {
	file := filepath.Join(t.TempDir(), "namespace")
	must(t, os.WriteFile(file, nil, 0o600))
	kerneltest.BindNamespace(t, file, w.Daemon)
	return 0
}

// swapOnDevice has the kernel swap to the device, once nothing mounts it.
func swapOnDevice(t *testing.T, w *heldScene) int {
	w.UnmountOnHost()
	for _, program := range [][]string{{"mkswap", "--force"}, {"swapon"}} {
		out, err := exec.Command(program[0], append(program[1:], w.Device.Node())...).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", program, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("swapoff", w.Device.Node()).CombinedOutput(); err != nil {
			t.Errorf("swapoff: %v: %s", err, out)
		}
	})
	return 0
}

var holderSituations = map[string]situation{
	"own namespace":                   {hold: withRole("keep")},
	"after pivot_root":                {hold: inContainer},
	"namespace of one thread":         {hold: withAttr(nil, "keep in a thread")},
	"outside a chroot":                {hold: withRole("keep chrooted")},
	"namespace kept by a bind":        {hold: boundNamespace},
	"namespace kept by a descriptor":  {hold: noHolder},
	"namespace kept by a mount table": {hold: withAttr(nil, "keep a table"), walkOnly: true},
	// An unmount would first take away what a process has mounted on it.
	"covered": {hold: withRole("keep covered"), refused: "another file system is mounted on it"},
	// No path of the namespace leads to it, and umount2 knows nothing but paths.
	"covered above":               {hold: withRole("keep below a cover"), refused: "another mount hides it"},
	"below a root that was moved": {hold: withRole("keep moved"), refused: "stays: ", walkOnly: true},
	// The kernel locks what a namespace of fewer rights has inherited, and nothing is tried there.
	"child user namespace": {
		hold: withAttr(sys.PrivateMounts(sys.Clone{User: true}), "keep"), refused: "a workload has made that mount namespace for itself",
	},

	// A person must end a holder that is no mount.
	"open file":            {hold: withRole("leave a file"), refused: `held by open file "/file" of process`},
	"working directory":    {hold: withRole("leave a directory"), refused: `held by working directory "/" of process`},
	"mapping":              {hold: withRole("leave a mapping"), refused: `held by mapping "/library" of process`},
	"detached tree":        {hold: withRole("leave a tree"), refused: `held by detached mount "/" of process`},
	"overlay":              {hold: withRole("leave an overlay"), refused: "what holds it is not proven: perhaps overlay layer"},
	"loop device":          {hold: withRole("leave a loop"), refused: "held by loop device"},
	"descriptor in flight": {hold: withRole("leave a message"), refused: "its holder hidden: it may be a descriptor on its way"},
	"raw open":             {hold: withRole("open the device"), refused: "held by raw open", free: true},
	"swap":                 {hold: swapOnDevice, refused: "held by swap"},
}

// TestEveryHolding builds each for real: it is released, or left alone with the reason, and its holder lives.
func TestEveryHolding(t *testing.T) {
	walks := sys.HasNamespaceWalk.Probe() == nil
	for name, c := range holderSituations {
		t.Run(name, func(t *testing.T) {
			if c.walkOnly && !walks {
				c.refused = "its holder hidden"
			}
			w := &heldScene{Scene: devicetest.New(t, "")}
			w.healer = &ReleaseRecoverer{Inspector: w.Inspector}
			w.request = processor.Request{Values: map[string]string{device.ParamDevice: w.Device.Node()}}
			pid := c.hold(t, w)
			if name != "swap" { // which takes the place of the file system
				w.UnmountOnHost()
			}
			if w.Busy() == c.free {
				t.Fatalf("busy %v", w.Busy())
			}
			held := holderNamespaces(t, w)
			before, host := otherMountsIn(t, w, held), w.Mounts()
			c.repairDevice(t, w)
			if diff := cmp.Diff(before, otherMountsIn(t, w, held)); diff != "" {
				t.Errorf("other mounts where the device was held:\n%s", diff)
			}
			if diff := cmp.Diff(host, w.Mounts()); diff != "" {
				t.Errorf("mounts of the host:\n%s", diff)
			}
			if pid != 0 {
				expectAlive(t, pid)
			}
		})
	}
}

// repairDevice makes a plan and does it.
func (c situation) repairDevice(t *testing.T, w *heldScene) {
	t.Helper()
	if c.refused != "" {
		var plan repair.Part
		says := func() bool {
			plan = w.planRelease(t)
			return len(plan.Actions) == 0 && strings.Contains(plan.NotApplicable, c.refused)
		}
		if !says() { // an overlay of another test of the machine may have a layer there, as far as can be seen
			t.Logf("plan %q, reason %q", processortest.Targets(plan), plan.NotApplicable)
			kerneltest.Await(t, fmt.Sprintf("a plan with the reason %q", c.refused), says)
		}
		if w.Busy() == c.free {
			t.Error("planning released it")
		}
		return
	}
	plan := w.planRelease(t)
	if len(plan.Actions) != 2 {
		t.Fatalf("plan %q, reason %q, want both copies to go", processortest.Targets(plan), plan.NotApplicable)
	}
	if diff := cmp.Diff([]string{"unmounted", "unmounted"}, w.applyPlan(t, plan)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	result, err := w.healer.Verify(t.Context(), w.request, plan)
	must(t, err)
	if text := result.Values[keyReleaseResult]; !strings.Contains(text, "free, and left to its driver") || w.Busy() {
		t.Errorf("result %q, busy %v", text, w.Busy())
	}
}

// holderNamespaces are the mount namespaces that have the device mounted.
func holderNamespaces(t *testing.T, w *heldScene) map[uint64]bool {
	t.Helper()
	mounts, _, err := (*mountns.Pass)(nil).MatchingMounts(func(b *mountns.MountBrief) bool {
		return b.Major == w.Device.Major && b.Minor == w.Device.Minor
	})
	must(t, err)
	all := map[uint64]bool{}
	for _, m := range mounts {
		all[m.Namespace.Inode] = true
	}
	return all
}

// otherMountsIn lists the mounts in these namespaces that are of anything else, also those that no path leads to.
func otherMountsIn(t *testing.T, w *heldScene, spaces map[uint64]bool) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	mounts, _, err := (*mountns.Pass)(nil).MatchingMounts(func(b *mountns.MountBrief) bool {
		return b.Major != w.Device.Major || b.Minor != w.Device.Minor
	})
	must(t, err)
	for _, m := range mounts {
		if spaces[m.Namespace.Inode] {
			all[fmt.Sprintf("%d on %d at %q of %s", m.ID, m.Parent, m.Point, m.Namespace)] = true
		}
	}
	if len(spaces) > 0 && len(all) == 0 {
		t.Error("no other mount was found")
	}
	return all
}

func expectAlive(t *testing.T, pid int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || strings.Contains(string(stat), ") Z ") {
		t.Errorf("holder %d did not live through it: %q, %v", pid, stat, err)
	}
}
