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
	"kubediag.org/kubediag/internal/processor/processortest"
)

// wreck is a node whose volumes are all dead, and whose repairs go as mend says.
type wreck struct {
	Observer
	volumes []*volume.Health
	mend    func(a fault.Action) error
	applied map[string]int // by point
	done    fault.Applied  // ApplyAll says so
	pod     corev1.Pod

	found, repaired int // that was told
	trouble         []string
}

func newWreck(many int) *wreck {
	w := &wreck{applied: map[string]int{}}
	for i := range many {
		v := &volume.Health{Verdict: volume.Verdict{Code: fault.DisconnectedFUSE}}
		v.Pod, v.Name = fault.Pod{UID: "uid"}, fmt.Sprint("v", i)
		v.Mount = mountns.Mount{Unique: uint64(i + 1), Mount: mountinfo.Mount{ID: i + 1, Point: fmt.Sprint("/", i)}}
		w.volumes = append(w.volumes, v)
	}
	return w
}

func (w *wreck) Inspect(context.Context, volume.Selection) (*volume.Survey, error) {
	return &volume.Survey{Volumes: w.volumes}, nil
}

func (w *wreck) Plan(_ context.Context, v *volume.Health, _ volume.PlanOptions) ([]fault.Action, []string, error) {
	a := fault.Action{Kind: fault.Replace, Mount: &v.Findings()[0].Mount, Pod: &v.Pod, Fault: v.Code, Lossless: true}
	return []fault.Action{a}, nil, nil
}

func (w *wreck) ApplyAll(_ context.Context, actions []fault.Action, each func(int, fault.Applied, error) bool) {
	for i, a := range actions {
		w.applied[a.Mount.Point]++
		if err := w.mend(a); !each(i, w.done, err) {
			return
		}
	}
}

func (w *wreck) total() (n int) {
	for _, times := range w.applied {
		n += times
	}
	return n
}

func (w *wreck) PodByUID(string) *corev1.Pod        { return &w.pod }
func (w *wreck) Found(fault.Finding, time.Duration) { w.found++ }
func (w *wreck) Repaired(fault.Finding, error)      { w.repaired++ }
func (w *wreck) Trouble(err error)                  { w.trouble = append(w.trouble, err.Error()) }
func (w *wreck) patrol() *volumeWatcher {
	return newVolumeWatcher(&Sentinel{Mode: Automatic, Pods: w, Observer: w, Volumes: w})
}
func (w *wreck) gone(a fault.Action, from []*volume.Health) {
	for i, v := range from {
		if v.Mount.Point == a.Mount.Point {
			v.Code = ""
			w.volumes = append(from[:i:i], from[i+1:]...)
			return
		}
	}
}

// TestAMassOfRepairsIsDoneInPortions: while a thousand volumes are mended the patrol goes on feeling connections, and each
// is mended once.
func TestAMassOfRepairsIsDoneInPortions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, each = 1000, 60 * time.Millisecond
		w := newWreck(many)
		w.mend = func(a fault.Action) error {
			time.Sleep(each)
			w.gone(a, w.volumes)
			return nil
		}
		p := w.patrol()
		began := time.Now()
		if err := p.scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		longest := time.Since(began)
		for !p.repairs.empty() {
			began = time.Now()
			p.repairNext(t.Context())
			longest = max(longest, time.Since(began))
		}
		if longest > minRepairTime+each || w.total() != many || len(w.applied) != many {
			t.Errorf("%d repairs of %d places, up to %s without a look at connections", w.total(), len(w.applied), longest)
		}
	})
}

// TestARepairThatFailsEndsThePlan: where the driver's daemon hangs again, each repair would wait for it.
func TestARepairThatFailsEndsThePlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWreck(100)
		w.mend = func(fault.Action) error { return volume.ErrHung }
		p := w.patrol()
		for range 3 {
			if err := p.scan(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if w.total() != 3 || !p.scanDue {
			t.Errorf("%d repairs were tried in 3 looks; due: %v", w.total(), p.scanDue)
		}
		w.mend = func(fault.Action) error { return fmt.Errorf("%w: another is there", volume.ErrRefused) }
		if err := p.scan(t.Context()); err != nil || w.total() != 100 {
			t.Errorf("%d repairs, %v, want that one which is refused holds up no other", w.total(), err)
		}
	})
}

// inOtherWords are volumes about which every sentence says the opposite of what is so.
type inOtherWords struct{ Volumes }

func (v inOtherWords) Plan(ctx context.Context, of *volume.Health, o volume.PlanOptions) ([]fault.Action, []string, error) {
	actions, _, err := v.Volumes.Plan(ctx, of, o)
	processortest.RewordActions(actions)
	return actions, nil, err
}

func (v inOtherWords) ApplyAll(ctx context.Context, actions []fault.Action, each func(i int, done fault.Applied, err error) bool) {
	v.Volumes.ApplyAll(ctx, actions, func(i int, done fault.Applied, err error) bool {
		return each(i, processortest.RewordApplied(done), err)
	})
}

