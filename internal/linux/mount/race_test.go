// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mount

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// Each race runs this often on each source, or for this long.
var (
	raceRounds = flag.Int("race.rounds", 1000, "rounds of each race")
	readsEach  = flag.Int64("reads.each", 100, "reads before and after each replacement under readers")
	raceTime   = flag.Duration("race.time", 400*time.Millisecond, "time for each race")
)

// rivalAction does something to the target while it is being unmounted, and gives the
// healthy mounts that it leaves behind.
type rivalAction func(s bindScene) []ID

// rivalActions are possible actions of a kubelet, a container or an attacker at that moment.
var rivalActions = map[string]rivalAction{
	"unmounts": func(s bindScene) []ID {
		systest.UnmountPath(s.target, true)
		return nil
	},
	"replaces by a healthy mount": func(s bindScene) []ID {
		systest.UnmountPath(s.target, true)
		return bindHealthy(s)
	},
	"stacks a healthy mount on top": bindHealthy,
	"stacks, unstacks and stacks again": func(s bindScene) []ID {
		for range 3 {
			// It removes only its own mount, while that is on top.
			if ids := bindHealthy(s); len(ids) == 1 {
				unmountOwn(ids[0])
			}
		}
		return bindHealthy(s)
	},
	"looks at it and opens it": func(s bindScene) []ID {
		for range 3 {
			if f, err := os.Open(s.target); err == nil {
				f.Close()
			}
		}
		return nil
	},
}

// bindHealthy binds the healthy source to the target. Which mount that made is
// found by its being the target's only one with that root.
func bindHealthy(s bindScene) []ID {
	if err := Bind(s.healthySource(), s.target); err != nil {
		return nil
	}
	text, err := mountns.Table(0)
	if err != nil {
		return nil
	}
	var ids []ID
	for _, m := range text.All(s.target) {
		if m.Root == "/healthy" {
			ids = append(ids, idOfEntry(m))
		}
	}
	return ids
}

func unmountOwn(id ID) {
	if fd, err := sys.Lookup(id.Point); err == nil {
		defer fd.Close()
		if st, err := (tableSource{}).identify(fd, id.Point); err == nil && st.Same(id) {
			_ = sys.OnThread(func() error { return sys.DetachMount(fd) }) // it may have gone meanwhile
		}
	}
}

func (s bindScene) healthySource() string { return filepath.Join(s.dir, "healthy") }

// TestUnmountNeverRemovesAnotherMount lets every rival loose on mounts that are
// marked deleted and on mounts that are not, while they are being unmounted,
// and counts the healthy mounts that are missing afterwards.
func TestUnmountNeverRemovesAnotherMount(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		for name, act := range rivalActions {
			t.Run("deleted mount, rival "+name, func(t *testing.T) { runRace(t, act, true) })
			t.Run("other mount, rival "+name, func(t *testing.T) { runRace(t, act, false) })
		}
	})
}

func runRace(t *testing.T, act rivalAction, deleted bool) {
	s := newScene(t)
	write(t, s.healthySource())
	must(t, systest.UnmountPath(s.target, false))
	outcomes := map[string]int{}
	usual := usualTime(t, s)
	end := time.Now().Add(*raceTime)
	for round := 0; round < *raceRounds && time.Now().Before(end); round++ {
		write(t, s.source)
		must(t, Bind(s.source, s.target))
		if deleted {
			must(t, os.Remove(s.source))
		}
		id := inspect(t, s.target).ID
		left, err := runRaceOnce(func() error { return Unmount(t.Context(), id, Options{}) },
			func() []ID { return act(s) }, usual*time.Duration(round%48)/32)
		outcomes[checkOutcome(t, err)]++
		for _, id := range left {
			if !isMounted(t, id) {
				t.Fatalf("round %d: healthy %v is gone (unmount: %v)", round, id, err)
			}
		}
		clearTarget(t, s)
	}
	t.Log(outcomes)
}

// usualTime is how long an undisturbed unmount takes.
func usualTime(t *testing.T, s bindScene) time.Duration {
	t.Helper()
	best := time.Second
	for range 10 {
		write(t, s.source)
		must(t, Bind(s.source, s.target))
		id := inspect(t, s.target).ID
		start := time.Now()
		must(t, Unmount(t.Context(), id, Options{}))
		best = min(best, time.Since(start))
	}
	return best
}

// runRaceOnce runs the action, and the rival the given time later.
func runRaceOnce(do func() error, act func() []ID, delay time.Duration) ([]ID, error) {
	left := make(chan []ID)
	started := make(chan struct{})
	go func() {
		close(started)
		for start := time.Now(); time.Since(start) < delay; {
		}
		left <- act()
	}()
	<-started
	err := do()
	return <-left, err
}

// checkOutcome holds that an unmount ends in success or in one of the refusals.
func checkOutcome(t *testing.T, err error) string {
	t.Helper()
	for _, refusal := range []error{ErrNotMounted, ErrChanged, ErrBusy} {
		if errors.Is(err, refusal) {
			return refusal.Error()
		}
	}
	must(t, err)
	return "unmounted"
}

// clearTarget removes everything from the target.
func clearTarget(t *testing.T, s bindScene) {
	t.Helper()
	for range 10 {
		if systest.UnmountPath(s.target, true) != nil {
			return
		}
	}
	t.Fatal("target does not come clear")
}

// TestUnmountTouchesNothingThatCameBetween acts at the worst moment: after the
// mount was opened and compared, before it is unmounted.
func TestUnmountTouchesNothingThatCameBetween(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			deleted bool
			act     rivalAction
			want    error
		}{
			"deleted, unmounted":      {true, rivalActions["unmounts"], ErrNotMounted},
			"deleted, replaced":       {true, rivalActions["replaces by a healthy mount"], ErrNotMounted},
			"deleted, stacking fails": {true, rivalActions["stacks a healthy mount on top"], nil},
			"other, unmounted":        {false, rivalActions["unmounts"], ErrNotMounted},
			"other, replaced":         {false, rivalActions["replaces by a healthy mount"], ErrNotMounted},
			"other, stacked upon":     {false, rivalActions["stacks a healthy mount on top"], ErrBusy},
		} {
			t.Run(name, func(t *testing.T) {
				s := newScene(t)
				write(t, s.healthySource())
				if tc.deleted {
					must(t, os.Remove(s.source))
				}
				var left []ID
				err := Unmount(t.Context(), inspect(t, s.target).ID, Options{Check: func(State) error {
					left = tc.act(s)
					return nil
				}})
				if !errors.Is(err, tc.want) {
					t.Errorf("unmount: %v, want %v", err, tc.want)
				}
				for _, id := range left {
					if !isMounted(t, id) {
						t.Errorf("healthy %v is gone", id)
					}
				}
			})
		}
	})
}
