// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// replacedMount is a mount that is replaced while others act on it.
type replacedMount struct {
	deleted, inUse bool
}

var replacedMounts = map[string]replacedMount{
	"deleted":        {true, false},
	"deleted in use": {true, true},
	"idle":           {false, false},
	"in use":         {false, true},
}

// raceTally counts the outcomes of a race.
type raceTally struct {
	outcomes map[string]int
	rounds   int
	lost     int // healthy mounts of the rival that are missing
}

// TestReplaceNeverReplacesAnotherMount lets every rival loose on mounts that are
// being replaced, and counts the rival's mounts that are missing afterwards: none.
func TestReplaceNeverReplacesAnotherMount(t *testing.T) {
	forEachMethod(t, replaceRacesNobodyElsesMount)
}

func replaceRacesNobodyElsesMount(t *testing.T) {
	for name, v := range replacedMounts {
		for rivalName, act := range rivalActions {
			t.Run(name+", rival "+rivalName, func(t *testing.T) {
				got := raceReplace(t, v, act)
				t.Logf("%d rounds, %d mounts lost, %v", got.rounds, got.lost, got.outcomes)
				if got.lost != 0 {
					t.Errorf("%d mounts lost", got.lost)
				}
			})
		}
	}
}

func raceReplace(t *testing.T, v replacedMount, act rivalAction) raceTally {
	f := newReplacementFiles(t)
	s := newScene(t)
	write(t, s.healthySource())
	must(t, systest.UnmountPath(s.target, false))
	got := raceTally{outcomes: map[string]int{}}
	usual := 300 * time.Microsecond
	end := time.Now().Add(*raceTime / 2)
	for ; got.rounds < *raceRounds && time.Now().Before(end); got.rounds++ {
		must(t, os.WriteFile(s.source, nil, 0o600))
		must(t, Bind(s.source, s.target))
		held := openFile(t, s.target)
		if !v.inUse {
			held.Close()
		}
		if v.deleted {
			must(t, os.Remove(s.source))
		}
		id := inspect(t, s.target).ID
		tree := clone(t, f.file)
		start := time.Now()
		left, err := runRaceOnce(func() error {
			err := Replace(t.Context(), id, ReplaceOptions{Tree: tree})
			usual = (15*usual + time.Since(start)) / 16
			return err
		}, func() []ID { return act(s) }, usual*time.Duration(got.rounds%48)/32)
		held.Close()
		tree.Close() // which a refused replacement leaves open
		got.addRound(t, left, err)
		clearTarget(t, s)
	}
	return got
}

// addRound adds a round. A mount of the rival's may be on another by now.
func (got *raceTally) addRound(t *testing.T, left []ID, err error) {
	got.outcomes[checkOutcome(t, err)]++
	for _, id := range left {
		if !isMountedAnywhere(t, id) {
			got.lost++
		}
	}
}

// isMountedAnywhere reports whether a mount is there, on whatever other mount.
func isMountedAnywhere(t *testing.T, id ID) bool {
	t.Helper()
	mounts, err := mountns.Table(0)
	must(t, err)
	m, ok := mounts.ByID(id.MountInfoID)
	return ok && m.Root == id.Root && m.Point == id.Point
}

// TestReplaceTouchesNothingThatCameBetween acts at the worst moments: between any check of the mount and the next step.
func TestReplaceTouchesNothingThatCameBetween(t *testing.T) {
	forEachMethod(t, replaceTouchesNothingThatCameBetween)
}

func replaceTouchesNothingThatCameBetween(t *testing.T) {
	for name, v := range replacedMounts {
		for rivalName, act := range rivalActions {
			t.Run(name+", "+rivalName, func(t *testing.T) {
				for asked := 1; asked <= 4; asked++ {
					replaceBetween(t, v, act, asked)
				}
			})
		}
	}
}

func replaceBetween(t *testing.T, v replacedMount, act rivalAction, moment int) {
	f := newReplacementFiles(t)
	s := newScene(t)
	write(t, s.healthySource())
	if v.inUse {
		openFile(t, s.target)
	}
	if v.deleted {
		must(t, os.Remove(s.source))
	}
	var left []ID
	asked := 0
	err := Replace(t.Context(), inspect(t, s.target).ID, ReplaceOptions{Tree: clone(t, f.file), Check: func(State) error {
		if asked++; asked == moment {
			left = act(s)
		}
		return nil
	}})
	if err != nil {
		checkOutcome(t, err)
	}
	for _, id := range left {
		if !isMountedAnywhere(t, id) {
			t.Errorf("moment %d: healthy %v is gone (%v)", moment, id, err)
		}
	}
	if err == nil && len(left) == 0 && !showsFile(t, s.target, f.file) {
		t.Errorf("moment %d: the tree is not there", moment)
	}
}

