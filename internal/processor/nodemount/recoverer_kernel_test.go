// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package nodemount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/links"
	"kubediag.org/kubediag/internal/faults/nodemount"
	"kubediag.org/kubediag/internal/faults/searches"
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

// TestMountsThatNoPodWants: a mount in the directory of a pod that no pod is known to want keeps a Diagnosis of the node from being clean.
func TestMountsThatNoPodWants(t *testing.T) {
	node, err := kubelet.Local(t.TempDir())
	kerneltest.Must(t, err)
	stray := filepath.Join(node.PodDir("7f1b6f0a-8c3d-4a57-9a0e-0123456789ab"), "stray")
	kerneltest.Must(t, os.MkdirAll(stray, 0o755))
	d := &Diagnoser{
		Inspector: &nodemount.Inspector{Kubelet: node, Pods: func() []*corev1.Pod { return nil }},
		Mounts:    searches.Mounts{Links: &links.Inspector{Kubelet: node}},
	}
	for _, mounted := range []bool{false, true} {
		if mounted {
			kerneltest.Must(t, mount.Tmpfs(stray, 1<<20))
			t.Cleanup(func() { _ = systest.UnmountPath(stray, true) })
		}
		result, err := d.Run(t.Context(), processor.Request{})
		kerneltest.Must(t, err)
		said := slices.ContainsFunc(result.Unjudged, func(text string) bool {
			return strings.Contains(text, strconv.Quote(stray)+": it lies in the directory of a pod")
		})
		if said != mounted || len(result.Findings) > 0 || result.NotApplicable == "" {
			t.Errorf("mounted %t: %+v", mounted, result)
		}
		if judged := processor.UnjudgedError(result) == nil; mounted && judged {
			t.Errorf("clean: %+v", result)
		}
	}
}
