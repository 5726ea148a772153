// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

func TestMain(m *testing.M) {
	devicetest.Roles["release"] = releaseRole
	devicetest.Main(m)
}

var must = kerneltest.Must

// heldScene is a device that an exporter holds, and all that a recoverer needs.
type heldScene struct {
	*devicetest.Scene
	exporter *kerneltest.Actor
	healer   *ReleaseRecoverer
	request  processor.Request
}

func newReleaseScene(t *testing.T, image, mode string, args ...string) *heldScene {
	t.Helper()
	return newReleaseSceneOn(t, devicetest.New(t, image), mode, args...)
}

func newReleaseSceneOn(t *testing.T, s *devicetest.Scene, mode string, args ...string) *heldScene {
	t.Helper()
	w := &heldScene{Scene: s}
	if len(args) > 0 {
		args = []string{w.Global}
	}
	w.exporter = w.Container(mode, args...)
	w.Runtime.Of = devicetest.Exporter()
	w.UnmountOnHost()
	w.healer = &ReleaseRecoverer{Inspector: w.Inspector}
	w.request = processor.Request{Values: map[string]string{device.ParamDevice: w.Device.Node()}}
	return w
}

func (w *heldScene) planRelease(t *testing.T) repair.Part {
	t.Helper()
	plan := planWithoutOthers(t, w.healer, w.request)
	// On the way, the plan is written down and read again.
	text, err := json.Marshal(plan)
	must(t, err)
	plan = repair.Part{}
	must(t, json.Unmarshal(text, &plan))
	return plan
}

// planWithoutOthers plans again while a process that this test did not start has the device open: each scan on the machine opens the devices
// that it meets, for a moment.
func planWithoutOthers(t *testing.T, r repair.Family, request processor.Request) (plan repair.Part) {
	t.Helper()
	kerneltest.Await(t, "other programs to close the device", func() bool {
		var err error
		plan, err = r.Plan(t.Context(), request)
		must(t, err)
		for _, open := range rawOpen.FindAllStringSubmatch(plan.NotApplicable, -1) {
			_, rest, _ := strings.Cut(processStat(open[1]), ") ") // the state and the parent follow
			if own := strconv.Itoa(os.Getpid()); open[1] != own && !strings.HasPrefix(rest[min(len(rest), 1):], " "+own+" ") {
				return false
			}
		}
		return true
	})
	return plan
}

// processStat is empty for a process that has ended.
func processStat(pid string) string {
	text, _ := os.ReadFile("/proc/" + pid + "/stat")
	return string(text)
}

var rawOpen = regexp.MustCompile(`held by raw open "[^"]*" of process (\d+) `)

func (w *heldScene) applyPlan(t *testing.T, p repair.Part) []string {
	t.Helper()
	return processortest.ApplyAll(t, w.healer, w.request, p)
}

// isAttached reports whether the device has the same file as before. Another test may have its number by then.
func (w *heldScene) isAttached(t *testing.T) bool {
	t.Helper()
	was := device.Reference(w.Device)
	attached, err := w.Inspector.There(&was)
	must(t, err)
	return attached
}

// TestReleases has the copies of a loop device, and of file systems on no device, unmounted in the mount namespace that has them. The device is
// free then, and such a file system has ended.
func TestReleases(t *testing.T) {
	t.Run("device", func(t *testing.T) {
		w := newReleaseScene(t, "", "exporter")
		w.releaseAll(t, "device "+w.Device.Node(), "free, and left to its driver")
		if again := w.planRelease(t); w.Busy() || !strings.Contains(again.NotApplicable, "is free") {
			t.Errorf("busy %v, a second plan = %+v, want not applicable, as the device is free", w.Busy(), again)
		}
	})
	for fsType := range onNoDevice {
		t.Run(fsType, func(t *testing.T) {
			w := newFileSystemScene(t, fsType, "exporter")
			if usage := w.Left(); usage == nil || usage.Device != w.Device {
				t.Fatalf("left behind: %+v", usage)
			} else if found := device.Summarize([]*device.Usage{usage}).Findings; len(found) != 2 || found[0].Code != fault.HeldMount || found[0].Details.Repair != fault.Unmount {
				t.Errorf("findings %+v", found)
			}
			w.releaseAll(t, w.FSType+" file system "+w.Device.Name, "no more")
			if left := w.Left(); left != nil && left.HasCopies() {
				t.Errorf("left behind afterwards: %+v", left)
			}
		})
	}
}

