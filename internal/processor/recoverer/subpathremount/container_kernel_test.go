// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpathremount

import (
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
)

// healRounds is how often a container that mounts in a loop sees a bind healed.
const healRounds = 400

// loops is what a container does that mounts and unmounts without a pause.
type loops struct {
	Propagation mount.Propagation
	// Stay is where it mounts for as long as it lives.
	Stay string
	// Turns are where it mounts in turn, each with the source.
	Turns []turn
}

type turn struct{ Source, Point string }

// looped is what came of it.
type looped struct {
	Mounted map[string]int // by the place
	Lost    []string       // mounts of its own that went without its doing
}

// playContainer is that container. It begins when it hears of it over the socket, and ends when nothing more comes.
func playContainer(args []string, ready func(string)) error {
	conn, err := net.Dial("unix", args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	var l loops
	if err := json.Unmarshal([]byte(args[1]), &l); err != nil {
		return err
	}
	if err := errors.Join(mount.SetPropagation("/", l.Propagation, true), mount.Tmpfs(l.Stay, 1<<16)); err != nil {
		return err
	}
	ready("")
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		_, _ = conn.Read(make([]byte, 1))
		close(over)
	}()
	result := looped{Mounted: map[string]int{}}
	for {
		select {
		case <-over:
			if err := gob.NewEncoder(conn).Encode(result); err != nil {
				return err
			}
			kerneltest.WaitForEnd()
			return nil
		default:
			for _, next := range l.Turns {
				if err := next.take(&result); err != nil {
					return err
				}
			}
		}
	}
}

// take mounts, and some time later unmounts what it has mounted, which must be there still.
func (n turn) take(result *looped) error {
	err := mount.Bind(n.Source, n.Point)
	if err != nil {
		return err
	}
	result.Mounted[n.Point]++
	made, err := mount.Inspect(n.Point)
	if err != nil || filepath.Base(made.Root) != filepath.Base(n.Source) {
		result.Lost = append(result.Lost, fmt.Sprintf("at once: %v, %v", made, err))
		return nil
	}
	for start, wait := time.Now(), rand.N(200*time.Microsecond); time.Since(start) < wait; {
	}
	var m sys.MountStat
	if err := m.Load(sys.MountRef{Mount: made.Unique}, sys.StatmountPoint); err != nil {
		result.Lost = append(result.Lost, fmt.Sprintf("%v: %v", made.ID, err))
		return nil
	}
	if err := sys.UnmountPath(string(m.Point()), true); err != nil {
		result.Lost = append(result.Lost, fmt.Sprintf("%v: %v", made.ID, err))
	}
	return nil
}

// TestContainerThatMountsInALoop applies plans while a container mounts and unmounts, next to the binds that are healed
// and on its own copies of others.
func TestContainerThatMountsInALoop(t *testing.T) {
	kerneltest.Needs(t, sys.HasStatmount)
	for name, propagation := range map[string]mount.Propagation{"shares nothing": mount.Private, "follows the host": mount.Slave} {
		t.Run(name, func(t *testing.T) {
			w := admit(t)
			must(t, mount.SetPropagation(filepath.Dir(w.Root), mount.Shared, false))
			l := w.loops(t, propagation)
			text, err := json.Marshal(l)
			must(t, err)
			container, conn := meet(t, sys.PrivateMounts(sys.Clone{}), "container", string(text))
			before := tableOf(t, container.PID)
			_, err = conn.Write([]byte{1})
			must(t, err)
			outcomes := w.healInALoop(t)
			must(t, conn.CloseWrite())
			var result looped
			must(t, gob.NewDecoder(conn).Decode(&result))
			t.Logf("host: %v, container mounted: %v", outcomes, slices.Sorted(maps.Values(result.Mounted)))
			if len(result.Lost) > 0 {
				t.Errorf("the container lost %q", result.Lost)
			}
			for _, n := range l.Turns {
				if result.Mounted[n.Point] == 0 {
					t.Errorf("the container never mounted at %q", n.Point)
				}
			}
			if outcomes[unmounted] == 0 {
				t.Errorf("outcomes %v: nothing was healed", outcomes)
			}
			after := tableOf(t, container.PID)
			maps.DeleteFunc(before, func(m string, _ bool) bool { return after[m] })
			if len(before) > 0 {
				t.Errorf("of the container's mounts are gone: %v", before)
			}
		})
	}
}

// loops says what the container does: it mounts at a place of its own, above the place of a bind that is healed, and on
// its copy of another pod's healthy bind. It does not mount on the places that are healed: the kernel unmounts, in every
// other namespace, what is mounted on a file or directory that is removed.
func (w *ward) loops(t *testing.T, p mount.Propagation) loops {
	t.Helper()
	w.ask(0, "empty", "sub")
	must(t, sys.UnmountPath(w.point, false))
	own, stay, healthy := filepath.Join(w.Root, "own"), filepath.Join(w.Root, "stay"), filepath.Join(w.Root, "healthy")
	neighbour := kubelettest.NewPod()
	neighbour.UID = "neighbour"
	point, theirs := w.Point(w.pod, "empty", "app", 1), w.Point(neighbour, "empty", "app", 1)
	sub := filepath.Join(w.Volume(w.pod, kubelettest.EmptyDir, "empty"), "sub")
	for _, dir := range []string{own, stay, healthy, point, sub} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	w.Stack(healthy, theirs)
	return loops{Propagation: p, Stay: stay, Turns: []turn{{healthy, own}, {healthy, filepath.Dir(point)}, {healthy, theirs}}}
}

// healInALoop makes stale binds of both kinds and heals them, and holds after each that nothing else is gone.
func (w *ward) healInALoop(t *testing.T) map[string]int {
	t.Helper()
	outcomes := map[string]int{}
	point, sub := w.Point(w.pod, "empty", "app", 1), filepath.Join(w.Volume(w.pod, kubelettest.EmptyDir, "empty"), "sub")
	for i := range healRounds {
		at := w.point
		if i%4 == 0 {
			w.putStale(t, at)
		} else {
			at = point
			w.Stack(sub, at)
			must(t, os.Rename(sub, sub+strconv.Itoa(i)))
			must(t, os.Mkdir(sub, 0o755))
		}
		stale, err := mount.Inspect(at)
		must(t, err)
		before, err := mountIDs(0)
		must(t, err)
		var b bout
		b.apply(t, w, w.plan(t))
		outcomes[b.outcome]++
		after, err := mountIDs(0)
		must(t, err)
		lost := without(before, after)
		wantGone := b.outcome == unmounted
		if len(without(lost, []uint64{stale.Unique})) > 0 || wantGone != slices.Contains(lost, stale.Unique) {
			t.Errorf("outcome %q, gone are %v, the stale one is %d", b.outcome, lost, stale.Unique)
		}
		if b.outcome != unmounted {
			must(t, sys.UnmountPath(at, true))
		}
	}
	return outcomes
}
