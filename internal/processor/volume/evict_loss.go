// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// describeLoss names the data that go with a pod.
func (h *EvictRecoverer) describeLoss(ctx context.Context, pod *corev1.Pod) string {
	lost := []string{"the pod: its containers end within its grace period, and lose what they have not stored"}
	for _, kind := range []struct {
		text string
		is   func(corev1.Volume) bool
	}{
		{"the content of emptyDir volumes", func(v corev1.Volume) bool { return v.EmptyDir != nil }},
		{"the claims and the data of ephemeral volumes", func(v corev1.Volume) bool { return v.Ephemeral != nil }},
		{"the data that the driver keeps only for this pod, of inline CSI volumes", func(v corev1.Volume) bool { return v.CSI != nil }},
	} {
		if names := volumeNames(pod, kind.is); len(names) > 0 {
			lost = append(lost, kind.text+" "+strings.Join(names, ", "))
		}
	}
	if names := volumeNames(pod, func(v corev1.Volume) bool { return v.HostPath != nil }); len(names) > 0 {
		lost = append(lost, "if the new pod runs on another node, hostPath volumes "+strings.Join(names, ", ")+
			", which stay here")
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Job" {
		lost = append(lost, "the work of this pod so far, which the Job may count as a failure")
	}
	if known, err := h.volumesByPlugin(ctx, pod); err != nil || known == nil {
		lost = append(lost, "perhaps its place on this node: whether local volumes bind it there is unknown")
	}
	return strings.Join(lost, "; ")
}

func volumeNames(pod *corev1.Pod, is func(corev1.Volume) bool) []string {
	var names []string
	for _, v := range pod.Spec.Volumes {
		if is(v) {
			names = append(names, v.Name)
		}
	}
	return names
}

// localPlugin is the kubelet's name for volumes of type local.
const localPlugin = "kubernetes.io~local-volume"

// volumesByPlugin lists the volumes that the kubelet has for a pod by plugin; nil if it has none. The agent has no right to read PersistentVolumes, but
// the kubelet has a directory for each. Volumes themselves are not looked at, nor anything that is mounted on the way, which may not answer.
func (h *EvictRecoverer) volumesByPlugin(ctx context.Context, pod *corev1.Pod) (map[string][]string, error) {
	n, err := h.Kubelet.Node(ctx)
	if err != nil {
		return nil, err
	}
	var found map[string][]string
	err = n.Do(ctx, func() error {
		dir, err := mountns.Lookup(0, path.Join(n.PodDir(string(pod.UID)), "volumes"))
		if err != nil {
			return err
		}
		defer dir.Close()
		plugins, _, err := sys.ListDir(dir, maxNames)
		if err != nil {
			return err
		}
		found = map[string][]string{}
		for _, plugin := range plugins {
			if found[plugin], err = findingNames(dir, plugin); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return found, err
}

// maxNames bounds how much of a directory is read.
const maxNames = 1000

// findingNames reads the names in a directory of dir, and asks for nothing about them. Anything else has none: to open
// a pipe would be to wait for a writer.
func findingNames(dir *sys.FD, name string) ([]string, error) {
	fd, err := sys.OpenEntry(dir, name)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	st, err := fd.Stat(sys.StatType)
	if err != nil || !st.IsDir() {
		return nil, err
	}
	found, _, err := sys.ListDir(fd, maxNames)
	return found, err
}
