// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/processor/processortest"
)

// deadVolumes is a node on which all volumes are dead. repair decides the result of each repair.
type deadVolumes struct {
	Observer
	volumes     []*volume.Health
	repair      func(a fault.Action) error
	applied     map[string]int // by mount point
	looks       [][]string     // the pods of each look before or after repairs
	applyResult fault.Applied  // the result of each repair
	pod         corev1.Pod
	silent      bool
	err         error // of the next scans

	found, repaired int // notifications
	trouble         []string
}

func newDeadVolumes(many int) *deadVolumes {
	d := &deadVolumes{applied: map[string]int{}}
	for i := range many {
		v := &volume.Health{Verdict: volume.Verdict{Code: fault.DisconnectedFUSE}}
		v.Evidence.Pod, v.Evidence.Name = fault.Pod{UID: "uid"}, fmt.Sprint("v", i)
		v.Evidence.Mount = mountns.Mount{Unique: uint64(i + 1), Mount: mountinfo.Mount{ID: i + 1, Point: fmt.Sprint("/", i)}}
		d.volumes = append(d.volumes, v)
	}
	return d
}

func (d *deadVolumes) Inspect(context.Context, mountstate.Scope) (*volume.Survey, error) {
	return &volume.Survey{Volumes: d.volumes, Silent: d.silent}, d.err
}

func (d *deadVolumes) Plan(_ context.Context, v *volume.Health, _ volume.PlanOptions) ([]fault.Action, []string, error) {
	a := fault.Action{Kind: fault.Replace, Mount: &v.Findings()[0].Mount, Pod: &v.Evidence.Pod, For: []fault.Key{v.Findings()[0].Key()}, Lossless: true}
	return []fault.Action{a}, nil, nil
}

func (d *deadVolumes) Open(podUIDs ...string) func(context.Context, fault.Action) (fault.Applied, error) {
	d.looks = append(d.looks, podUIDs)
	return func(_ context.Context, a fault.Action) (fault.Applied, error) {
		d.applied[a.Mount.Point]++
		err := d.repair(a)
		return d.applyResult, err
	}
}

func (d *deadVolumes) Verify(_ context.Context, actions []fault.Action) (volume.Proof, error) {
	var uids []string
	for _, a := range actions {
		uids = append(uids, a.Pod.UID)
	}
	d.looks = append(d.looks, uids)
	return volume.Proof{Healed: true, Evidence: make([]string, len(actions))}, nil
}

func (d *deadVolumes) totalRepairs() (n int) {
	for _, times := range d.applied {
		n += times
	}
	return n
}

func (d *deadVolumes) PodByUID(string) *corev1.Pod        { return &d.pod }
func (d *deadVolumes) Found(fault.Finding, time.Duration) { d.found++ }
func (d *deadVolumes) Repaired(Repair)                    { d.repaired++ }
func (d *deadVolumes) Begin(Repair) error                 { return nil }
func (d *deadVolumes) Left(Repair)                        {}
func (d *deadVolumes) Trouble(err error)                  { d.trouble = append(d.trouble, err.Error()) }
func (d *deadVolumes) watcher() *volumeWatcher {
	return newVolumeWatcher(&Sentinel{Mode: Automatic, Guard: always{Automatic}, Pods: d, Observer: d, Volumes: d})
}
func (d *deadVolumes) remove(a fault.Action, volumes []*volume.Health) {
	for i, v := range volumes {
		if v.Evidence.Mount.Point == a.Mount.Point {
			v.Verdict.Code = ""
			d.volumes = append(volumes[:i:i], volumes[i+1:]...)
			return
		}
	}
}

// TestRepairsLeaveTimeForPolls: the watcher polls connections between a thousand repairs, and repairs each volume once.
func TestRepairsLeaveTimeForPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, each = 1000, 60 * time.Millisecond
		d := newDeadVolumes(many)
		d.repair = func(a fault.Action) error {
			time.Sleep(each)
			d.remove(a, d.volumes)
			return nil
		}
		watcher := d.watcher()
		began := time.Now()
		if err := watcher.scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		longest := time.Since(began)
		for !watcher.repairs.empty() {
			began = time.Now()
			watcher.repairNext(t.Context())
			longest = max(longest, time.Since(began))
		}
		if longest > minRepairTime+each || d.totalRepairs() != many || len(d.applied) != many {
			t.Errorf("%d repairs of %d places, up to %s without a poll of connections", d.totalRepairs(), len(d.applied), longest)
		}
	})
}

