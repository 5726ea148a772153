// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package nodemount

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// stagedScene is a node with a volume that is staged, and a pod whose containers run.
type stagedScene struct {
	node    *kubelet.Node
	pod     *corev1.Pod
	staging string
}

const stagedRecord = `{"driverName":"d.example.com","volumeHandle":"h","specVolID":"pv-1","volumeLifecycleMode":"Persistent"}`

// newStagedScene mounts the staging path.
func newStagedScene(t *testing.T) (*scene, *stagedScene) {
	t.Helper()
	plain := newScene(t)
	node, err := plain.Kubelet.Node(t.Context())
	kerneltest.Must(t, err)
	kerneltest.Must(t, os.RemoveAll(node.PodDir("u")))
	s := &stagedScene{node, kubelettest.NewPod(), node.StagingPoints("d.example.com", "h", "pv-1")[0]}
	kerneltest.Must(t, errors.Join(os.MkdirAll(node.PodDir(string(s.pod.UID)), 0o755), os.MkdirAll(s.staging, 0o755),
		os.WriteFile(kubelet.VolumeRecordPath(s.staging), []byte(stagedRecord), 0o600)))
	kerneltest.Must(t, mount.Tmpfs(s.staging, 1<<20))
	plain.Pods = func() []*corev1.Pod { return []*corev1.Pod{s.pod} }
	return plain, s
}

// noPodSince sets for how long no pod has come or gone.
func (s *stagedScene) noPodSince(t *testing.T, age time.Duration) {
	t.Helper()
	kerneltest.Must(t, os.Chtimes(s.node.PodsDir(), time.Now(), time.Now().Add(-age)))
}

// attachments are the answers of an API server about all volumes.
type attachments struct {
	reason string
	err    error
	asked  []string
}

func (a *attachments) WhyStaged(_ context.Context, driver, handle string) (string, error) {
	a.asked = append(a.asked, driver+" "+handle)
	return a.reason, a.err
}

// TestUnmountsLeftoverStaging unmounts a staging path that the kubelet cannot use again before a controller has attached the volume. It is
// killed and begun again.
func TestUnmountsLeftoverStaging(t *testing.T) {
	plain, s := newStagedScene(t)
	s.noPodSince(t, time.Hour)
	server := &attachments{}
	plain.Attachments = server
	found, actions, refusals, err := plain.Plan(t.Context(), "")
	kerneltest.Must(t, err)
	if len(found) != 1 || found[0].Code != fault.LeftoverStaging || found[0].Details.Repair != fault.Unmount || len(actions) != 1 || actions[0].Mount.Point != s.staging || len(refusals) != 0 {
		t.Fatalf("%+v, %+v, refusals %q", found, actions, refusals)
	}
	if want := []string{"d.example.com h"}; !slices.Equal(server.asked, want) {
		t.Errorf("asked for %q, want %q", server.asked, want)
	}
	file, err := os.Create(filepath.Join(s.staging, "open"))
	kerneltest.Must(t, err)
	if err := plain.Unmount(t.Context(), *actions[0].Mount); !errors.Is(err, mount.ErrBusy) {
		t.Errorf("a file is open: %v", err)
	}
	kerneltest.Must(t, file.Close())
	kerneltest.Must(t, plain.Unmount(t.Context(), *actions[0].Mount))
	if err := plain.Unmount(t.Context(), *actions[0].Mount); !errors.Is(err, mount.ErrNotMounted) {
		t.Errorf("again: %v", err)
	}
	layers, there, err := plain.Left(t.Context(), actions)
	kerneltest.Must(t, err)
	if layers[s.staging] != 0 || len(there) != 0 {
		t.Errorf("left: %v, %v", layers, there)
	}
}

// TestLeavesStagingPaths: no unmount is planned, or the planned one is not done, once the kubelet may have the volume staged.
func TestLeavesStagingPaths(t *testing.T) {
	plain, s := newStagedScene(t)
	s.noPodSince(t, time.Hour)
	for want, server := range map[string]*attachments{
		"the volume has VolumeAttachment": {reason: `the volume has VolumeAttachment "csi-1"`}, "no API server": {err: errors.New("no API server")},
	} {
		plain.Attachments = server
		found, actions, refusals, err := plain.Plan(t.Context(), "")
		if err != nil || len(found) != 0 || len(actions) != 0 || len(refusals) != 1 || !strings.Contains(refusals[0], want) {
			t.Errorf("%+v, %+v, %v, refusals %q, want %q", found, actions, err, refusals, want)
		}
	}
	server := &attachments{}
	plain.Attachments = server
	_, actions, _, err := plain.Plan(t.Context(), s.staging)
	kerneltest.Must(t, err)
	if len(actions) != 1 {
		t.Fatalf("actions %+v", actions)
	}
	planned := *actions[0].Mount
	refuses := func(why string, m fault.Mount, is error) {
		t.Helper()
		if err := plain.Unmount(t.Context(), m); !errors.Is(err, is) {
			t.Errorf("%s: %v, want %v", why, err, is)
		}
	}
	server.reason = "it is attached by now"
	refuses("attached meanwhile", planned, ErrNotRemovable)
	server.reason = ""
	s.noPodSince(t, 0)
	refuses("a pod has come meanwhile", planned, ErrNotRemovable)
	s.noPodSince(t, time.Hour)
	at := filepath.Join(s.node.PodDir(string(s.pod.UID)), "volumes/kubernetes.io~example/v")
	kerneltest.Must(t, errors.Join(os.MkdirAll(at, 0o755), mount.Bind(s.staging, at)))
	s.noPodSince(t, time.Hour)
	refuses("a pod has it meanwhile", planned, ErrNotRemovable)
	table, err := s.node.Mounts(t.Context())
	kerneltest.Must(t, err)
	ns, err := s.node.Namespace()
	kerneltest.Must(t, err)
	of, _ := table.Top(at)
	refuses("forged: a volume of a pod", faults.MountOf(mountns.Mount{Mount: of, Namespace: ns}), ErrNotRemovable)
	kerneltest.Must(t, systest.UnmountPath(at, false))
	forged := planned
	forged.MountInfoID, forged.ID = of.ID, 0
	refuses("forged: a mount that is gone", forged, mount.ErrNotMounted)
	if table, err = s.node.Mounts(t.Context()); err != nil || len(table.All(s.staging)) != 1 {
		t.Errorf("mounts %v, %v", table.All(s.staging), err)
	}
}

