// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build ceph

package states_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/test/ceph"
	"kubediag.org/kubediag/test/ceph/states"
)

// scene is a pod with a volume at a place, and a container that has it and runs.
type scene struct {
	t         *testing.T
	place     *states.Place
	pod       *corev1.Pod
	container bundle
	judge     *volume.Inspector
}

func newScene(t *testing.T, s states.State) *scene {
	t.Helper()
	root := t.TempDir()
	sc := &scene{t: t, place: states.New(t, ceph.Shared(t), root, podUID, s.Below), pod: kubelettest.NewPod()}
	sc.pod.UID = types.UID(podUID)
	sc.pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim", MountPath: "/data"}}
	node, err := kubelet.Local(root)
	must(t, err)
	runner := &subprocess.Runner{}
	sc.judge = &volume.Inspector{
		Kubelet: node, Prober: &probe.Prober{Deadline: patience(s), Runner: runner}, Runtime: sc, Pods: sc,
		Runner: runner, Silence: 3 * time.Second,
	}
	sc.place.Bound = func() { sc.container = runLooking(t, sc.place.Target) }
	return sc
}

// PodByUID has the one pod.
func (s *scene) PodByUID(uid string) *corev1.Pod {
	if uid != podUID {
		return nil
	}
	return s.pod
}

// Owner knows the processes of the one container.
func (s *scene) Owner(_ context.Context, cgroup string) (cri.Owner, error) {
	if !strings.Contains(cgroup+"\n", "/"+s.container.id+"\n") {
		return cri.Owner{}, cri.ErrNotFound
	}
	return cri.Owner{
		ContainerID: s.container.id, Container: s.pod.Spec.Containers[0].Name,
		PodUID: podUID, PodNamespace: s.pod.Namespace, PodName: s.pod.Name,
		Mounts: []cri.Mount{{HostPath: s.place.Target, ContainerPath: "/data"}},
	}, nil
}

func (s *scene) inspect() *volume.Health {
	s.t.Helper()
	survey, err := s.judge.Inspect(s.t.Context(), mountstate.Scope{})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(survey.Volumes) != 1 { // Coverage.Incomplete may be about mount namespaces that other programs flood meanwhile
		s.t.Fatalf("%d volumes, incomplete: %q", len(survey.Volumes), survey.Unknown.Gaps)
	}
	return survey.Volumes[0]
}

func (s *scene) plan(v *volume.Health) (actions []fault.Action, refusals []string) {
	s.t.Helper()
	actions, refusals, err := s.judge.Plan(s.t.Context(), v, volume.PlanOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return actions, refusals
}

// refuse asserts that a volume is named with its code and left alone. If the staging path answers it is looked into.
// The kernel may learn by this that the folder is gone, and mark it; nothing else changes then. Nothing at all changes
// otherwise.
func (s *scene) refuse(state states.State) (refusals []string) {
	s.t.Helper()
	before := s.place.Line(s.t)
	v := s.inspect()
	actions, refusals := s.plan(v)
	if v.Verdict.Code != state.Code || len(actions) > 0 || len(refusals) == 0 {
		s.t.Errorf("%s, %q, actions %+v, refusals %q, want a refusal of %s", v.Verdict.Code, v.Verdict.Reasons, actions, refusals, state.Code)
	}
	after := s.place.Line(s.t)
	if state.Staged {
		after = strings.Replace(after, "//deleted", "", 1)
		before = strings.Replace(before, "//deleted", "", 1)
	}
	if after != before {
		s.t.Errorf("looking has changed %q to %q", before, after)
	}
	return refusals
}

// heal asserts that a volume is named with its code, and repaired under a container that runs.
func (s *scene) heal(code fault.Code) {
	s.t.Helper()
	v := s.inspect()
	actions, refusals := s.plan(v)
	if v.Verdict.Code != code || len(actions) != 2 || len(refusals) > 0 {
		s.t.Fatalf("%s, %q, why not %q, copies %+v, actions %+v, refusals %q, want two steps about %s", v.Verdict.Code, v.Verdict.Reasons, v.Replacement.NoSourceReason, v.Copies,
			actions, refusals, code)
	}
	for _, again := range []bool{false, true} {
		for _, step := range actions {
			done, err := s.judge.Open()(s.t.Context(), step)
			if err != nil || done.Already != again {
				s.t.Fatalf("apply %+v: %+v, %v", step, done, err)
			}
		}
	}
	proof, err := s.judge.Verify(s.t.Context(), actions)
	if err != nil || !proof.Healed || len(proof.Evidence) != 2 {
		s.t.Errorf("proof %+v, %v", proof, err)
	}
	s.healthy(states.Fresh)
}

// healthy asserts that nothing is wrong, for the container that runs and for one that starts.
func (s *scene) healthy(content string) {
	s.t.Helper()
	if v := s.inspect(); v.Broken() {
		s.t.Errorf("%s, %q, copies %+v, want a healthy one", v.Verdict.Code, v.Verdict.Reasons, v.Copies)
	}
	s.container.await(s.t, content, func(seen string) bool { return seen == content })
	if got, err := runOnce(s.t, s.place.Target); err != nil || got != content {
		s.t.Errorf("a container that starts reads %q, %v", got, err)
	}
}

// starts asserts what a real runc does with the volume as it is.
func (s *scene) starts(state states.State) {
	s.t.Helper()
	if state.Life == states.Hung {
		return
	}
	b := newBundle(s.t, s.place.Target, "true")
	out, err := b.command().CombinedOutput()
	if want := state.Bindable && state.Life == states.Alive; (err == nil) != want {
		s.t.Errorf("a container starts: %v, %s", err, out)
	}
}

// TestEveryStateIsNamedAndHealed takes each state as it is first, and then after the driver has come.
func TestEveryStateIsNamedAndHealed(t *testing.T) {
	for _, state := range states.All() {
		t.Run(state.Name, func(t *testing.T) {
			s := newScene(t, state)
			state.Build(t, s.place)
			s.starts(state.Met(t, s.place))
			switch state.Name {
			case "healthy":
				s.healthy(states.Old)
				return
			case "X": // what is to take its place is there already
				s.heal(state.Code)
				return
			case "V":
				s.place.Restage(t)
				s.heal(state.Code)
				return
			}
			s.refuse(state)
			s.place.Restage(t)
			code := state.Code
			if state.Life == states.Hung {
				code = fault.DisconnectedFUSE // the driver has ended it
			}
			s.heal(code)
		})
	}
}

// TestDataOnTheNodesDiskIsNotHidden has the pod write while the volume was not mounted.
func TestDataOnTheNodesDiskIsNotHidden(t *testing.T) {
	for _, state := range states.All() {
		if state.Name != "V" {
			continue
		}
		s := newScene(t, state)
		state.Build(t, s.place)
		s.place.Restage(t)
		written := filepath.Join(s.place.Target, "written")
		must(t, os.WriteFile(written, []byte("by the pod\n"), 0o600))
		if refusals := s.refuse(state); !strings.Contains(strings.Join(refusals, "\n"), "written") {
			t.Errorf("refusals %q do not name what would be hidden", refusals)
		}
		must(t, os.Remove(written))
		s.heal(state.Code)
	}
}