// releaseAll releases what an exporter holds, however it is named, and says it once more.
func (w *heldScene) releaseAll(t *testing.T, subject, state string) {
	t.Helper()
	host := w.Mounts()
	want := []string{"Unmount /host" + w.Mount, "Unmount /host" + w.Global}
	for _, values := range []map[string]string{nil, {device.ParamPersistentVolume: devicetest.Volume}, w.request.Values} {
		w.request.Values = values
		if diff := cmp.Diff(want, processortest.Targets(w.planRelease(t))); diff != "" {
			t.Fatalf("plan for %q (-want +got):\n%s", values, diff)
		}
	}
	plan := w.planRelease(t)
	if w.Left() == nil {
		t.Error("planning changed something")
	}
	served := slices.IndexFunc(plan.Findings, func(f fault.Finding) bool { return f.Mount == *plan.Actions[0].Mount })
	if a := plan.Actions[0]; served < 0 || a.Loss != "nothing" || !strings.Contains(a.Safety, "it is a copy of the kubelet's former mount") || a.Mount.Namespace == 0 || a.Key() != plan.Findings[served].Key() {
		t.Errorf("action = %+v", a)
	}
	if diff := cmp.Diff([]string{"unmounted", "unmounted"}, w.applyPlan(t, plan)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	result, err := w.healer.Verify(t.Context(), w.request, plan)
	must(t, err)
	for _, part := range []string{"released " + subject, "2 copies", `container "node-exporter"`, "it is " + state, "every holder lives"} {
		if !strings.Contains(result.Values[keyReleaseResult], part) {
			t.Errorf("result %q does not say %q", result.Values[keyReleaseResult], part)
		}
	}
	if len(result.Findings) != 2 || !result.Findings[0].Healed || !result.Findings[1].Healed {
		t.Errorf("findings = %+v, want both healed", result.Findings)
	}
	if diff := cmp.Diff(host, w.Mounts()); diff != "" {
		t.Errorf("mounts of the host:\n%s", diff)
	}
	if _, err := mountns.Of(w.exporter.PID); err != nil {
		t.Errorf("the holder: %v", err)
	}
	if again := w.planRelease(t); again.NotApplicable == "" || len(again.Actions) != 0 {
		t.Errorf("a second plan = %+v, want not applicable", again)
	}
	// Everything is done already.
	if diff := cmp.Diff([]string{"was gone already", "was gone already"}, w.applyPlan(t, plan)); diff != "" {
		t.Errorf("messages of a second time (-want +got):\n%s", diff)
	}
	plan.Applied = []fault.Applied{{}, fault.AlreadySo("was gone already")}
	result, err = w.healer.Verify(t.Context(), w.request, plan)
	must(t, err)
	if text := result.Values[keyReleaseResult]; !strings.Contains(text, "unmounted 1 copies of its mounts, and found 1 gone already,") {
		t.Errorf("result %q claims what others did", text)
	}
}

func TestDetachesWhatTheKubeletsVolumesHave(t *testing.T) {
	for name, c := range map[string]struct {
		image, detach string
		want          bool
	}{
		"file of the kubelet's":          {"image", "", true},
		"file of the kubelet's, not now": {"image", "false", false},
		"other file":                     {"", "auto", false},
		"other file, asked for":          {"", "true", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReleaseScene(t, c.image, "exporter")
			w.request.Values[paramReleaseDetach] = c.detach
			plan := w.planRelease(t)
			if got := len(plan.Actions) == 3 && plan.Actions[2].Kind == fault.Detach; got != c.want {
				t.Fatalf("plan %q, detach %v", processortest.Targets(plan), c.want)
			}
			w.applyPlan(t, plan)
			result, err := w.healer.Verify(t.Context(), w.request, plan)
			must(t, err)
			_, err = blockdev.Sys{}.Backing(w.Device)
			if detached := errors.Is(err, blockdev.ErrNotAttached); detached != c.want {
				t.Errorf("detached %v, %v", detached, err)
			}
			if c.want && !strings.Contains(result.Values[keyReleaseResult], "it is detached") {
				t.Errorf("result %q", result.Values[keyReleaseResult])
			}
			for _, a := range plan.Actions {
				if done, err := w.healer.Apply(t.Context(), w.request, a); err != nil || !done.Already {
					t.Errorf("%s once more: %+v, %v", a.Kind, done, err)
				}
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		mode string
		args []string
		set  func(w *heldScene)
		why  string
	}{
		"the host mounts it": {"exporter", nil, func(w *heldScene) { w.MountOnHost() }, "in normal use"},
		"the pod is alive": {"exporter", nil, func(w *heldScene) {
			w.Runtime.Ready = []cri.Sandbox{{PodUID: devicetest.PodUID, Namespace: "default", Name: "db-0", Ready: true}}
		}, "pod default/db-0"},
		"mounted by the container": {"exporter", nil, func(w *heldScene) { w.Runtime.Of.Mounts = nil }, "has mounted it itself"},
		"in use":                   {"user", []string{""}, func(*heldScene) {}, "open file"},
		"another device":           {"exporter", nil, func(w *heldScene) { w.request.Values[device.ParamDevice] = "0:0" }, "there is no device"},
		"another volume":           {"exporter", nil, func(w *heldScene) { w.request.Values[device.ParamPersistentVolume] = "pvc-other" }, `"pvc-other"`},
		"another message": {"exporter", nil, func(w *heldScene) {
			w.request.Values = map[string]string{device.ParamMessage: "rbd: failed to unmap device /dev/rbd77, error exit status 16"}
		}, "nothing that is left behind"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReleaseScene(t, "", c.mode, c.args...)
			c.set(w)
			before := w.MountsOf(w.exporter.PID)
			p := w.planRelease(t)
			if len(p.Actions) != 0 || !strings.Contains(p.NotApplicable, c.why) {
				t.Errorf("plan %q, reason %q, want one that says %q", processortest.Targets(p), p.NotApplicable, c.why)
			}
			if diff := cmp.Diff(before, w.MountsOf(w.exporter.PID)); diff != "" || !w.Busy() {
				t.Errorf("mounts changed:\n%s", diff)
			}
		})
	}
}

// TestRefusesWhatHasChanged changes something between plan and act.
func TestRefusesWhatHasChanged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, w *heldScene)
		why    string
	}{
		"the host mounts it again": {func(_ *testing.T, w *heldScene) { w.MountOnHost() }, "own mount namespace has it mounted"},
		"the pod lives again": {func(_ *testing.T, w *heldScene) {
			w.Runtime.Ready = []cri.Sandbox{{PodUID: devicetest.PodUID, Ready: true}}
		}, "is alive"},
		"somebody uses it": {func(t *testing.T, w *heldScene) {
			f, err := mountns.Lookup(w.exporter.PID, "/host"+w.Mount)
			must(t, err)
			t.Cleanup(func() { f.Close() })
		}, "mount is in use"},
		"another holder": {func(_ *testing.T, w *heldScene) { w.Container("own", w.Device.Node()) }, "no copy of such a mount"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReleaseScene(t, "", "exporter")
			plan := w.planRelease(t)
			c.change(t, w)
			before := w.MountsOf(w.exporter.PID)
			_, err := w.healer.Apply(t.Context(), w.request, plan.Actions[0])
			if !processor.IsStalled(err) || !strings.Contains(err.Error(), c.why) {
				t.Errorf("error %v, want a stalled one with %q", err, c.why)
			}
			if diff := cmp.Diff(before, w.MountsOf(w.exporter.PID)); diff != "" {
				t.Errorf("mounts changed:\n%s", diff)
			}
			if _, err := w.healer.Verify(t.Context(), w.request, plan); !processor.IsStalled(err) {
				t.Errorf("verify: %v, want a stalled error", err)
			}
		})
	}
}