// interferingSource is a source that has something happen after it has said that the
// mount is bare for the nth time.
type interferingSource struct {
	kernelSource
	bares, moment int
	act           func()
}

func (m *interferingSource) hasNoChildren(id ID) (bool, error) {
	ok, err := m.kernelSource.hasNoChildren(id)
	if m.bares++; m.bares == m.moment {
		m.act()
	}
	return ok, err
}

// TestReplaceOfTopSaysWhatWent: in a namespace of other users, whose copy only follows it, a mount that comes between
// the last check and the act goes in place of the target, and the error reports it.
func TestReplaceOfTopSaysWhatWent(t *testing.T) {
	onlyKernel(t)
	f := newReplacementFiles(t)
	dir := t.TempDir()
	pod := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "pod", dir)
	ns, err := mountns.Of(pod.PID)
	must(t, err)
	tree := clone(t, f.file)
	must(t, ns.Do(func() error {
		s := bindScene{dir: dir, source: filepath.Join(dir, "source"), target: filepath.Join(dir, "target")}
		write(t, s.healthySource())
		held := openFile(t, s.target)
		defer held.Close()
		id := inspect(t, s.target).ID
		var left []ID
		m := &interferingSource{moment: 2, act: func() { left = bindHealthy(s) }}
		withSource(t, m, func(t *testing.T) {
			err := Replace(t.Context(), id, ReplaceOptions{Tree: tree})
			if !errors.Is(err, ErrOtherUnmounted) || len(left) != 1 || isMountedAnywhere(t, left[0]) {
				t.Errorf("replace: %v, left %v, of %d looks", err, left, m.bares)
			}
		})
		if !inspect(t, s.target).Same(id) {
			t.Error("the mount is not there any more")
		}
		return nil
	}))
}

// TestAsideTakesOnlyWhatIsMeant acts when nothing is looked at any more: right before the copy of the mount is unmounted
// in the copy of the namespace.
func TestAsideTakesOnlyWhatIsMeant(t *testing.T) { forEachMethod(t, asideTakesOnlyWhatIsMeant) }

func asideTakesOnlyWhatIsMeant(t *testing.T) {
	for name, tc := range map[string]struct {
		act  rivalAction
		goes bool // the mount does
		err  error
	}{
		"nothing happens":       {func(bindScene) []ID { return nil }, true, nil},
		"stacked upon":          {rivalActions["stacks a healthy mount on top"], true, ErrChanged},
		"replaced":              {rivalActions["replaces by a healthy mount"], true, ErrChanged},
		"unmounted":             {rivalActions["unmounts"], true, nil},
		"stacked upon below it": {bindBelow, false, ErrBusy},
	} {
		for sharing, propagation := range propagations {
			t.Run(name+" "+sharing, func(t *testing.T) { replaceAside(t, propagation, tc.act, tc.goes, tc.err) })
		}
	}
}

func replaceAside(t *testing.T, sharing Propagation, act rivalAction, goes bool, want error) {
	dir, _ := newParent(t, "tmpfs", sharing)
	s := bindScene{dir: t.TempDir(), target: filepath.Join(dir, "in/dir")}
	s.source = filepath.Join(s.dir, "stale")
	must(t, errors.Join(os.MkdirAll(filepath.Join(s.source, "sub"), 0o700), os.Mkdir(s.healthySource(), 0o700)))
	must(t, Bind(s.source, s.target))
	openFile(t, s.target)
	before, id := topMountAt(t, dir), inspect(t, s.target).ID
	var left []ID
	asked := false
	between = func(step string) {
		if step == "aside" {
			asked = true
			elsewhere(func() { left = act(s) })
		}
	}
	defer func() { between = func(string) {} }()
	err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, newReplacementFiles(t).dir)})
	if !asked || !errors.Is(err, want) {
		t.Errorf("aside %v: %v, want %v", asked, err, want)
	}
	if isMountedAnywhere(t, id) == goes {
		t.Errorf("the mount is there: %v", !goes)
	}
	for _, id := range left {
		if !isMountedAnywhere(t, id) {
			t.Errorf("healthy %v is gone", id)
		}
	}
	if now := topMountAt(t, dir); now.Shared != before.Shared || now.Master != before.Master {
		t.Errorf("the parent is %+v, and was %+v", now, before)
	}
	if st := inspect(t, s.target); want == nil && ((st.Shared != 0) != (sharing == Shared) || st.Master != 0) {
		t.Errorf("the tree is %+v", st)
	}
	systest.UnmountPath(filepath.Join(s.target, "sub"), true)
	clearTarget(t, s)
}

// elsewhere runs act on another thread, in the namespace of the test.
func elsewhere(act func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		act()
	}()
	<-done
}

func bindBelow(s bindScene) []ID {
	s.target = filepath.Join(s.target, "sub")
	return bindHealthy(s)
}
