// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/test/cluster"
)

// TestHealsWithoutAnAPIServer stops the API server after a container has failed to start. The program alone finds the fault on the
// node and heals it, and the kubelet starts the container.
func TestHealsWithoutAnAPIServer(t *testing.T) {
	t.Parallel()
	e := start(t, cluster.Options{Kubelet: cluster.Kubernetes118})
	pod := e.deploy(t)
	e.breakSubPath(t, pod, "second content")
	began := time.Now()
	e.StopAPIServer()
	runtimeDir := t.TempDir() // not the machine's own
	must(t, os.Chmod(runtimeDir, 0o700))
	onNode := func(args ...string) (string, int) {
		cmd := e.onNode(t.Context(), t, args...)
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDir)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, status := onNode("scan", "--brief"); status != 1 || !strings.Contains(out, "1 fault: StaleSubPath") {
		t.Errorf("scan ends with status %d: %s", status, out)
	}
	out, status := onNode("recover", "--yes")
	t.Logf("recover:\n%s", out)
	if status != 0 || !strings.Contains(out, "its containers have started after") {
		t.Errorf("recover ends with status %d", status)
	}
	if out, status := onNode("scan"); status != 0 {
		t.Errorf("scan after the repair ends with status %d: %s", status, out)
	}
	e.Wait(t, "the container to be started", func(ctx context.Context) bool {
		started, err := e.Started(ctx, string(pod.UID), "debian")
		return err == nil && started.After(began)
	})
	must(t, e.StartAPIServer(t.Context()))
	e.Wait(t, "the API server to know", func(ctx context.Context) bool {
		after := e.podOf(ctx, "core2")
		return after != nil && after.UID == pod.UID && running(after)
	})
}