// judgedVolumes is deadVolumes whose proofs are given.
type judgedVolumes struct {
	*deadVolumes
	proofs []volume.Proof // none left: the volumes cannot be looked at
	begun  int
	left   []string // mount points
	proven []string
}

func (j *judgedVolumes) Verify(context.Context, []fault.Action) (volume.Proof, error) {
	if len(j.proofs) == 0 {
		return volume.Proof{}, errors.New("no kubelet")
	}
	proof := j.proofs[0]
	j.proofs = j.proofs[1:]
	return proof, nil
}

func (j *judgedVolumes) Begin(Repair) error {
	j.begun++
	return errors.New("disk is full")
}
func (j *judgedVolumes) Left(r Repair) { j.left = append(j.left, r.Action.Mount.Point) }
func (j *judgedVolumes) Repaired(r Repair) {
	j.proven = append(j.proven, r.Action.Mount.Point+": "+r.Proof)
}

// TestBegunRepairsOfVolumesAreSettled: a repair of an earlier process is reported if the volume is healed, and else left; as long as the
// volumes cannot be looked at, neither. A repair that cannot be written down is not made.
func TestBegunRepairsOfVolumesAreSettled(t *testing.T) {
	t.Parallel()
	j := &judgedVolumes{deadVolumes: newDeadVolumes(2)}
	s := &Sentinel{Mode: Automatic, Guard: always{Automatic}, Pods: j, Observer: j, Volumes: j}
	kinds := map[string]fault.ActionKind{"/a": fault.Unmount, "/b": fault.Replace}
	for _, point := range []string{"/a", "/b"} {
		s.Begun = append(s.Begun, Repair{Action: fault.Action{Kind: kinds[point], Mount: &fault.Mount{Point: point}}})
		s.Begun[len(s.Begun)-1].Fault.Code = fault.DisconnectedFUSE
	}
	bind := Repair{Action: fault.Action{Kind: fault.Unmount, Mount: &fault.Mount{Point: "/bind"}}}
	bind.Fault.Code = fault.StaleSubPath
	s.Begun = append(s.Begun, bind)
	w := newVolumeWatcher(s)
	w.settleBegun(t.Context())
	if len(w.begun) != 2 || len(j.left)+len(j.proven) > 0 {
		t.Errorf("without a look: %d are not settled, left %q, repaired %q", len(w.begun), j.left, j.proven)
	}
	j.proofs = []volume.Proof{{Healed: true, Evidence: []string{"it answers"}}, {NotHealed: []string{"it is dead"}}}
	w.settleBegun(t.Context())
	w.settleBegun(t.Context())
	if want := "/a: it answers; an earlier process of the sentinel has begun this repair"; len(w.begun) > 0 || !slices.Equal(j.left, []string{"/b"}) ||
		!slices.Equal(j.proven, []string{want}) {
		t.Errorf("%d are not settled, left %q, repaired %q", len(w.begun), j.left, j.proven)
	}
	if err := w.scan(t.Context()); err != nil || j.begun == 0 || j.totalRepairs() > 0 || len(j.trouble) != 1 {
		t.Errorf("%d have begun and %d were made: %v, %q", j.begun, j.totalRepairs(), err, j.trouble)
	}
}

// TestFailedRepairEndsPlan: if the driver's daemon hangs again, each repair would wait for it.
func TestFailedRepairEndsPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadVolumes(100)
		d.repair = func(fault.Action) error { return volume.ErrHung }
		watcher := d.watcher()
		for range 3 {
			if err := watcher.scan(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if d.totalRepairs() != 3 || !watcher.scanDue {
			t.Errorf("%d repairs were tried in 3 scans; due: %v", d.totalRepairs(), watcher.scanDue)
		}
		d.repair = func(fault.Action) error { return fmt.Errorf("%w: another is there", volume.ErrRefused) }
		if err := watcher.scan(t.Context()); err != nil || d.totalRepairs() != 100 {
			t.Errorf("%d repairs, %v, want 100: a refused one delays no other", d.totalRepairs(), err)
		}
	})
}