// TestRefusesForgedActions has Apply called with actions that no plan would hold.
func TestRefusesForgedActions(t *testing.T) {
	w := newReleaseScene(t, "", "exporter")
	bystander := devicetest.New(t, "")
	good, err := json.Marshal(w.planRelease(t).Actions[0])
	must(t, err)
	own, err := mountns.Table(w.exporter.PID)
	must(t, err)
	before, host := w.MountsOf(w.exporter.PID), w.Mounts()
	for name, change := range map[string]func(*fault.Action){
		"another kind":                func(a *fault.Action) { a.Kind = "Remove" },
		"no mount":                    func(a *fault.Action) { a.Mount = nil },
		"no device":                   func(a *fault.Action) { a.Mount.ID, a.Mount.Device = 1, "x" },
		"/host of the container":      func(a *fault.Action) { setOtherMount(t, a, own, "/host") },
		"the container's root":        func(a *fault.Action) { setOtherMount(t, a, own, "/") },
		"the host's mount":            func(a *fault.Action) { forgeHost(t, bystander, a) },
		"detach of another device":    func(a *fault.Action) { setDetach(a, device.Reference(bystander.Device)) },
		"detach of a held device":     func(a *fault.Action) { setDetach(a, device.Reference(w.Device)) },
		"detach of no device":         func(a *fault.Action) { a.Kind, a.Target = fault.Detach, device.DescribeTarget(w.Device) },
		"detach of a path":            func(a *fault.Action) { setDetach(a, fault.Device{Name: "../etc/passwd", Sequence: 1}) },
		"detach of a node":            func(a *fault.Action) { setDetach(a, fault.Device{Name: w.Device.Node(), Sequence: w.Device.Sequence}) },
		"detach of what is not known": func(a *fault.Action) { setDetach(a, fault.Device{Name: w.Device.Name}) },
	} {
		t.Run(name, func(t *testing.T) {
			var a fault.Action
			must(t, json.Unmarshal(good, &a))
			change(&a)
			w.request.Values[paramReleaseDetach] = "true"
			if done, err := w.healer.Apply(t.Context(), w.request, a); !done.Already && !processor.IsStalled(err) {
				t.Errorf("%+v, error %v, want a stalled error", done, err)
			}
			if diff := cmp.Diff(before, w.MountsOf(w.exporter.PID)); diff != "" {
				t.Errorf("mounts of the container:\n%s", diff)
			}
			if diff := cmp.Diff(host, w.Mounts()); diff != "" || !w.Busy() || !bystander.Busy() {
				t.Errorf("mounts of the host:\n%s", diff)
			}
		})
	}
}

