// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/manifests"
)

// TestTypedAgain has commands that a user can paste: with his flags, names quoted, and pods that were piped piped
// again.
func TestTypedAgain(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"kubediag recover --yes": nil,
		"kubediag recover --yes --kubelet-root=/k --only=StaleSubPath,HeldDevice 4 'it'\\''s'": {
			"--only=StaleSubPath", "--dry-run", "-v", "--kubelet-root", "/k", "--only=HeldDevice", "4", "it's",
		},
		"kubectl get pods -A -o json | kubediag recover --yes --pods=-": {"--pods", "-"},
	} {
		cmd := NewRecoverCommand("")
		var got string
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			got = commandAsTyped(cmd, programName{}, "--yes", args...)
			return nil
		}
		cmd.SetArgs(append([]string{}, args...))
		if err := cmd.Execute(); err != nil || got != want {
			t.Errorf("%q: typed again %q, %v, want %q", args, got, err, want)
		}
	}
}

// TestTargets has a target for the faults that one recoverer repairs together, and a target for each other row.
func TestTargets(t *testing.T) {
	t.Parallel()
	one := func(place int, code fault.Code, pod, container, volume string, repair fault.ActionKind) *scanFault {
		return &scanFault{
			Place: place, Code: code, Pod: scanPod{UID: pod, Namespace: "n", Name: pod}, Container: container, Volume: volume,
			Details: fault.Details{Repair: repair},
		}
	}
	faults := []*scanFault{
		one(1, fault.HungMount, "a", "", "v", ""),
		one(1, fault.HungMount, "b", "", "v", ""),
		one(2, fault.StaleSubPath, "a", "app", "x", fault.Replace),
		one(2, fault.StaleSubPath, "a", "app", "y", fault.Replace),
		one(2, fault.StaleSubPath, "a", "sidecar", "x", fault.Replace),
		one(3, fault.DisconnectedFUSE, "a", "", "v", fault.Replace),
		one(3, fault.DisconnectedFUSE, "a", "app", "v", fault.Replace),
		one(4, fault.OrphanedPodVolumes, "c", "", "", fault.RemoveDirectory),
	}
	var got []string
	for _, target := range targetsOf(faults) {
		text := string(target.progress) + " " + target.operation
		for _, f := range target.faults {
			text += " " + string(f.Code) + "/" + f.Pod.UID + "/" + f.Container + "/" + f.Volume
		}
		got = append(got, text)
	}
	want := []string{
		"Refused  HungMount/a//v HungMount/b//v",
		"Planned subpath-remount-recover StaleSubPath/a/app/x StaleSubPath/a/app/y",
		"Planned subpath-remount-recover StaleSubPath/a/sidecar/x",
		"Planned volume-rebind-recover DisconnectedFUSE/a//v DisconnectedFUSE/a/app/v",
		"Planned orphaned-pod-recover OrphanedPodVolumes/c//",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
}

// TestEngineHasAllThatShips, and each OperationSet of it is ready.
func TestEngineHasAllThatShips(t *testing.T) {
	t.Parallel()
	engine := &localEngine{}
	must(t, engine.loadShipped())
	sets := operations.Sets()
	if len(sets) < 5 || !slices.Contains(sets, "auto") {
		t.Errorf("sets %q", sets)
	}
	all, err := manifests.Read[v1.OperationSet](operations.Files, "OperationSet")
	must(t, err)
	var parsed []string
	for _, set := range all {
		parsed = append(parsed, set.Name)
	}
	slices.Sort(parsed)
	if diff := cmp.Diff(parsed, sets); diff != "" {
		t.Errorf("operations.Sets (-parsed +listed):\n%s", diff)
	}
	for _, name := range sets {
		set, err := engine.store.OperationSet(t.Context(), name)
		if err != nil || !set.Status.Ready {
			t.Errorf("%s: %+v, %v", name, set, err)
			continue
		}
		for _, n := range set.Spec.AdjacencyList[1:] {
			if _, err := engine.store.Operation(t.Context(), n.Operation); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, e := range fault.Known() {
		if e.Operation == "" {
			continue
		}
		if _, err := engine.store.Operation(t.Context(), e.Operation); err != nil {
			t.Errorf("%s: Operation in internal/fault/catalogue.go: %v", e.Code, err)
		}
	}
}