// rewordedVolumes gives the opposite meaning to every sentence about its volumes.
type rewordedVolumes struct{ Volumes }

func (v rewordedVolumes) Plan(ctx context.Context, of *volume.Health, o volume.PlanOptions) ([]fault.Action, []string, error) {
	actions, _, err := v.Volumes.Plan(ctx, of, o)
	processortest.RewordActions(actions)
	return actions, nil, err
}

func (v rewordedVolumes) Open(podUIDs ...string) func(context.Context, fault.Action) (fault.Applied, error) {
	apply := v.Volumes.Open(podUIDs...)
	return func(ctx context.Context, a fault.Action) (fault.Applied, error) {
		done, err := apply(ctx, a)
		return processortest.RewordApplied(done), err
	}
}

// lossyVolumes is deadVolumes with one repair that would lose something.
type lossyVolumes struct {
	*deadVolumes
	point string
}

func (l lossyVolumes) Plan(ctx context.Context, v *volume.Health, o volume.PlanOptions) ([]fault.Action, []string, error) {
	actions, refusals, err := l.deadVolumes.Plan(ctx, v, o)
	for i := range actions {
		actions[i].Lossless = actions[i].Mount.Point != l.point
	}
	return actions, refusals, err
}

// TestWordingDoesNotDecideRepairs: the text of a plan decides neither if a volume is repaired nor if the repair is
// reported.
func TestWordingDoesNotDecideRepairs(t *testing.T) {
	for name, reword := range map[string]func(Volumes) Volumes{
		"as it is":       func(v Volumes) Volumes { return v },
		"in other words": func(v Volumes) Volumes { return rewordedVolumes{v} },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeadVolumes(3)
			d.repair = func(a fault.Action) error {
				d.applyResult = fault.Applied{Already: a.Mount.Point == "/0"}
				d.remove(a, d.volumes)
				return nil
			}
			watcher := d.watcher()
			watcher.sentinel.Volumes = reword(lossyVolumes{d, "/2"})
			if err := watcher.scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]int{"/0": 1, "/1": 1}, d.applied); diff != "" || d.repaired != 1 || len(watcher.present) != 1 {
				t.Errorf("%d repairs were reported, %d faults are left, want 1 and 1; applied (-want +got):\n%s", d.repaired, len(watcher.present), diff)
			}
		})
	}
}

// TestRepairLimitOfFlappingDriver: every new mount is dead at the next scan.
func TestRepairLimitOfFlappingDriver(t *testing.T) {
	d := newDeadVolumes(1)
	d.repair = func(fault.Action) error {
		d.volumes[0].Evidence.Mount.Unique++
		return nil
	}
	watcher, began := d.watcher(), time.Now()
	for range 100 {
		if err := watcher.scan(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if most := repairBurst + 1 + int(time.Since(began)/repairRefill); d.totalRepairs() > most {
		t.Errorf("one place was repaired %d times within %s, want %d at most", d.totalRepairs(), time.Since(began), most)
	}
	if len(watcher.backoffs) != 1 {
		t.Errorf("%d back-offs are stored for one place", len(watcher.backoffs))
	}
}

// TestRepairsThatAreHeldTakeNoToken: a repair whose time has not come, or that waits for another one of its pod, is planned again. The
// limit of its place is as it was.
func TestRepairsThatAreHeldTakeNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadVolumes(3)
		d.repair = func(fault.Action) error { return volume.ErrHung }
		watcher := d.watcher()
		watcher.updateFaults(d.volumes)
		watcher.planRepairs(t.Context(), d.volumes)
		tokens := func() (left []float64) {
			for _, v := range d.volumes {
				left = append(left, watcher.backoffs[v.Findings()[0].Key().Location()].Tokens())
			}
			return left
		}
		batch := watcher.repairs.next()
		watcher.repairBatch(t.Context(), batch, time.Now())
		if diff := cmp.Diff([]float64{repairBurst, repairBurst, repairBurst}, tokens()); diff != "" || d.totalRepairs() > 0 {
			t.Errorf("%d repairs after the deadline; tokens (-want +got):\n%s", d.totalRepairs(), diff)
		}
		watcher.repairBatch(t.Context(), batch, time.Now().Add(time.Second))
		if diff := cmp.Diff([]float64{repairBurst - 1, repairBurst, repairBurst}, tokens()); diff != "" || d.totalRepairs() != 1 {
			t.Errorf("%d repairs of a pod whose first one fails; tokens (-want +got):\n%s", d.totalRepairs(), diff)
		}
	})
}

