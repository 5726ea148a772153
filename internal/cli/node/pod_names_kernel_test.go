// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

func TestScanAsksTheRuntimeForNames(t *testing.T) {
	for name, answers := range map[string]bool{"it answers": true, "it is dead": false} {
		t.Run(name, func(t *testing.T) {
			scene, pods := newStage(t, 1, 1)
			updateConfigMap(scene, pods[0])
			dir, err := os.MkdirTemp("", "cri") // a socket's path must be short
			must(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) })
			l, err := net.Listen("unix", filepath.Join(dir, "s"))
			must(t, err)
			t.Cleanup(func() { l.Close() })
			if answers {
				server := grpc.NewServer()
				runtimeapi.RegisterRuntimeServiceServer(server, &fakeContainers{containers: []*runtimeapi.ContainerStatus{{Labels: map[string]string{
					"io.kubernetes.pod.uid": string(pods[0].UID), "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.name": "from-runtime",
				}}}})
				go func() { _ = server.Serve(l) }()
				t.Cleanup(server.Stop)
			}
			actor := kerneltest.Start(t, "kubelet", "--root-dir="+scene.Root, "--container-runtime-endpoint=unix://"+dir+"/s")
			s := &scan{}
			s.node, err = (&kubelet.Finder{PID: actor.PID}).Node(t.Context())
			must(t, err)
			s.node.Program = filepath.Join(dir, "kubelet") // the test's own program has the texts of any kubelet
			must(t, os.WriteFile(s.node.Program, []byte("Skipping bind-mounting subpath"), 0o600))
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
