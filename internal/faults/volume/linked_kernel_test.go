// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

// TestVolumeThatIsALink has a driver publish a volume as a symbolic link to a directory of its own mount. It is well while that is. Without its daemon, the volume and the copy of its container are dead, and the mount is not the kubelet's to replace. Without the
// mount, the link leads to the node's own disk.
func TestVolumeThatIsALink(t *testing.T) {
	s := bareScene(t, deepDir)
	s.g = filepath.Join(t.TempDir(), "runtime")
	s.must(os.MkdirAll(s.g, 0o755))
	t.Cleanup(func() { _ = systest.UnmountPath(s.g, true) })
	s.startDaemon("old")
	to := filepath.Join(s.g, deepDir)
	s.must(os.Remove(s.p))
	s.must(os.Symlink(to, s.p))
	survey := func() *volume.Survey {
		found, err := s.i.Inspect(t.Context(), mountstate.Scope{})
		s.must(err)
		return found
	}
	v := s.inspectVolume()
	if v.Broken() || v.Verdict.UnknownReason != "" || v.Evidence.Point != to || v.Evidence.Link != s.p || v.Evidence.Mount.Point != s.g {
		t.Fatalf("a living one: %+v", v)
	}
	s.runtime.of = &cri.Owner{
		ContainerID: "c1", Container: "app", PodUID: string(s.pod.UID), PodNamespace: s.pod.Namespace, PodName: s.pod.Name,
		Mounts: []cri.Mount{{HostPath: s.p, ContainerPath: "/data"}},
	}
	s.startProcess(to, "/data")
	s.server.Kill()
	found := survey()
	if len(found.Volumes) != 1 || len(found.Unknown.Places) > 0 {
		t.Fatalf("volumes %+v, unknown %q", found.Volumes, found.Unknown.Sentences())
	}
	var codes []string
	for _, f := range found.Volumes[0].Findings() {
		codes = append(codes, string(f.Code)+" "+f.Volume+" "+f.Container+" "+string(f.Details.Repair))
	}
	if diff := cmp.Diff([]string{string(fault.DisconnectedFUSE) + " " + pvName + "  ", string(fault.DisconnectedFUSE) + " " + pvName + " app "}, codes); diff != "" {
		t.Errorf("a dead one (-want +got):\n%s", diff)
	}
	actions, refusals, err := s.i.Plan(t.Context(), found.Volumes[0], volume.PlanOptions{Abort: true})
	if err != nil || len(actions) > 0 || len(refusals) == 0 {
		t.Errorf("actions %+v, refusals %q, %v", actions, refusals, err)
	}
	again := found.Record().Judge(func(string) *corev1.Pod { return s.pod })
	if diff := cmp.Diff(found.Volumes[0].Findings(), again.Broken()[0].Findings()); diff != "" {
		t.Errorf("by what was written down (-want +got):\n%s", diff)
	}

	s.must(systest.UnmountPath(s.g, true))
	if found = survey(); len(found.Unknown.Places) != 1 || found.Unknown.Places[0].Point != s.p ||
		!strings.Contains(found.Unknown.Places[0].Reason, to) {
		t.Errorf("without the mount: %+v, unknown %q", found.Volumes, found.Unknown.Sentences())
	}
}
