// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestFirstProcess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		info map[string]string
		want int
	}{
		"containerd, CRI-O":  {map[string]string{"info": `{"sandboxID":"s","pid":4711,"runtimeSpec":{"process":{}}}`}, 4711},
		"nothing at length":  {},
		"no number":          {info: map[string]string{"info": `{"sandboxID":"s"}`}},
		"another kind":       {info: map[string]string{"info": `{"pid":"4711"}`}},
		"no JSON":            {info: map[string]string{"info": "pid: 4711"}},
		"under another name": {info: map[string]string{"pid": "4711"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &podRuntime{fakeRuntime: fakeRuntime{records: []*runtimeapi.ContainerStatus{exporter(idA)}, info: c.info}}
			owner, err := serve(t, "v1", r).Container(t.Context(), idA)
			if err != nil || owner.PID != c.want {
				t.Errorf("first process %d, %v, want %d", owner.PID, err, c.want)
			}
		})
	}
}

// TestFirstProcessOfAnother: a number that the runtime gives means a process of that container, or nothing.
func TestFirstProcessOfAnother(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*Owner{
		"no container": nil, "not named": {ContainerID: idA}, "none": {ContainerID: idA, PID: -1}, "of no container": {ContainerID: idA, PID: 1},
	} {
		if ns, known := o.first(); known {
			t.Errorf("%s: %v", name, ns)
		}
	}
}