// setDetach has an action detach a device.
func setDetach(a *fault.Action, d fault.Device) { a.Kind, a.Device = fault.Detach, &d }

// setOtherMount has an action mean another mount of the same container.
func setOtherMount(t *testing.T, a *fault.Action, table *mountinfo.Table, point string) {
	t.Helper()
	m, ok := table.Top(point)
	if !ok {
		t.Fatalf("nothing is mounted at %q", point)
	}
	a.Mount.ID, a.Mount.MountInfoID, a.Mount.ParentID = 0, m.ID, m.Parent
	a.Mount.Device, a.Mount.Root, a.Mount.Point = fmt.Sprintf("%d:%d", m.Major, m.Minor), m.Root, m.Point
}

// forgeHost has an action mean a mount of the host.
func forgeHost(t *testing.T, s *devicetest.Scene, a *fault.Action) {
	t.Helper()
	st, err := mount.Inspect(s.Global)
	must(t, err)
	self, err := mountns.Self()
	must(t, err)
	*a.Mount = faults.MountOfState(st, self.Inode)
}

// TestUnmapsKRBD: the image of an RBD volume, which its plugin would never try to unmap again.
func TestUnmapsKRBD(t *testing.T) {
	w := newReleaseScene(t, "", "exporter")
	k := devicetest.MapKRBD(t, w.Scene)
	rbd0, err := w.Inspector.Finder.Sys.Resolve("rbd0")
	must(t, err)
	w.request.Values = map[string]string{device.ParamMessage: unmapFailed}
	plan := w.planRelease(t)
	want := []string{"Unmount /host" + w.Mount, "Unmount /host" + w.Global, "Detach " + device.DescribeTarget(rbd0)}
	if diff := cmp.Diff(want, processortest.Targets(plan)); diff != "" {
		t.Fatalf("plan (-want +got):\n%s", diff)
	}
	if _, err := w.healer.Apply(t.Context(), w.request, plan.Actions[2]); !processor.IsStalled(err) || len(k.Unmapped) > 0 {
		t.Errorf("detach before the unmounts: %v, want a refusal", err)
	}
	w.applyPlan(t, plan)
	result, err := w.healer.Verify(t.Context(), w.request, plan)
	must(t, err)
	if len(k.Unmapped) != 1 || !strings.Contains(result.Values[keyReleaseResult], "it is detached") {
		t.Errorf("unmapped %q, result %q", k.Unmapped, result.Values[keyReleaseResult])
	}
}