// lossy is a wreck one of whose repairs would lose something.
type lossy struct {
	*wreck
	point string
}

func (l lossy) Plan(ctx context.Context, v *volume.Health, o volume.PlanOptions) ([]fault.Action, []string, error) {
	actions, refusals, err := l.wreck.Plan(ctx, v, o)
	for i := range actions {
		actions[i].Lossless = actions[i].Mount.Point != l.point
	}
	return actions, refusals, err
}

// TestNoSentenceDecides: what loses nothing is repaired, and what was repaired already is not told, whatever is said of it.
func TestNoSentenceDecides(t *testing.T) {
	for name, reword := range map[string]func(Volumes) Volumes{
		"as it is":       func(v Volumes) Volumes { return v },
		"in other words": func(v Volumes) Volumes { return inOtherWords{v} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWreck(3)
			w.mend = func(a fault.Action) error {
				w.done = fault.Applied{Already: a.Mount.Point == "/0"}
				w.gone(a, w.volumes)
				return nil
			}
			p := w.patrol()
			p.Volumes = reword(lossy{w, "/2"})
			if err := p.scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]int{"/0": 1, "/1": 1}, w.applied); diff != "" || w.repaired != 1 || len(p.present) != 1 {
				t.Errorf("%d repairs were told, %d faults are left, want 1 and 1; applied (-want +got):\n%s", w.repaired, len(p.present), diff)
			}
		})
	}
}

// TestADriverThatComesAndGoes has every mount that is put in place be dead at the next look.
func TestADriverThatComesAndGoes(t *testing.T) {
	w := newWreck(1)
	w.mend = func(fault.Action) error {
		w.volumes[0].Mount.Unique++
		return nil
	}
	p, began := w.patrol(), time.Now()
	for range 100 {
		if err := p.scan(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if most := repairBurst + 1 + int(time.Since(began)/repairRefill); w.total() > most {
		t.Errorf("one place was repaired %d times within %s, want %d at most", w.total(), time.Since(began), most)
	}
	if len(p.backoffs) != 1 {
		t.Errorf("%d setbacks are remembered of one place", len(p.backoffs))
	}
}

func TestThePodsThatEndAreTheKubelets(t *testing.T) {
	for name, pod := range map[string]corev1.Pod{
		"deleted":   {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}},
		"failed":    {Status: corev1.PodStatus{Phase: corev1.PodFailed}},
		"succeeded": {Status: corev1.PodStatus{Phase: corev1.PodSucceeded}},
	} {
		w := newWreck(1)
		w.pod, w.mend = pod, func(fault.Action) error { return errors.New("it ends") }
		p := w.patrol()
		if err := p.scan(t.Context()); err != nil || w.total() > 0 || len(p.present) != 1 {
			t.Errorf("%s: %d repairs, %v, %d faults", name, w.total(), err, len(p.present))
		}
	}
}

// TestAFaultThatStaysIsLookedAtLessAndLess: soon at first, and never more often again, however long nothing changes.
func TestAFaultThatStaysIsLookedAtLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newWreck(1).patrol()
		p.Mode = Observe
		var waits []time.Duration
		for range 200 {
			if err := p.scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			waits = append(waits, time.Until(p.nextScan))
			time.Sleep(waits[len(waits)-1])
		}
		if waits[0] != faultRescanInterval || !slices.IsSorted(waits) || waits[len(waits)-1] != scanInterval {
			t.Errorf("waits: %v", waits)
		}
	})
}

// TestANodeWithoutVolumesIsLookedAtRarely, and one with a volume that is well as often as that may die.
func TestANodeWithoutVolumesIsLookedAtRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWreck(1)
		w.volumes[0].Code = ""
		p := w.patrol()
		for _, want := range []time.Duration{scanInterval, idleScanInterval} {
			if err := p.scan(t.Context()); err != nil || time.Until(p.nextScan) != want {
				t.Errorf("%d volumes: the next look in %s, %v, want %s", len(w.volumes), time.Until(p.nextScan), err, want)
			}
			w.volumes = nil
		}
	})
}

// TestWhichMountsSetOffALook: those that can die, and those of CSI volumes whatever they are; not those of a pod that starts.
func TestWhichMountsSetOffALook(t *testing.T) {
	mount := func(id uint64, fsType, point string) mountns.Mount {
		return mountns.Mount{Unique: id, Mount: mountinfo.Mount{ID: int(id), FSType: fsType, Point: point}}
	}
	secret := mount(1, "tmpfs", "/var/lib/kubelet/pods/uid/volumes/kubernetes.io~secret/token")
	local := mount(2, "ext4", "/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/data/mount")
	remote := mount(3, "fuse.ceph-fuse", "/var/lib/kubelet/pods/uid/volumes/example.com~flex/share")
	p := newWreck(0).patrol()
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
		p.scanDue = false
		if p.recordMounts(step.mounts); p.scanDue != step.want {
			t.Errorf("step %d, %v: %v, want %v", i, step.mounts, p.scanDue, step.want)
		}
	}
}
