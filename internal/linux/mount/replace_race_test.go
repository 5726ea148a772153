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

// raceTally is what became of a race.
type raceTally struct {
	outcomes map[string]int
	rounds   int
	lost     int // healthy mounts of the rival that are missing
	unsaid   int // of these, those that no error spoke of
}

// TestReplaceNeverReplacesAnotherMount lets every rival loose on mounts that are
// being replaced, and counts the rival's mounts that are missing afterwards:
// none, but for a mount in use, where an error must say so.
func TestReplaceNeverReplacesAnotherMount(t *testing.T) {
	forEachMethod(t, replaceRacesNobodyElsesMount)
}

func replaceRacesNobodyElsesMount(t *testing.T) {
	for name, v := range replacedMounts {
		for rivalName, act := range rivalActions {
			t.Run(name+", rival "+rivalName, func(t *testing.T) {
				got := raceReplace(t, v, act)
				t.Logf("%d rounds, %d mounts lost, %v", got.rounds, got.lost, got.outcomes)
				if got.unsaid != 0 || got.lost != 0 && (v.deleted || !v.inUse) {
					t.Errorf("%d mounts lost, %d without a word", got.lost, got.unsaid)
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
	what := "another went"
	if !errors.Is(err, ErrOtherUnmounted) {
		what = checkOutcome(t, err)
	}
	got.outcomes[what]++
	for _, id := range left {
		if !isMountedAnywhere(t, id) {
			got.lost++
			if !errors.Is(err, ErrOtherUnmounted) {
				got.unsaid++
			}
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

// TestReplaceTouchesNothingThatCameBetween acts at the worst moments: between
// any look at the mount and what follows.
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

// TestReplaceOfTopSaysWhatWent: without a way from aside, what comes between the
// last look and the act goes in place of the mount, and the error says so.
func TestReplaceOfTopSaysWhatWent(t *testing.T) {
	onlyKernel(t)
	f := newReplacementFiles(t)
	s := newScene(t)
	write(t, s.healthySource())
	openFile(t, s.target)
	id := inspect(t, s.target).ID
	var left []ID
	m := &interferingSource{moment: 2, act: func() { left = bindHealthy(s) }}
	withSource(t, m, func(t *testing.T) {
		err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, f.file)})
		if !errors.Is(err, ErrOtherUnmounted) || len(left) != 1 || isMountedAnywhere(t, left[0]) {
			t.Errorf("replace: %v, left %v, of %d looks", err, left, m.bares)
		}
	})
	if !inspect(t, s.target).Same(id) {
		t.Error("the mount is not there any more")
	}
	must(t, Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, f.file)}))
	if countMountsAt(t, s.target) != 1 || !showsFile(t, s.target, f.file) {
		t.Errorf("%d layers afterwards", countMountsAt(t, s.target))
	}
}

// TestAsideTakesOnlyWhatIsMeant acts when nothing is looked at any more: in the
// copy of the namespace, right before the copy of the mount is unmounted.
func TestAsideTakesOnlyWhatIsMeant(t *testing.T) {
	onlyKernel(t)
	kerneltest.Needs(t, sys.HasNamespaceID)
	for _, sharing := range []Propagation{Private, Shared} {
		for name, tc := range map[string]struct {
			act  rivalAction
			goes bool // the mount does
			err  error
		}{
			"nothing happens":       {func(bindScene) []ID { return nil }, true, nil},
			"stacked upon":          {rivalActions["stacks a healthy mount on top"], true, nil},
			"replaced":              {rivalActions["replaces by a healthy mount"], true, sys.EINVAL},
			"unmounted":             {rivalActions["unmounts"], true, sys.EINVAL},
			"stacked upon below it": {bindBelow, false, nil},
		} {
			t.Run(name, func(t *testing.T) { raceDetach(t, sharing, tc.act, tc.goes, tc.err) })
		}
	}
}

func raceDetach(t *testing.T, sharing Propagation, act rivalAction, goes bool, want error) {
	f := newReplacementFiles(t)
	s := newSceneOf(t, "stale", true)
	must(t, os.Mkdir(filepath.Join(s.source, "sub"), 0o700))
	must(t, os.Mkdir(s.healthySource(), 0o700))
	must(t, systest.UnmountPath(s.target, false))
	must(t, SetPropagation(s.dir, sharing, false))
	must(t, Bind(s.source, s.target))
	held := openFile(t, s.target)
	tree := clone(t, f.dir)
	must(t, sys.SetMountPropagation(tree, Private))
	must(t, sys.Attach(tree, held, true))
	must(t, sys.SetMountPropagation(tree, Shared))
	id := inspect(t, s.target).ID
	var left []ID
	err := sys.OnThread(func() error {
		return sys.InMountsCopy(func() error {
			copied, err := sys.Lookup(s.target)
			if err != nil {
				return err
			}
			defer copied.Close()
			if err := sys.SetMountPropagation(copied, Private); err != nil {
				return err
			}
			elsewhere(func() { left = act(s) })
			return sys.DetachMount(copied)
		})
	})
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
	if isMountedAnywhere(t, id) == goes {
		t.Errorf("the mount is there: %v", !goes)
	}
	for _, id := range left {
		if !isMountedAnywhere(t, id) {
			t.Errorf("healthy %v is gone", id)
		}
	}
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
