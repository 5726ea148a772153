// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubediag.org/kubediag/internal/cri/critest"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

func TestScanAsksTheRuntimeForNames(t *testing.T) {
	for name, answers := range map[string]bool{"it answers": true, "it is dead": false} {
		t.Run(name, func(t *testing.T) {
			scene, pods := newStage(t, 1, 1)
			updateConfigMap(scene, pods[0])
			var runtime *critest.Runtime
			if answers {
				record := &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
					Labels: critest.Labels("default", "from-runtime", string(pods[0].UID), "app"),
				}}
				runtime = &critest.Runtime{Records: func() []*runtimeapi.ContainerStatusResponse { return []*runtimeapi.ContainerStatusResponse{record} }}
			}
			actor := kerneltest.Start(t, "kubelet", "--root-dir="+scene.Root, "--container-runtime-endpoint=unix://"+critest.Listen(t, runtime))
			s := &scan{node: nodeOf(t, actor.PID)}
			must(t, s.search(t.Context(), searches.All()))
			faults := s.sum.Findings
			start := time.Now()
			s.addPodNames(t.Context(), faults)
			if took := time.Since(start); took > 3*nameTimeout {
				t.Errorf("names took %v", took)
			}
			if len(faults) != 1 || (faults[0].Pod.Name == "from-runtime") != answers {
				t.Errorf("faults %+v", faults)
			}
			if slices.Contains(s.looked.PodNames.From, namesFromRuntime) != answers {
				t.Errorf("names from %q", s.looked.PodNames.From)
			}
			failed := slices.ContainsFunc(s.looked.PodNames.Errors, func(e string) bool { return strings.HasPrefix(e, "runtime: ") })
			if failed == answers {
				t.Errorf("errors %q", s.looked.PodNames.Errors)
			}
		})
	}
}
