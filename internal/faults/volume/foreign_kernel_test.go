// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// healthy has nothing be at fault.
func (s *deadMountScene) healthy(when string) {
	s.t.Helper()
	if survey, err := s.Inspector.Inspect(s.t.Context(), mountstate.Scope{}); err != nil || len(survey.Broken()) != 0 || len(survey.Unknown.Sentences()) != 0 {
		s.t.Errorf("%s: %+v, %v", when, survey, err)
	}
}

// TestForeignMountInsideAVolume has a bind of another directory of the pod inside an emptyDir, as runtimes leave that of a termination log. It
// is no fault while the pod runs, or the kubelet has its time, and goes by its identity once nothing uses it.
func TestForeignMountInsideAVolume(t *testing.T) {
	s := newDeadMountScene(t, false)
	log := filepath.Join(s.Node.PodDir(string(s.Pod.UID)), "containers/app")
	s.must(os.MkdirAll(log, 0o755))
	s.must(os.WriteFile(filepath.Join(log, "last-words"), []byte("x"), 0o600))
	s.must(sys.BindMount(log, s.at))
	s.healthy("a pod that runs")
	s.deletePod()
	end := s.podProcess()
	s.healthy("a process of the pod")
	end()
	now := metav1.Now()
	s.Pod.DeletionTimestamp = &now
	s.healthy("within its time")
	s.deletePod()
	_, f := s.only()
	d := f.Details
	if f.Code != fault.StuckTermination || d.Reason != fault.ReasonForeignMount || d.Repair != fault.Unmount || f.Volume != "w" || f.Mount.Point != s.at ||
		d.Place != fault.PlaceInsideVolume || impactOf(f) != fault.ImpactTerminating || !strings.Contains(f.Evidence[0], "/containers/app") {
		t.Fatalf("finding %+v", f)
	}
	actions, refusals := s.plan()
	if len(actions) != 1 || len(refusals) != 0 {
		t.Fatalf("plan %+v, refusals %q", actions, refusals)
	}
	user := exec.Command("sleep", "1000")
	user.Dir = s.at
	s.must(user.Start())
	if done, err := s.Inspector.Open()(t.Context(), actions[0]); !errors.Is(err, volume.ErrRefused) || !errors.Is(err, volume.ErrInUse) || s.layers() != 1 {
		t.Errorf("in use: %+v, %v, %d layers", done, err, s.layers())
	}
	s.must(user.Process.Kill())
	_ = user.Wait()                       // it was killed
	brief := exec.Command("sleep", "0.5") // as a kubelet that looks at it
	brief.Dir = s.at
	s.must(brief.Start())
	t.Cleanup(func() { _ = brief.Wait() })
	if proof := s.run(actions); !proof.Healed || s.layers() != 0 {
		t.Errorf("proof %+v, %d layers", proof, s.layers())
	}
	if text, err := os.ReadFile(filepath.Join(log, "last-words")); err != nil || string(text) != "x" {
		t.Errorf("the source has %q, %v", text, err)
	}
	s.healthy("afterwards")
}

// TestForeignMountThatStays: its file system would be lost, or another mount lies on it.
func TestForeignMountThatStays(t *testing.T) {
	for name, c := range map[string]struct {
		mount  func(s *deadMountScene)
		reason fault.RefusalReason
		text   string
	}{
		"of its own file system": {func(s *deadMountScene) { s.must(sys.NewMount("mem", s.at, "tmpfs", "")) }, fault.HasData, "the only mount of its file system"},
		"another one on it": {func(s *deadMountScene) {
			s.must(os.MkdirAll(filepath.Join(s.Node.PodDir(string(s.Pod.UID)), "containers/below"), 0o755))
			s.must(sys.BindMount(filepath.Join(s.Node.PodDir(string(s.Pod.UID)), "containers"), s.at))
			s.must(sys.BindMount(s.at, filepath.Join(s.at, "below")))
		}, fault.InUse, "other mounts lie on it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newDeadMountScene(t, false)
			c.mount(s)
			s.deletePod()
			survey := s.survey(mountstate.Scope{})
			for _, v := range survey.Broken() {
				f := v.Findings()[0]
				if f.Mount.Point != s.at {
					continue
				}
				if f.Code != fault.StuckTermination || f.Details.Repair != "" || f.Details.Refusal.Reason != c.reason || !strings.Contains(f.Details.Refusal.Text, c.text) {
					t.Errorf("finding %+v", f)
				}
				forged := fault.Action{Kind: fault.Unmount, Mount: &f.Mount, Pod: &fault.Pod{UID: string(s.Pod.UID)}}
				if _, err := s.Inspector.Open()(t.Context(), forged); err == nil || s.layers() != 1 {
					t.Errorf("forged: %v, %d layers", err, s.layers())
				}
				if actions, refusals, err := s.Inspector.Plan(t.Context(), v, volume.PlanOptions{}); err != nil || len(actions) != 0 || len(refusals) != 1 {
					t.Errorf("plan %+v, %q, %v", actions, refusals, err)
				}
				return
			}
			t.Errorf("no fault: %+v", survey)
		})
	}
}
