// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/mountstate"
)

// TestContainerWithAPlainDirectory: nothing is mounted in the place of a volume, and a container has the directory of the node's own disk. That
// is a fault, for the node and for the pod and by what was written down. Nothing is repaired. Once something is written there, a new pod is no
// remedy.
func TestContainerWithAPlainDirectory(t *testing.T) {
	s := bareScene(t, deepDir)
	owner := &cri.Owner{
		ContainerID: "c1", Container: "app", PodUID: string(s.Pod.UID), PodNamespace: s.Pod.Namespace, PodName: s.Pod.Name,
		Mounts: []cri.Mount{{HostPath: s.Point, ContainerPath: "/data"}},
	}
	s.runtime.of = owner
	app := s.startProcess(s.Point, "/data")
	check := func(when string, reason fault.RefusalReason, evicts bool, texts ...string) {
		t.Helper()
		for _, scope := range []mountstate.Scope{{}, {PodUIDs: []string{string(s.Pod.UID)}}} {
			survey := s.survey(scope)
			if len(survey.Broken()) != 1 || len(survey.Unknown.Places) > 0 {
				t.Fatalf("%s: volumes %+v, unknown %q", when, survey.Volumes, survey.Unknown.Sentences())
			}
			found := survey.Broken()[0].Findings()
			if len(found) != 1 || found[0].Code != fault.DeletedVolumeSource || found[0].Mount.Point != s.Point || found[0].Details.Repair != "" ||
				found[0].Details.Refusal.Reason != reason || fault.Known().EvictionHelps(found[0]) != evicts {
				t.Fatalf("%s: %+v", when, found)
			}
			for _, text := range texts {
				if all := strings.Join(found[0].Evidence, "\n") + found[0].Details.Refusal.Text; !strings.Contains(all, text) {
					t.Errorf("%s: %q is not in %s", when, text, all)
				}
			}
			actions, refusals, err := s.Inspector.Plan(t.Context(), survey.Broken()[0], volume.PlanOptions{Abort: true})
			if err != nil || len(actions) > 0 || len(refusals) != 1 {
				t.Errorf("%s: actions %+v, refusals %q, %v", when, actions, refusals, err)
			}
			again := survey.Record().Judge(func(string) *corev1.Pod { return s.Pod })
			if diff := cmp.Diff(found, again.Broken()[0].Findings()); diff != "" {
				t.Errorf("%s: by what was written down (-want +got):\n%s", when, diff)
			}
		}
	}
	check("empty", fault.NoSource, true, `container "app" at "/data"`, "a new pod gets its volume")
	s.must(os.WriteFile(filepath.Join("/proc", fmt.Sprint(app.PID), "root/data/order"), []byte("1"), 0o600))
	check("written to", fault.HasData, false, `"order"`, "does not get into the volume")

	other := *owner
	other.PodUID = "5e1b6f0a-8c3d-4a57-9a0e-000000000001"
	for name, of := range map[string]*cri.Owner{"a container that is not known": nil, "a container of another pod": &other} {
		s.runtime.of = of
		i := &volume.Inspector{Kubelet: s.Inspector.Kubelet, Prober: s.Inspector.Prober, Runtime: s.runtime, Pods: s.Inspector.Pods} // it remembers no container
		survey, err := i.Inspect(t.Context(), mountstate.Scope{})
		if err != nil || len(survey.Broken()) > 0 || len(survey.Unknown.Places) != 1 || survey.Unknown.Places[0].Point != s.Point {
			t.Errorf("%s: %+v, %q, %v", name, survey.Volumes, survey.Unknown.Sentences(), err)
		}
	}
}