func TestEndingPodsAreNotRepaired(t *testing.T) {
	for name, pod := range map[string]corev1.Pod{
		"deleted":   {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}},
		"failed":    {Status: corev1.PodStatus{Phase: corev1.PodFailed}},
		"succeeded": {Status: corev1.PodStatus{Phase: corev1.PodSucceeded}},
	} {
		d := newDeadVolumes(1)
		d.pod, d.repair = pod, func(fault.Action) error { return errors.New("it ends") }
		watcher := d.watcher()
		if err := watcher.scan(t.Context()); err != nil || d.totalRepairs() > 0 || len(watcher.present) != 1 {
			t.Errorf("%s: %d repairs, %v, %d faults", name, d.totalRepairs(), err, len(watcher.present))
		}
	}
}

// TestKindsOfRepairs: a pod that lives gets a new mount, and one that is being deleted loses a mount that keeps it. One that has ended is
// the kubelet's.
func TestKindsOfRepairs(t *testing.T) {
	pods := map[string]*corev1.Pod{
		"runs": {}, "goes": {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}, "ended": {Status: corev1.PodStatus{Phase: corev1.PodFailed}},
	}
	want := map[string][]fault.ActionKind{"runs": {fault.Replace}, "kept": {fault.Unmount}}
	got := map[string][]fault.ActionKind{}
	for name, pod := range pods {
		for _, kind := range []fault.ActionKind{fault.Replace, fault.Unmount, fault.Abort, fault.Evict, fault.Detach, fault.RemoveFile} {
			f := fault.Finding{}
			if isRepairOf(f, kind, pod) {
				got[name] = append(got[name], kind)
			}
			f.Details.KeepsPod = true
			if name == "goes" && isRepairOf(f, kind, pod) {
				got["kept"] = append(got["kept"], kind)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

// TestPodsThatStayTriggerScan: a mount inside a volume makes no event when the time of its pod is over. The search for such pods has all
// volumes looked at once.
func TestPodsThatStayTriggerScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &fakeLook{over: []string{"uid"}}
		s := &Sentinel{Mode: Observe, Guard: always{Observe}, Pods: l, Observer: l}
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.lookAgain(ctx, fault.SearchLeaving, Look{l, time.Minute})
		}()
		if s.podsStay.Load() {
			t.Error("before the first look")
		}
		l.awaitLook(1)
		if !s.podsStay.Load() {
			t.Error("a pod stays, and no scan is due")
		}
		cancel()
		<-done
	})
}

// TestRescanBacksOff: the first rescan is soon. While nothing changes, the delay never decreases.
func TestRescanBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watcher := newDeadVolumes(1).watcher()
		watcher.sentinel.Guard = always{Observe}
		var waits []time.Duration
		for range 200 {
			if err := watcher.scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			waits = append(waits, time.Until(watcher.nextScan))
			time.Sleep(waits[len(waits)-1])
		}
		if waits[0] != faultRescanInterval || !slices.IsSorted(waits) || waits[len(waits)-1] != scanInterval {
			t.Errorf("waits: %v", waits)
		}
	})
}

