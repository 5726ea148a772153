// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package nodemount

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
)

// stagedScene is a node with a volume that is staged, and a pod whose containers run.
type stagedScene struct {
	node    *kubelet.Node
	pod     *corev1.Pod
	staging string
}

const stagedRecord = `{"driverName":"d.example.com","volumeHandle":"h","specVolID":"pv-1","volumeLifecycleMode":"Persistent"}`

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
			plain := newScene(t)
			node, err := plain.Kubelet.Node(t.Context())
			kerneltest.Must(t, err)
			kerneltest.Must(t, os.RemoveAll(node.PodDir("u")))
			s := &stagedScene{node, kubelettest.NewPod(), node.StagingPoints("d.example.com", "h", "pv-1")[0]}
			kerneltest.Must(t, errors.Join(os.MkdirAll(node.PodDir(string(s.pod.UID)), 0o755), os.MkdirAll(s.staging, 0o755),
				os.WriteFile(kubelet.VolumeRecordPath(s.staging), []byte(stagedRecord), 0o600)))
			kerneltest.Must(t, mount.Tmpfs(s.staging, 1<<20))
			kerneltest.Must(t, c.prepare(s))
			kerneltest.Must(t, os.Chtimes(node.PodsDir(), time.Now(), time.Now().Add(-c.age)))
			plain.Pods = func() []*corev1.Pod { return []*corev1.Pod{s.pod} }
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