// TestLeftoverStaging has a staging path that no pod has, and other things beside it. Only the proven one is a fault.
func TestLeftoverStaging(t *testing.T) {
	volumeDir := func(s *stagedScene) string {
		return filepath.Dir(s.node.VolumePoint(kubelet.Volume{PodUID: string(s.pod.UID), Plugin: kubelet.CSIPlugin, Name: "pv-1"}))
	}
	const old = 2 * time.Minute
	for name, c := range map[string]struct {
		prepare func(s *stagedScene) error
		age     time.Duration // of the directory of the pods
		left    bool
		doubt   bool
	}{
		"no pod has it": {prepare: func(*stagedScene) error { return nil }, age: old, left: true},
		"the kubelet's own plugin": {prepare: func(s *stagedScene) error {
			at := filepath.Join(s.node.PluginsDir(), "kubernetes.io/gce-pd/mounts/disk")
			return errors.Join(os.RemoveAll(kubelet.VolumeRecordPath(s.staging)), os.MkdirAll(at, 0o755), mount.Bind(s.staging, at))
		}, age: old, left: true},
		"a pod has come just now": {prepare: func(*stagedScene) error { return nil }, doubt: true},
		"a clock that has jumped": {prepare: func(*stagedScene) error { return nil }, age: -time.Hour, doubt: true},
		"no record beside it":     {prepare: func(s *stagedScene) error { return os.Remove(kubelet.VolumeRecordPath(s.staging)) }, age: old},
		"an empty record":         {prepare: func(s *stagedScene) error { return os.WriteFile(kubelet.VolumeRecordPath(s.staging), nil, 0o600) }, age: old},
		"the record of a pod names it": {prepare: func(s *stagedScene) error {
			return errors.Join(os.MkdirAll(volumeDir(s)+"/mount", 0o755), os.WriteFile(volumeDir(s)+"/vol_data.json", []byte(stagedRecord), 0o600))
		}, age: old},
		"a pod has its file system": {prepare: func(s *stagedScene) error {
			at := filepath.Join(s.node.PodDir(string(s.pod.UID)), "volumes/kubernetes.io~example/v")
			return errors.Join(os.MkdirAll(at, 0o755), mount.Bind(s.staging, at))
		}, age: old},
		"a record that cannot be read": {prepare: func(s *stagedScene) error { return os.MkdirAll(volumeDir(s)+"/mount", 0o755) }, age: old, doubt: true},
		"a pod that no source knows":   {prepare: func(s *stagedScene) error { return os.MkdirAll(s.node.PodDir("other"), 0o755) }, age: old, doubt: true},
		"a pod that waits for a claim": {prepare: func(s *stagedScene) error {
			s.pod.Status.ContainerStatuses[1].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
			return nil
		}, age: old, doubt: true},
		"a pod that waits for nothing": {prepare: func(s *stagedScene) error {
			s.pod.Status.ContainerStatuses[1].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}
			s.pod.Spec.Volumes = nil
			return nil
		}, age: old, left: true},
		"it is hidden": {prepare: func(s *stagedScene) error { return mount.Tmpfs(s.staging, 1<<20) }, age: old, left: true},
	} {
		t.Run(name, func(t *testing.T) {
			plain, s := newStagedScene(t)
			node := s.node
			kerneltest.Must(t, c.prepare(s))
			s.noPodSince(t, c.age)
			e, err := plain.Look(t.Context())
			kerneltest.Must(t, err)
			sum := e.Judge(&node.Layout, nil)
			left := slices.ContainsFunc(sum.Findings, func(f fault.Finding) bool { return f.Code == fault.LeftoverStaging && f.Details.Repair == "" })
			if left != c.left || (len(sum.LeftOver) > 0) != c.left || (e.Doubt != "") != c.doubt {
				t.Errorf("%+v, doubt %q, want left over: %v", sum.Findings, e.Doubt, c.left)
			}
			text, err := json.Marshal(e)
			var again Evidence
			kerneltest.Must(t, errors.Join(err, json.Unmarshal(text, &again)))
			if n := len(again.Judge(&node.Layout, nil).Findings); n != len(sum.Findings) {
				t.Errorf("%d faults from evidence that was written down, want %d", n, len(sum.Findings))
			}
			plain.Pods = nil
			if e, err := plain.Look(t.Context()); err != nil || len(e.Judge(&node.Layout, nil).LeftOver) != 0 {
				t.Errorf("without the specs of pods: %+v, %v", e, err)
			}
		})
	}
}
