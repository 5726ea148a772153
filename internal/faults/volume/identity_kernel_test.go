// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

// readOnlyScene is a scene whose pod has the volume at a path of the container, to read alone, and nothing may be run
// there.
type readOnlyScene struct {
	*volumeScene
	group string
	from  string // what the runtime binds into the container
	at    string // where
}

func newGuarded(t *testing.T) *readOnlyScene {
	t.Helper()
	g := &readOnlyScene{volumeScene: newScene(t, deepDir), from: t.TempDir(), at: filepath.Join(t.TempDir(), "data")}
	g.group = g.volumeScene.makeCgroup()
	g.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: g.at, ReadOnly: true}}
	g.runtime.of = &cri.Owner{
		ContainerID: "c1", Container: "app", PodUID: string(g.Pod.UID), PodNamespace: g.Pod.Namespace, PodName: g.Pod.Name,
		Mounts: []cri.Mount{{HostPath: g.Point, ContainerPath: g.at, ReadOnly: true}},
	}
	g.must(sys.BindMount(g.Point, g.from))
	t.Cleanup(func() { _ = systest.UnmountPath(g.from, true) })
	g.must(sys.OnThread(func() error {
		at, err := sys.Lookup(g.from)
		if err != nil {
			return err
		}
		defer at.Close()
		return sys.SetMountAttr(at, volumetest.Locks)
	}))
	return g
}

// container starts its first process.
func (g *readOnlyScene) container() *kerneltest.Actor {
	g.t.Helper()
	a, _ := volumetest.Workload{Group: g.group, At: g.at, Source: g.from}.Start(g.t)
	return a
}

// expectUnharmed makes sure that an attack came to nothing.
func (g *readOnlyScene) expectUnharmed(name string, a volumetest.Attempt) {
	g.t.Helper()
	if a.Write == "" {
		g.t.Errorf("%s: has written to the volume", name)
	}
	if _, err := os.Lstat(filepath.Join(g.Staging, g.Dir, volumetest.Pwned)); !errors.Is(err, os.ErrNotExist) {
		g.t.Errorf("%s: in the volume on the host: %v", name, err)
	}
}

// expectLocked makes sure that no flag could be cleared, and that it is the lock which keeps it.
func (g *readOnlyScene) expectLocked(name string, a volumetest.Attempt) {
	g.t.Helper()
	if a.Set != "" {
		g.t.Errorf("%s: to set what is set: %s: the test would prove nothing", name, a.Set)
	}
	for flag, err := range a.Clear {
		if err != sys.EPERM.Error() {
			g.t.Errorf("%s: to clear %s: %q, want %q", name, flag, err, sys.EPERM)
		}
	}
	if len(a.Clear) != 4 {
		g.t.Errorf("%s: %d flags were tried", name, len(a.Clear))
	}
	g.expectUnharmed(name, a)
}

// shownMount is what a process has mounted at the place of the volume.
func (g *readOnlyScene) shownMount(pid int) mountinfo.Mount {
	g.t.Helper()
	table, err := mountns.Table(pid)
	g.must(err)
	m, _ := table.Top(g.at)
	return m
}

// TestFlagsStayLocked: a volume that was given to read alone died and is replaced. Neither who was root of a user
// namespace before nor who becomes one after may clear a flag of it.
func TestFlagsStayLocked(t *testing.T) {
	g := newGuarded(t)
	c := g.container()
	evil, before := volumetest.Workload{User: true, Group: g.group, At: g.at, Source: g.from}.Start(t)
	mounts := g.MountsOf(evil.PID)
	g.Kill()
	g.Remount("new")
	health := g.inspectVolume()
	actions, _ := g.repairVolume()
	for _, step := range actions {
		if ns, err := mountns.Of(evil.PID); err != nil || step.Mount.Namespace == ns.Inode {
			t.Errorf("%v; a step changes the mount namespace that the workload has made: %+v", err, step)
		}
	}
	if len(actions) != 2 || health.Surroundings.ForeignCopies == 0 {
		t.Errorf("%d steps, %d foreign copies, want the host's mount and the container's", len(actions), health.Surroundings.ForeignCopies)
	}
	expectSameMounts(t, mounts, g.MountsOf(evil.PID))
	if got := readInContainer(c.PID, g.at+"/data"); got != "new" {
		t.Errorf("the container reads %q", got)
	}
	g.expectLocked("before", before())

	var after func() volumetest.Attempt
	ns, err := mountns.Of(c.PID)
	g.must(err)
	g.must(ns.Do(func() error {
		_, after = volumetest.Workload{User: true, Group: g.group, At: g.at}.Start(t)
		return nil
	}))
	g.expectLocked("after", after())
}

