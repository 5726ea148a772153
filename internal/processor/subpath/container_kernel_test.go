// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

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

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// healRounds is how often a container that mounts in a loop sees a bind healed.
const healRounds = 400

// mountLoop is what a container does that mounts and unmounts without a pause.
type mountLoop struct {
	Propagation mount.Propagation
	// Stay is where it mounts for as long as it lives.
	Stay string
	// Turns are where it mounts in turn, each with the source.
	Turns []loopRound
}

type loopRound struct{ Source, Point string }

// loopResult is what came of it.
type loopResult struct {
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
	var l mountLoop
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
	result := loopResult{Mounted: map[string]int{}}
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
				if err := next.mountAndUnmount(&result); err != nil {
					return err
				}
			}
		}
	}
}

// mountAndUnmount mounts, and some time later unmounts exactly what it has mounted, which must be there still. The
// mount below may have come and gone with the host's mounts.
func (n loopRound) mountAndUnmount(result *loopResult) error {
	source, err := sys.Lookup(n.Source)
	if err != nil {
		return err
	}
	defer source.Close()
	at, err := sys.Lookup(n.Point)
	if err != nil {
		return err
	}
	defer at.Close()
	tree, err := sys.CloneTree(source)
	if err != nil {
		return err
	}
	defer tree.Close()
	err = sys.Attach(tree, at, false)
	if errors.Is(err, sys.EINVAL) || errors.Is(err, sys.ENOENT) {
		return nil // it is gone
	}
	if err != nil {
		return err
	}
	result.Mounted[n.Point]++
	made, err := tree.Stat(numberKind())
	if err != nil {
		return err
	}
	for start, wait := time.Now(), rand.N(200*time.Microsecond); time.Since(start) < wait; {
	}
	if _, err = (mountKey{ID: made.MountID}).load(); err == nil {
		err = sys.OnThread(func() error { return sys.DetachMount(tree) })
	}
	if err != nil {
		result.Lost = append(result.Lost, fmt.Sprintf("%d at %q: %v", made.MountID, n.Point, err))
	}
	return nil
}

// TestContainerThatMountsInALoop applies plans while a container mounts and unmounts, next to the binds that are healed
// and on its own copies of others.
func TestContainerThatMountsInALoop(t *testing.T) {
	for name, propagation := range map[string]mount.Propagation{"shares nothing": mount.Private, "follows the host": mount.Slave} {
		t.Run(name, func(t *testing.T) {
			w := newRepairScene(t)
			must(t, mount.SetPropagation(filepath.Dir(w.Root), mount.Shared, false))
			l := w.newMountLoop(t, propagation)
			text, err := json.Marshal(l)
			must(t, err)
			container, conn := startRival(t, sys.PrivateMounts(sys.Clone{}), "container", string(text))
			before := tableOf(t, container.PID)
			_, err = conn.Write([]byte{1})
			must(t, err)
			outcomes := w.healInALoop(t)
			must(t, conn.CloseWrite())
			var result loopResult
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
			left := w.takeCopies(after, before)
			t.Logf("copies of the host's mounts that the container has kept: %d", left)
			if left > 0 && propagation == mount.Private {
				t.Errorf("%d mounts have come to the container, which shares nothing", left)
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the container's mounts changed (-before +after):\n%s", diff)
			}
		})
	}
}

// mountLoop says what the container does: it mounts at a place of its own, above the place of a bind that is healed, at
// that place, where it follows the host also in the bind, and on its copy of another pod's healthy bind.
func (w *repairScene) newMountLoop(t *testing.T, p mount.Propagation) mountLoop {
	t.Helper()
	w.ask(0, "empty", "sub")
	must(t, systest.UnmountPath(w.point, false))
	own, stay, healthy := filepath.Join(w.Root, "own"), filepath.Join(w.Root, "stay"), filepath.Join(w.Root, "healthy")
	neighbour := kubelettest.NewPod()
	neighbour.UID = "neighbour"
	point, theirs := w.Point(w.pod, "empty", "app", 1), w.Point(neighbour, "empty", "app", 1)
	inner := filepath.Join(point, "inner")
	for _, dir := range []string{own, stay, healthy, inner, filepath.Join(w.secondSource(), "inner")} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	w.Stack(healthy, theirs)
	turns := []loopRound{{healthy, own}, {healthy, filepath.Dir(point)}, {healthy, theirs}, {healthy, point}}
	if p == mount.Slave {
		turns = append(turns, loopRound{healthy, inner})
	}
	return mountLoop{Propagation: p, Stay: stay, Turns: turns}
}

// secondSource is what the second subPath of container app names.
func (w *repairScene) secondSource() string {
	return filepath.Join(w.Volume(w.pod, kubelettest.EmptyDir, "empty"), "sub")
}

// takeCopies takes out of a table what has come since before to the places that are healed.
func (w *repairScene) takeCopies(after, before table) (n int) {
	points := []string{w.point, w.Point(w.pod, "empty", "app", 1)}
	for id, m := range after {
		if _, old := before[id]; !old && slices.Contains(points, m.Point) {
			delete(after, id)
			n++
		}
	}
	return n
}

// healInALoop makes stale binds of both kinds and heals them, and holds after each that nothing else is gone, and that
// one mount of what the subPath names now is there in its place.
func (w *repairScene) healInALoop(t *testing.T) map[string]int {
	t.Helper()
	outcomes := map[string]int{}
	for i := range healRounds {
		r := w.makeStale(t, i)
		before := tableOf(t, 0)
		var b bout
		b.apply(t, w, w.plan(t))
		outcomes[b.outcome]++
		if b.outcome == unmounted {
			holds(t, 0, before, r)
		} else {
			holds(t, 0, before)
		}
		must(t, systest.UnmountPath(r.point, true))
	}
	return outcomes
}

// makeStale makes the stale bind of a round: marked deleted, or not.
func (w *repairScene) makeStale(t *testing.T, round int) healing {
	t.Helper()
	if round%4 == 0 {
		w.putStale(t, w.point)
		return healing{w.point, filepath.Join(w.Volume(w.pod, kubelettest.ConfigMap, "configmap"), "key")}
	}
	point := w.Point(w.pod, "empty", "app", 1)
	w.Stack(w.secondSource(), point)
	must(t, os.Rename(w.secondSource(), w.secondSource()+strconv.Itoa(round)))
	must(t, os.MkdirAll(filepath.Join(w.secondSource(), "inner"), 0o755))
	return healing{point, w.secondSource()}
}
