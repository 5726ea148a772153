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
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/sys"
)

func TestHealthy(t *testing.T) {
	for _, below := range []string{deepDir, "vol1"} {
		s := newScene(t, below)
		c := s.startContainer()
		before, inside := s.Mounts(), s.MountsOf(c.PID)
		for range 2 {
			v := s.inspectVolume()
			if v.Broken() || len(v.Findings()) > 0 || v.Replacement.Source == nil || v.Evidence.Staging == nil {
				t.Errorf("%+v, findings %+v, want a healthy one", v, v.Findings())
			}
		}
		actions, refusals, err := s.Inspector.Plan(t.Context(), s.inspectVolume(), volume.PlanOptions{Abort: true})
		if err != nil || len(actions)+len(refusals) > 0 {
			t.Errorf("actions %+v, refusals %q, %v, want an empty one", actions, refusals, err)
		}
		if s.Scene.Scene.Start(s.Point) != nil || readInContainer(c.PID, "data/data") != "old" {
			t.Error("looking has changed it")
		}
		expectSameMounts(t, before, s.Mounts())
		expectSameMounts(t, inside, s.MountsOf(c.PID))
	}
}

// TestStates has each fault happen under a container that runs, and heals it.
func TestStates(t *testing.T) {
	for name, c := range map[string]struct {
		below    string
		happen   func(s *volumeScene)
		code     fault.Code
		evidence string
		copies   int
	}{
		"Z: the daemon is killed": {deepDir, func(s *volumeScene) {
			s.Kill()
			s.Remount("new")
		}, fault.DisconnectedFUSE, "file system is gone", 3},
		"Y: and looked up through the dead mount": {"vol1", func(s *volumeScene) {
			s.Kill()
			_, _ = os.Lstat(filepath.Join(s.Staging, "vol1"))
			s.Remount("new")
		}, fault.DisconnectedFUSE, "file system is gone", 3},
		"Y2: and its parent": {deepDir, func(s *volumeScene) {
			s.Kill()
			_, _ = os.Lstat(filepath.Join(s.Staging, "csi"))
			s.Remount("new")
		}, fault.DisconnectedFUSE, "file system is gone", 3},
		"X: renamed and created again": {deepDir, func(s *volumeScene) {
			s.Elsewhere("mv", "csi.vol1", "old")
			s.Elsewhere("make", "csi.vol1.sub", "new")
			s.Elsewhere("make", "csi.vol1", "new")
			_, _ = os.Lstat(filepath.Join(s.Staging, deepDir))
		}, fault.DeletedVolumeSource, "lost its name", 3},
		"X before anybody has looked": {deepDir, func(s *volumeScene) {
			s.Elsewhere("mv", "csi.vol1", "old")
			s.Elsewhere("make", "csi.vol1.sub", "new")
			s.Elsewhere("make", "csi.vol1", "new")
		}, fault.DeletedVolumeSource, "was replaced", 3},
		"X2: deleted and created again": {deepDir, func(s *volumeScene) {
			s.Elsewhere("rm", "csi.vol1")
			s.Elsewhere("make", "csi.vol1.sub", "new")
			s.Elsewhere("make", "csi.vol1", "new")
		}, fault.DeletedVolumeSource, "link count is 0", 3},
		"W: the parent renamed and created again": {deepDir, func(s *volumeScene) {
			s.Elsewhere("mv", "csi", "csi2")
			_, _ = os.Lstat(filepath.Join(s.Staging, "csi"))
			s.Elsewhere("make", "csi.vol1.sub", "new")
			s.Elsewhere("make", "csi.vol1", "new")
		}, fault.DeletedVolumeSource, "directory above has lost its name", 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, c.below)
			container := s.startContainer()
			c.happen(s)
			v := s.inspectVolume()
			if v.Verdict.Code != c.code || !strings.Contains(strings.Join(v.Verdict.Reasons, "\n"), c.evidence) || v.Replacement.Source == nil || len(v.Copies) != c.copies {
				t.Fatalf("%s, evidence %q, source %+v (%s), copies %+v", v.Verdict.Code, v.Verdict.Reasons, v.Replacement.Source, v.Replacement.NoSourceReason, v.Copies)
			}
			if f := v.Findings(); len(f) != 1+c.copies || f[0].Pod.Name != "web" || f[0].Mount.MountInfoID == 0 {
				t.Errorf("findings = %+v", f)
			}
			stop := s.watchFile(container.PID, "data")
			began := time.Now()
			actions, refusals := s.repairVolume()
			t.Logf("%d mounts replaced and verified in %s", len(actions), time.Since(began))
			if reads, empty := stop(); empty > 0 || reads == 0 {
				t.Errorf("%d of %d times the container has found an empty directory", empty, reads)
			} else {
				t.Logf("%d looks meanwhile, none of an empty directory", reads)
			}
			if len(actions) != 1+c.copies || len(refusals) > 0 || actions[0].Mount.Point != s.Point || actions[1].Key().Container != "app" {
				t.Errorf("actions %+v, refusals %q", actions, refusals)
			}
			for _, file := range []string{"data/data", "sub/data"} {
				if got := readInContainer(container.PID, file); got != "new" {
					t.Errorf("%s: %q, want what is in the volume now", file, got)
				}
			}
			if err := s.Scene.Scene.Start(s.Point); err != nil {
				t.Errorf("no container can be started: %v", err)
			}
			if v := s.inspectVolume(); v.Broken() {
				t.Errorf("%+v is broken still", v)
			}
			for _, step := range actions {
				if done, err := s.Inspector.Open()(t.Context(), step); err != nil || !done.Already {
					t.Errorf("once more: %+v, %v", done, err)
				}
			}
		})
	}
}