// TestFlagsStayLockedWhereMountsSpread: to a user namespace to which those of the container spread, the replacement
// does.
func TestFlagsStayLockedWhereMountsSpread(t *testing.T) {
	g := newGuarded(t)
	c, _ := volumetest.Workload{Group: g.group, At: g.at, Source: g.from, Shares: true}.Start(t)
	var (
		evil   *kerneltest.Actor
		attack func() volumetest.Attempt
	)
	ns, err := mountns.Of(c.PID)
	g.must(err)
	g.must(ns.Do(func() error {
		evil, attack = volumetest.Workload{User: true, Group: g.group, At: g.at, Follows: true}.Start(t)
		return nil
	}))
	g.Kill()
	g.Remount("new")
	g.repairVolume()
	if got := readInContainer(c.PID, g.at+"/data"); got != "new" {
		t.Errorf("the container reads %q", got)
	}
	if shown, want := g.shownMount(evil.PID), g.shownMount(c.PID); shown.Minor != want.Minor {
		t.Fatalf("the workload has %+v, and the container %+v: the test would prove nothing", shown, want)
	}
	g.expectLocked("spread", attack())
}

// TestForgedDeath: a file system of the same type and source, that a workload has served itself and let die at the
// place of its volume, is not the volume, which is healthy.
func TestForgedDeath(t *testing.T) {
	g := newGuarded(t)
	c := g.container()
	w := volumetest.Workload{User: true, Group: g.group, At: g.at, Source: deepDir, Serve: []string{"forged", deepDir}, Name: volumetest.Name}
	evil, attack := w.Start(t)
	mounts := g.MountsOf(evil.PID)
	genuine, forged := g.shownMount(c.PID), g.shownMount(evil.PID)
	if forged.FSType != genuine.FSType || forged.Source != genuine.Source || forged.Root != genuine.Root || forged.Minor == genuine.Minor {
		t.Fatalf("forged %+v, genuine %+v: the test would prove nothing", forged, genuine)
	}
	own, err := mountns.Of(evil.PID)
	g.must(err)
	for _, selection := range []mountstate.Scope{{}, {PodUIDs: []string{string(g.Pod.UID)}}} {
		survey := g.survey(selection)
		for _, health := range survey.Volumes {
			actions, _ := g.planOf(health, volume.PlanOptions{})
			for _, step := range actions {
				done, err := g.Inspector.Open()(t.Context(), step)
				t.Errorf("the volume is healthy, and a step was made: %+v: %+v, %v", step, done, err)
			}
			for _, copied := range health.Copies {
				if copied.Mount.Namespace.Same(own) {
					t.Errorf("what the workload has forged is a copy of volume %q: %+v", health.Evidence.Name, copied)
				}
			}
		}
	}
	expectSameMounts(t, mounts, g.MountsOf(evil.PID))
	g.expectUnharmed("forged", attack())
}

