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

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
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
	if _, known, err := h.localVolumes(ctx, pod); err != nil || !known {
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

// localVolumes lists the local volumes of a pod. known is false if the kubelet has no volume of the pod. The agent has no right to
// read PersistentVolumes, but the kubelet has a directory for each.
func (h *EvictRecoverer) localVolumes(ctx context.Context, pod *corev1.Pod) (names []string, known bool, err error) {
	n, err := h.Kubelet.Node(ctx)
	if err != nil {
		return nil, false, err
	}
	err = n.Do(ctx, func() error {
		dir, err := mountns.Lookup(0, path.Join(n.PodDir(string(pod.UID)), "volumes"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		dir.Close()
		known = true
		volumes, err := n.PodVolumes(string(pod.UID))
		for _, v := range volumes {
			if v.Plugin == kubelet.LocalPlugin && !v.Block {
				names = append(names, v.Name)
			}
		}
		return err
	})
	return names, known, err
}
