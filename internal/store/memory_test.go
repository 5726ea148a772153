// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"strings"
	"testing"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/pipeline"
)

const good = `
apiVersion: diagnosis.kubediag.org/v1
kind: Operation
metadata: {name: one}
spec: {processor: {path: /processor/mountInfoCollector}}
---
---
apiVersion: diagnosis.kubediag.org/v1
kind: OperationSet
metadata: {name: set}
spec:
  adjacencyList:
  - {id: 0, to: [1]}
  - {id: 1, operation: one}
---
apiVersion: diagnosis.kubediag.org/v1
kind: Diagnosis
metadata: {name: d}
spec: {operationSet: set, nodeName: my-node}
`

func TestLoadedObjectsComeBack(t *testing.T) {
	t.Parallel()
	m := &Memory{}
	if err := m.Load(strings.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	set, err := m.OperationSet(t.Context(), "set")
	if err != nil || !set.Status.Ready || set.Status.AdjacencyListHash == "" {
		t.Fatalf("OperationSet is %+v, %v", set, err)
	}
	d, err := m.Diagnosis("default", "d")
	if err != nil || d.UID == "" {
		t.Fatalf("Diagnosis is %+v, %v", d, err)
	}
	d.Status.Phase = v1.DiagnosisRunning
	if err := m.Save(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	d.Status.Phase = v1.DiagnosisFailed // of the copy
	if d, _ = m.Diagnosis("default", "d"); d.Status.Phase != v1.DiagnosisRunning {
		t.Errorf("phase is %q", d.Status.Phase)
	}
	d.UID = "another"
	if err := m.Save(t.Context(), d); !errors.Is(err, pipeline.ErrGone) {
		t.Errorf("saving one with another UID: %v", err)
	}
	if _, err := m.Operation(t.Context(), "two"); !errors.Is(err, pipeline.ErrNotFound) {
		t.Errorf("an Operation that is not there: %v", err)
	}
}

func TestBadManifestsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ manifest, want string }{
		"field":     {strings.Replace(good, "path:", "pth:", 1), `unknown field "spec.processor.pth"`},
		"kind":      {strings.Replace(good, "kind: Operation\n", "kind: Operaton\n", 1), `kind: "Operaton"`},
		"version":   {strings.Replace(good, "org/v1", "org/v9", 1), `apiVersion: "diagnosis.kubediag.org/v9"`},
		"twice":     {good + "---" + good, "document 4: take in one"},
		"not yaml":  {"{", "document 1"},
		"bad graph": {strings.Replace(good, "to: [1]", "to: x", 1), "document 2: OperationSet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := (&Memory{}).Load(strings.NewReader(tc.manifest))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestInvalidGraphIsNotReady(t *testing.T) {
	t.Parallel()
	m := &Memory{}
	if err := m.Load(strings.NewReader(strings.Replace(good, "to: [1]", "to: [7]", 1))); err != nil {
		t.Fatal(err)
	}
	set, err := m.OperationSet(t.Context(), "set")
	if err != nil || set.Status.Ready || !strings.Contains(set.Status.Conditions[0].Message, "7") {
		t.Errorf("OperationSet is %+v, %v", set, err)
	}
}