// TestTheFirstProcess: where the runtime names it, its mount namespace is the container's, and that of no other
// process.
func TestTheFirstProcess(t *testing.T) {
	for name, c := range map[string]struct {
		own     bool // the first process is in a user namespace of its own
		named   bool // the runtime names it
		steps   int  // the host's own among them
		foreign int
		refusal string
	}{
		"named":                         {named: true, steps: 2, foreign: 1},
		"not named":                     {steps: 3},
		"named, in a user namespace":    {own: true, named: true, steps: 1, foreign: 1, refusal: "restart the container"},
		"not named, and user namespace": {own: true, steps: 2, foreign: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t)
			w := volumetest.Workload{User: c.own, Group: g.group, At: g.at, Source: g.Point}
			first, _ := w.Start(t)
			w.User = false
			second, _ := w.Start(t)
			g.runtime.of.ContainerID = g.runtime.group
			if c.named {
				g.runtime.of.PID = first.PID
			}
			left := map[int]map[string]bool{first.PID: g.MountsOf(first.PID), second.PID: g.MountsOf(second.PID)}
			if !c.own {
				delete(left, first.PID)
			}
			if !c.named {
				delete(left, second.PID)
			}
			g.Kill()
			g.Remount("new")
			health := g.inspectVolume()
			actions, refusals := g.repairVolume()
			if len(actions) != c.steps {
				t.Errorf("%d steps, want %d: %+v, refusals %q", len(actions), c.steps, actions, refusals)
			}
			if c.refusal != "" && !strings.Contains(strings.Join(refusals, "\n"), c.refusal) {
				t.Errorf("refusals %q do not say %q", refusals, c.refusal)
			}
			if (health.Surroundings.ForeignCopies > 0) != (c.foreign > 0) {
				t.Errorf("%d foreign copies, want %d", health.Surroundings.ForeignCopies, c.foreign)
			}
			for pid, before := range left {
				expectSameMounts(t, before, g.MountsOf(pid))
			}
		})
	}
}

// TestOwnerOfTheNamespaceChanged: the process that does a step enters no namespace of another owner than the one that
// was judged, whatever its number and its process.
func TestOwnerOfTheNamespaceChanged(t *testing.T) {
	g := newGuarded(t)
	evil, _ := volumetest.Workload{User: true, Group: g.group, At: g.at, Source: g.from}.Start(t)
	namespace, err := mountns.Of(evil.PID)
	g.must(err)
	own, err := mountns.Of(os.Getpid())
	g.must(err)
	own, err = own.Owned()
	g.must(err)
	namespace.UserNamespace = own.UserNamespace
	err = namespace.Do(func() error { return errors.New("entered") })
	if !errors.Is(err, mountns.ErrChanged) {
		t.Errorf("error %v, want ErrChanged", err)
	}
	if namespace, err = namespace.Owned(); err != nil || namespace.UserNamespace == own.UserNamespace || namespace.UserNamespace == 0 {
		t.Errorf("owned by %d, %v, and our own by %d", namespace.UserNamespace, err, own.UserNamespace)
	}
	if err := namespace.Do(func() error { return nil }); err != nil {
		t.Errorf("with its owner: %v", err)
	}
}

// TestManyCopies: a workload has a hundred copies, and of a container no more than 64 are looked at.
func TestManyCopies(t *testing.T) {
	for name, user := range map[string]bool{"in a namespace of its own": true, "in the container": false} {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t)
			w := volumetest.Workload{Group: g.group, At: g.at, Source: g.Point, User: user, Copies: 100}
			w.Start(t)
			if user {
				g.container()
			}
			g.Kill()
			g.Remount("new")
			survey := g.survey(g.ofPod())
			v := survey.Volumes[0]
			noted := strings.Contains(strings.Join(survey.Unknown.Sentences(), "\n"), "were not judged")
			if noted == user || user && v.Surroundings.ForeignCopies < 100 || len(v.Copies) > 64 || !user && len(v.Copies) < 60 {
				t.Errorf("%d copies, %d foreign, incomplete %q", len(v.Copies), v.Surroundings.ForeignCopies, survey.Unknown.Sentences())
			}
			if actions, _ := g.repairVolume(); len(actions) != 2 {
				t.Errorf("%d steps, want the host's and the container's", len(actions))
			}
		})
	}
}
