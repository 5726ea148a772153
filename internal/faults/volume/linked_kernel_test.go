// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/test/loopback"
)

// TestVolumeThatIsALink has a driver publish a volume as a symbolic link to a directory of its own mount. It is well while that is. Without its
// daemon, the volume and the copy of its container are dead, and the mount is not the kubelet's to replace. Without the mount, the link leads to
// the node's own disk.
func TestVolumeThatIsALink(t *testing.T) {
	s := bareScene(t, deepDir)
	s.Staging = filepath.Join(t.TempDir(), "runtime")
	s.must(os.MkdirAll(s.Staging, 0o755))
	t.Cleanup(func() { _ = systest.UnmountPath(s.Staging, true) })
	s.Serve("old")
	to := filepath.Join(s.Staging, deepDir)
	s.must(os.Remove(s.Point))
	s.must(os.Symlink(to, s.Point))
	survey := func() *volume.Survey {
		found, err := s.Inspector.Inspect(t.Context(), mountstate.Scope{})
		s.must(err)
		return found
	}
	v := s.inspectVolume()
	if v.Broken() || v.Verdict.UnknownReason != "" || v.Evidence.Point != to || v.Evidence.Link != s.Point || v.Evidence.Mount.Point != s.Staging {
		t.Fatalf("a living one: %+v", v)
	}
	s.runtime.of = &cri.Owner{
		ContainerID: "c1", Container: "app", PodUID: string(s.Pod.UID), PodNamespace: s.Pod.Namespace, PodName: s.Pod.Name,
		Mounts: []cri.Mount{{HostPath: s.Point, ContainerPath: "/data"}},
	}
	s.startProcess(to, "/data")
	s.Kill()
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
	actions, refusals, err := s.Inspector.Plan(t.Context(), found.Volumes[0], volume.PlanOptions{Abort: true})
	if err != nil || len(actions) > 0 || len(refusals) == 0 {
		t.Errorf("actions %+v, refusals %q, %v", actions, refusals, err)
	}
	again := found.Record().Judge(func(string) *corev1.Pod { return s.Pod })
	if diff := cmp.Diff(found.Volumes[0].Findings(), again.Broken()[0].Findings()); diff != "" {
		t.Errorf("by what was written down (-want +got):\n%s", diff)
	}

	s.must(systest.UnmountPath(s.Staging, true))
	if found = survey(); len(found.Unknown.Places) != 1 || found.Unknown.Places[0].Point != s.Point ||
		!strings.Contains(found.Unknown.Places[0].Reason, to) {
		t.Errorf("without the mount: %+v, unknown %q", found.Volumes, found.Unknown.Sentences())
	}
}

// mountDisk mounts a new disk.
func (s *volumeScene) mountDisk(at string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "disk")
	s.must(os.WriteFile(file, nil, 0o600))
	s.must(os.Truncate(file, 8<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", file).CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	node := loopback.Attach(s.t, file)
	s.t.Cleanup(func() { loopback.Detach(s.t, node, file) })
	s.must(sys.NewMount(node, at, "ext4", ""))
	s.t.Cleanup(func() { _ = systest.UnmountPath(at, true) })
}

// TestSharedDisk has two volumes whose whole file system is one disk: none of them can be judged, whichever pod is asked about, and whether
// the other is staged or published. Volumes that have directories of one disk are right, and so is one volume of two pods.
func TestSharedDisk(t *testing.T) {
	s := bareScene(t, deepDir)
	s.mountDisk(s.Staging)
	s.must(sys.BindMount(s.Staging, s.Point))
	own := s.inspectVolume().Evidence.Record
	staged := s.Node.StagingPoints(own.Driver, "another", "")[0]
	published := s.Node.VolumePoint(kubelet.Volume{PodUID: "0c8d4f5e-8a7b-4c1d-9e2f-3a4b5c6d7e8f", Plugin: kubelet.CSIPlugin, Name: "another"})
	s.must(os.MkdirAll(filepath.Join(s.Staging, "part"), 0o755))
	for _, c := range []struct {
		name, from, at, handle string
		shared                 bool
	}{
		{"staged", s.Staging, staged, "another", true},
		{"published", s.Staging, published, "another", true},
		{"a directory", filepath.Join(s.Staging, "part"), staged, "another", false},
		{"one volume of two pods", s.Staging, published, own.Handle, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.must(os.MkdirAll(c.at, 0o755))
			s.must(sys.BindMount(c.from, c.at))
			defer func() { s.must(systest.UnmountPath(c.at, true)) }()
			record := *own
			record.Handle = c.handle
			s.Record(c.at, record)
			var v volume.Verdict
			kerneltest.Await(t, "the mount to be asked", func() bool {
				v = s.inspectVolume().Verdict
				return v.UnknownReason != "it could not be asked"
			})
			if v.Code != "" || strings.Contains(v.UnknownReason, "two volumes") != c.shared || strings.Contains(v.UnknownReason, c.at) != c.shared {
				t.Errorf("judged %+v", v)
			}
		})
	}
}