// TestFailedScanIsRepeated: a scan that fails is repeated soon, and then less and less often.
func TestFailedScanIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadVolumes(1)
		watcher := d.watcher()
		watcher.sentinel.Guard = always{Observe}
		d.err = errors.New("the kubelet restarts")
		var waits []time.Duration
		for range 6 {
			if err := watcher.scan(t.Context()); !errors.Is(err, d.err) {
				t.Fatal(err)
			}
			waits = append(waits, time.Until(watcher.nextScan))
			time.Sleep(waits[len(waits)-1])
		}
		if want := []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, scanInterval, scanInterval}; !slices.Equal(waits, want) {
			t.Errorf("waits: %v, want %v", waits, want)
		}
	})
}

// TestSecondLookIsSoon: a volume that was silent for the first time is no fault, and all are scanned again soon.
func TestSecondLookIsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadVolumes(1)
		d.volumes[0].Verdict = volume.Verdict{UnknownReason: "silent"}
		d.volumes[0].Evidence.Answer.State, d.silent = probe.Silent, true
		w := d.watcher()
		w.sentinel.Guard = always{Observe}
		for range 3 { // it may answer in between
			if err := w.scan(t.Context()); err != nil || time.Until(w.nextScan) != faultRescanInterval || d.found > 0 || len(d.trouble) > 0 || w.probeErr != nil {
				t.Fatalf("the next scan in %s, %v; %d faults, trouble %q, %v", time.Until(w.nextScan), err, d.found, d.trouble, w.probeErr)
			}
		}
		d.volumes[0].Verdict, d.volumes[0].Evidence.Answer.State, d.silent = volume.Verdict{Code: fault.HungMount}, probe.Hung, false
		if err := w.scan(t.Context()); err != nil || d.found != 1 {
			t.Fatalf("%d faults, %v", d.found, err)
		}
		d.volumes[0].Verdict, d.volumes[0].Evidence.Answer.State, d.silent = volume.Verdict{UnknownReason: "silent"}, probe.Silent, true
		if err := w.scan(t.Context()); err != nil || len(w.present) != 1 {
			t.Errorf("a fault that nothing disproves is gone: %v", err)
		}
	})
}

// TestNodeWithoutVolumesIsScannedRarely: a node with a healthy volume is scanned at scanInterval.
func TestNodeWithoutVolumesIsScannedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadVolumes(1)
		d.volumes[0].Verdict.Code = ""
		watcher := d.watcher()
		for _, want := range []time.Duration{scanInterval, idleScanInterval} {
			if err := watcher.scan(t.Context()); err != nil || time.Until(watcher.nextScan) != want {
				t.Errorf("%d volumes: the next scan in %s, %v, want %s", len(d.volumes), time.Until(watcher.nextScan), err, want)
			}
			d.volumes = nil
		}
	})
}

// TestMountsThatTriggerScan: mounts that can die and mounts of CSI volumes trigger a scan. Other mounts of a starting
// pod do not.
func TestMountsThatTriggerScan(t *testing.T) {
	mount := func(id uint64, fsType, point string) mountns.Mount {
		return mountns.Mount{Unique: id, Mount: mountinfo.Mount{ID: int(id), FSType: fsType, Point: point}}
	}
	secret := mount(1, "tmpfs", "/var/lib/kubelet/pods/uid/volumes/kubernetes.io~secret/token")
	local := mount(2, "ext4", "/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/data/mount")
	remote := mount(3, "fuse.ceph-fuse", "/var/lib/kubelet/pods/uid/volumes/example.com~flex/share")
	watcher := newDeadVolumes(0).watcher()
	for i, step := range []struct {
		mounts []mountns.Mount
		want   bool
	}{
		{nil, true}, // the first time
		{[]mountns.Mount{secret}, false},
		{[]mountns.Mount{secret, local}, true},
		{[]mountns.Mount{local}, false},
		{[]mountns.Mount{local, remote}, true},
		{[]mountns.Mount{secret, local, remote}, false},
		{[]mountns.Mount{secret, remote}, true},
	} {
		watcher.scanDue = false
		if watcher.recordMounts(step.mounts); watcher.scanDue != step.want {
			t.Errorf("step %d, %v: %v, want %v", i, step.mounts, watcher.scanDue, step.want)
		}
	}
}
