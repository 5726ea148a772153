// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package nodemount

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/nodemount"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/internal/repair/repairtest"
)

func TestMain(m *testing.M) {
	subprocess.Main(nodemount.Job)
	kerneltest.Main(m, nil)
}

// unattached is an API server by which no volume is attached.
type unattached struct{}

func (unattached) WhyStaged(context.Context, string, string) (string, error) { return "", nil }

// TestRecoversStagingPath unmounts a staging path that is left over, and proves it.
func TestRecoversStagingPath(t *testing.T) {
	root := t.TempDir()
	node, err := kubelet.Local(root)
	kerneltest.Must(t, err)
	staging := node.StagingPoints("d.example.com", "h", "pv-1")[0]
	kerneltest.Must(t, errors.Join(os.MkdirAll(node.PodsDir(), 0o755), os.MkdirAll(staging, 0o755),
		os.WriteFile(kubelet.VolumeRecordPath(staging), []byte(`{"driverName":"d.example.com","volumeHandle":"h","specVolID":"pv-1"}`), 0o600)))
	kerneltest.Must(t, mount.Tmpfs(staging, 1<<20))
	t.Cleanup(func() { _ = systest.UnmountPath(staging, true) })
	kerneltest.Must(t, os.Chtimes(node.PodsDir(), time.Now(), time.Now().Add(-time.Hour)))
	h := &Recoverer{Inspector: &nodemount.Inspector{Kubelet: node, Pods: func() []*corev1.Pod { return nil }, Attachments: unattached{}, Runner: &subprocess.Runner{}}}
	request := processor.Request{Values: map[string]string{}}
	part, err := h.Plan(t.Context(), request)
	kerneltest.Must(t, err)
	part.Family = h.Name()
	plan := repair.Plan{Parts: []repair.Part{part}}
	result, err := repairtest.NewEngine(h).Execute(t.Context(), request, &plan, repairtest.NewJournal(plan))
	kerneltest.Must(t, err)
	if found := result.Findings; len(found) != 1 || found[0].Code != fault.LeftoverStaging || !found[0].Healed {
		t.Errorf("findings %+v", found)
	}
	if part, err := h.Plan(t.Context(), request); err != nil || part.NotApplicable == "" {
		t.Errorf("afterwards: %+v, %v", part, err)
	}
}