// TestAnotherDisk has a pod with the disk of another volume than the driver has staged, and a local volume whose directory a disk was mounted on
// since: both answer, and neither is right. A local volume of a disk that was mounted before is.
func TestAnotherDisk(t *testing.T) {
	s := bareScene(t, deepDir)
	// asked looks until there was time to ask the mount: a virtual machine may be slow.
	asked := func(look func() volume.Verdict) (v volume.Verdict) {
		kerneltest.Await(t, "the mount to be asked", func() bool {
			v = look()
			return v.UnknownReason != "it could not be asked"
		})
		return v
	}
	own := func() volume.Verdict { return s.inspectVolume().Verdict }
	s.mountDisk(s.Staging)
	s.mountDisk(s.Point)
	if v := asked(own); v.Code != "" || !strings.Contains(v.UnknownReason, "of another volume") {
		t.Errorf("another disk than the staged one: %+v", v)
	}
	s.must(systest.UnmountPath(s.Point, true))
	s.must(sys.BindMount(s.Staging, s.Point))
	if v := asked(own); v.Code != "" || v.UnknownReason != "" {
		t.Errorf("the staged disk: %+v", v)
	}

	source := t.TempDir()
	local := s.Node.VolumePoint(kubelet.Volume{PodUID: string(s.Pod.UID), Plugin: "kubernetes.io/local-volume", Name: "local"})
	s.must(os.MkdirAll(local, 0o755))
	verdict := func() volume.Verdict {
		t.Helper()
		survey := s.survey(mountstate.Scope{PodUIDs: []string{string(s.Pod.UID)}, Volume: "local"})
		if len(survey.Volumes) == 0 { // the node's disk may be of a kind that never fails
			return volume.Verdict{}
		}
		return survey.Volumes[0].Verdict
	}
	bind := func() {
		s.must(sys.BindMount(source, local))
		s.must(sys.SetPropagation(local, sys.Private, false))
		t.Cleanup(func() { _ = systest.UnmountPath(local, true) })
	}
	bind()
	if v := asked(verdict); v.Code != "" || v.UnknownReason != "" {
		t.Errorf("a directory of the node: %+v", v)
	}
	s.mountDisk(source)
	if v := asked(verdict); v.Code != fault.DeletedVolumeSource || !strings.Contains(v.Reason(), source) {
		t.Errorf("mounted on since: %+v", v)
	}
	for _, c := range []struct {
		reason fault.RefusalReason
		text   string
		evicts bool
	}{{fault.NoSource, "a new pod gets the file system", true}, {fault.HasData, "order", false}} {
		var f fault.Finding
		kerneltest.Await(t, "the volume to be found", func() bool {
			survey := s.survey(mountstate.Scope{PodUIDs: []string{string(s.Pod.UID)}, Volume: "local"})
			for _, v := range survey.Broken() {
				f = v.Findings()[0]
			}
			return len(survey.Broken()) == 1
		})
		if of := f.Details.Refusal; of.Reason != c.reason || !strings.Contains(of.Text, c.text) || fault.Known().EvictionHelps(f) != c.evicts {
			t.Errorf("want %v: %+v", c, f.Details)
		}
		s.must(os.WriteFile(filepath.Join(local, "order"), nil, 0o600))
	}
	s.must(systest.UnmountPath(local, true))
	bind()
	if v := asked(verdict); v.Code != "" || v.UnknownReason != "" {
		t.Errorf("bound again: %+v", v)
	}
}
