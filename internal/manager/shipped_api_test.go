// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package manager

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/version"
)

// TestSetsAreKeptCurrent by a manager that starts on what an earlier release and users have left.
func TestSetsAreKeptCurrent(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		old, mine := w.leave(t, "auto", true), w.leave(t, "held-device-op-set", false)
		w.run(t)
		w.Until(t, old, func() bool { return len(old.Spec.AdjacencyList) == 4 && old.Status.Ready })
		if old.Labels[v1.LabelVersion] != version.String() || old.Labels["team"] != "ours" {
			t.Errorf("labels %v", old.Labels)
		}
		// All are looked at together, so the other one was, too.
		if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(mine), mine); err != nil || len(mine.Spec.AdjacencyList) != 2 {
			t.Errorf("a user's set is %+v, %v", mine.Spec, err)
		}
		// A user changes one that ships: it stays so. Then the user deletes it: it is as it ships.
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"adjacencyList": [{"id": 0, "to": [1]}, {"id": 1, "operation": "mine"}]}}`))
		must(t, w.Client.Patch(t.Context(), old, patch))
		w.Until(t, old, func() bool { return old.Status.ObservedGeneration == old.Generation })
		if len(old.Spec.AdjacencyList) != 2 {
			t.Errorf("what a user has changed is %+v", old.Spec)
		}
		must(t, w.Client.Delete(t.Context(), old))
		w.Until(t, old, func() bool { return len(old.Spec.AdjacencyList) == 4 })
		must(t, w.Client.Delete(t.Context(), mine))
		w.Until(t, mine, func() bool { return mine.Labels[v1.LabelVersion] != "" })
	})
}

// leave has a set in the cluster that does not ship: of an earlier release, or of a user.
func (w *world) leave(t *testing.T, name string, ours bool) *v1.OperationSet {
	t.Helper()
	set := &v1.OperationSet{}
	set.Name = name
	if err := w.Client.Delete(t.Context(), set); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	set = &v1.OperationSet{}
	set.Name, set.Labels = name, map[string]string{"team": "ours"}
	set.Spec.AdjacencyList = []v1.Node{{To: []int32{1}}, {ID: 1, Operation: "mine"}}
	if ours {
		text, err := json.Marshal(&set.Spec)
		must(t, err)
		sum := sha256.Sum256(text)
		set.Labels[v1.LabelVersion] = "v0.0.1"
		set.Annotations = map[string]string{v1.AnnotationSpecHash: hex.EncodeToString(sum[:])}
	}
	must(t, w.Client.Create(t.Context(), set))
	return set
}

// TestManagerChangesNoOtherSet: its role has the names of those that ship.
func TestManagerChangesNoOtherSet(t *testing.T) {
	onServers(t, func(t *testing.T, w *world) {
		set := w.leave(t, "mine-"+w.ns, false)
		t.Cleanup(func() { _ = w.Client.Delete(t.Context(), set) })
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`))
		if err := w.As(t, w.config).Patch(t.Context(), set, patch); !apierrors.IsForbidden(err) {
			t.Errorf("error %v, want Forbidden", err)
		}
	})
}