// unmapFailed is a kubelet's line as people have it, cut short.
const unmapFailed = `E0708 09:50:14.407804 26508 nestedpendingoperations.go:267] Error: "UnmountDevice failed for volume ` +
	`\"pvc-9984bdab-9c79-11e9-b8ba-fa163ed7c802\" on node \"10.125.54.133\" : rbd: failed to unmap device /dev/rbd3, error exit status 16, ` +
	`rbd output: [114 98 100 58 32 115 121 115 102 115 32 119 114 105 116 101 32 102 97 105 108 101 100 10]"`

// TestResetsZram only where it is asked for, as that loses what is stored.
func TestResetsZram(t *testing.T) {
	w := newReleaseSceneOn(t, devicetest.NewZram(t), "exporter")
	if err := (blockdev.Sys{}).Detach(t.Context(), w.Device); !errors.Is(err, blockdev.ErrBusy) {
		t.Fatalf("reset of a held device: %v, want ErrBusy", err)
	}
	if p := w.planRelease(t); len(p.Actions) != 2 {
		t.Errorf("plan %q, want no detach that nobody asked for", processortest.Targets(p))
	}
	w.request.Values[paramReleaseDetach] = "true"
	plan := w.planRelease(t)
	if sys.HasDiskSequence.Probe() != nil {
		if len(plan.Actions) != 2 || !strings.Contains(fmt.Sprint(plan.Findings), "it is not detached: another device could take its name") {
			t.Errorf("plan = %+v, want that nothing is detached, and why", plan)
		}
		return
	}
	if len(plan.Actions) != 3 || plan.Actions[2].Kind != fault.Detach || !strings.Contains(plan.Actions[2].Loss, "memory") {
		t.Fatalf("plan = %+v, want a detach that says what is lost", plan)
	}
	w.applyPlan(t, plan)
	_, err := w.healer.Verify(t.Context(), w.request, plan)
	must(t, err)
	if err := (blockdev.Sys{}).Detach(t.Context(), w.Device); !errors.Is(err, blockdev.ErrNotAttached) && !errors.Is(err, blockdev.ErrChanged) {
		t.Errorf("reset once more: %v, want that it is done", err)
	}
}