// watchFile has a reader in the container look again and again, and counts how often that was, and the directory empty.
func (s *volumeScene) watchFile(pid int, name string) (stop func() (reads, empty int)) {
	var reads, empty int
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
				reads++
				if entries, err := os.ReadDir(procRoot(pid, name)); err == nil && len(entries) == 0 {
					empty++
				}
			}
		}
	}()
	return func() (int, int) {
		close(end)
		<-ended
		return reads, empty
	}
}

// TestSplit has the bind made while the volume was not mounted (V).
func TestSplit(t *testing.T) {
	s := bareScene(t, "vol1")
	under := filepath.Join(s.Staging, "vol1")
	s.must(os.MkdirAll(filepath.Join(under, "sub"), 0o755))
	s.must(sys.BindMount(under, s.Point))
	c := s.startContainer()
	s.Serve("new")
	before, inside := s.Mounts(), s.MountsOf(c.PID)
	health := s.inspectVolume()
	if health.Verdict.Code != fault.DeletedVolumeSource || !strings.Contains(health.Verdict.Reasons[0], "data is being split") {
		t.Fatalf("%s, %q", health.Verdict.Code, health.Verdict.Reasons)
	}
	if len(health.Copies) != 3 || len(health.Replacement.WrittenToNodeDisk) != 1 {
		t.Fatalf("%s, %q, split %q, copies %+v", health.Verdict.Code, health.Verdict.Reasons, health.Replacement.WrittenToNodeDisk, health.Copies)
	}
	actions, refusals := s.planOf(health, volume.PlanOptions{})
	if len(actions) > 0 || len(refusals) != 4 || !strings.Contains(refusals[0], "cp -a") {
		t.Errorf("actions %+v, refusals %q, want that nothing is hidden that was written", actions, refusals)
	}
	expectSameMounts(t, before, s.Mounts())
	expectSameMounts(t, inside, s.MountsOf(c.PID))
	s.must(os.RemoveAll(filepath.Join(s.Point, "sub")))
	actions, refusals = s.repairVolume()
	if len(refusals) > 0 || len(actions) != 4 || readInContainer(c.PID, "data/data") != "new" || readInContainer(c.PID, "sub/data") != "new" {
		t.Errorf("actions %+v, refusals %q, the container reads %q and %q", actions, refusals, readInContainer(c.PID, "data/data"), readInContainer(c.PID, "sub/data"))
	}
}

// TestSplitAndRemoved has the directory go as well (V2).
func TestSplitAndRemoved(t *testing.T) {
	s := bareScene(t, "vol1")
	under := filepath.Join(s.Staging, "vol1")
	s.must(os.MkdirAll(under, 0o755))
	s.must(sys.BindMount(under, s.Point))
	s.must(os.Remove(under))
	s.Serve("new")
	v := s.inspectVolume()
	why := strings.Join(v.Verdict.Reasons, "\n")
	if v.Verdict.Code != fault.DeletedVolumeSource || !strings.Contains(why, "lost its name") || !strings.Contains(why, "data is being split") {
		t.Fatalf("%s, %q", v.Verdict.Code, v.Verdict.Reasons)
	}
	if actions, refusals := s.repairVolume(); len(actions) != 1 || s.Scene.Scene.Start(s.Point) != nil {
		t.Errorf("actions %+v, refusals %q, start: %v", actions, refusals, s.Scene.Scene.Start(s.Point))
	}
}

// TestHung has the daemon stopped (H).
func TestHung(t *testing.T) {
	s := newScene(t, deepDir)
	c := s.startContainer()
	s.Stop()
	before, inside := s.Mounts(), s.MountsOf(c.PID)
	health := s.inspectVolume()
	why := "stopped"
	if sys.HasFUSEServer.Probe() != nil {
		why = "it is not known which process serves"
	}
	if health.Verdict.Code != fault.HungMount || health.Replacement.Source != nil || !strings.Contains(strings.Join(health.Surroundings.DaemonNotes, "\n"), why) {
		t.Fatalf("%s, source %+v, fate %q, want %q", health.Verdict.Code, health.Replacement.Source, health.Surroundings.DaemonNotes, why)
	}
	actions, refusals := s.planOf(health, volume.PlanOptions{})
	if len(actions) > 0 || !strings.Contains(refusals[0], "must be requested") {
		t.Errorf("actions %+v, refusals %q, want that nothing is done unasked", actions, refusals)
	}
	expectSameMounts(t, before, s.Mounts())
	expectSameMounts(t, inside, s.MountsOf(c.PID))
	actions, refusals = s.planOf(health, volume.PlanOptions{Abort: true})
	if len(actions) != 1 || actions[0].Kind != fault.Abort || actions[0].Lossless {
		t.Fatalf("actions %+v, refusals %q, want to abort alone", actions, refusals)
	}
	for _, want := range []string{"aborted FUSE connection", "already"} {
		if done, err := s.Inspector.Open()(t.Context(), actions[0]); err != nil || !strings.Contains(done.Message, want) {
			t.Fatalf("abort: %+v, %v, want %q", done, err, want)
		}
	}
	signal(t, s.Server.PID, "CONT")
	s.Kill()
	s.Remount("new")
	s.repairVolume()
	if got := readInContainer(c.PID, "data/data"); got != "new" {
		t.Errorf("the container reads %q", got)
	}
}

// TestHungWithSource has the driver mount the volume again while the old daemon hangs.
func TestHungWithSource(t *testing.T) {
	s := newScene(t, deepDir)
	c := s.startContainer()
	s.Stop()
	s.Remount("new")
	v := s.inspectVolume()
	if actions, refusals, err := s.Inspector.Plan(t.Context(), v, volume.PlanOptions{}); err != nil || len(actions) > 0 || v.Replacement.Source == nil {
		t.Fatalf("actions %+v, refusals %q, %v, source %+v, want that nothing is done unasked", actions, refusals, err, v.Replacement.Source)
	}
	actions, refusals := s.planOf(v, volume.PlanOptions{Abort: true})
	if len(actions) != 5 || actions[0].Kind != fault.Abort {
		t.Fatalf("actions %+v, refusals %q", actions, refusals)
	}
	if done, err := s.Inspector.Open()(t.Context(), actions[1]); !errors.Is(err, volume.ErrRefused) {
		t.Errorf("before it is aborted: %+v, %v, want that it is refused", done, err)
	}
	if proof, err := s.Inspector.Verify(t.Context(), actions); err != nil || proof.Healed || len(proof.NotHealed) != 5 {
		t.Errorf("before anything is done: %+v, %v", proof, err)
	}
	s.apply(actions...)
	proof, err := s.Inspector.Verify(t.Context(), actions)
	if err != nil || !proof.Healed || readInContainer(c.PID, "data/data") != "new" || readInContainer(c.PID, "sub/data") != "new" {
		t.Errorf("%+v, %v, the container reads %q", proof, err, readInContainer(c.PID, "data/data"))
	}
}
