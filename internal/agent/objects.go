// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csidrivers;csinodes;volumeattachments,verbs=get

// objectTimeout bounds the time of one request for an object. A caller with several requests bounds all of them by its context.
const objectTimeout = 2 * time.Second

// Each method reads one object by its name, and returns nil if the API server has no such object. An error means that the object is not
// known. An object refines a finding or allows a repair. Without it one fault alone is missed: that nothing is at the path of a claim.

// PersistentVolume reads one by its name.
func (p *nodePods) PersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return readObject(ctx, p.live, name, &corev1.PersistentVolume{})
}

// VolumeAttachment reads that of a CSI volume to this node. Its name is a digest of handle, driver and node, as Kubernetes computes it.
func (p *nodePods) VolumeAttachment(ctx context.Context, driver, handle string) (*storagev1.VolumeAttachment, error) {
	return readObject(ctx, p.live, fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+p.node))), &storagev1.VolumeAttachment{})
}

// CSIDriver reads one by its name.
func (p *nodePods) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	return readObject(ctx, p.live, name, &storagev1.CSIDriver{})
}

// CSINode reads that of this node, which has the drivers that its kubelet knows.
func (p *nodePods) CSINode(ctx context.Context) (*storagev1.CSINode, error) {
	return readObject(ctx, p.live, p.node, &storagev1.CSINode{})
}

// Node reads this node, whose status has the volumes that are in use.
func (p *nodePods) Node(ctx context.Context) (*corev1.Node, error) {
	return readObject(ctx, p.live, p.node, &corev1.Node{})
}

// managedAnnotation is on a Node whose volumes controllers attach, and not its kubelet.
const managedAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// WhyStaged says why the kubelet may have a volume of a CSI driver staged by now; empty: a controller has to attach it first.
func (p *nodePods) WhyStaged(ctx context.Context, driver, handle string) (string, error) {
	info, err := p.CSIDriver(ctx, driver)
	switch {
	case err != nil:
		return "", err
	case info == nil:
		return fmt.Sprintf("there is no CSIDriver %q, so it is not known whether the kubelet waits for an attachment", driver), nil
	case info.Spec.AttachRequired != nil && !*info.Spec.AttachRequired:
		return fmt.Sprintf("driver %q needs no attachment, so the kubelet can have the volume staged at any moment", driver), nil
	}
	attached, err := p.VolumeAttachment(ctx, driver, handle)
	switch {
	case err != nil:
		return "", err
	case attached != nil:
		return fmt.Sprintf("the volume has VolumeAttachment %q for this node, so the kubelet can have it staged at any moment", attached.Name), nil
	}
	node, err := p.Node(ctx)
	switch {
	case err != nil:
		return "", err
	case node == nil:
		return fmt.Sprintf("the API server has no Node %q", p.node), nil
	case node.Annotations[managedAnnotation] != "true":
		return "the kubelet of this node may attach volumes by itself: its Node lacks annotation " + managedAnnotation, nil
	}
	name := corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + handle)
	if slices.Contains(node.Status.VolumesInUse, name) {
		return "the volume is in volumesInUse of the Node: its kubelet has it, or is about to", nil
	}
	if slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return v.Name == name }) {
		return "the volume is in volumesAttached of the Node, so the kubelet can have it staged at any moment", nil
	}
	return "", nil
}

// readObject reads an object of the cluster into an empty one.
func readObject[T client.Object](ctx context.Context, live client.Reader, name string, into T) (found T, err error) {
	ctx, cancel := context.WithTimeout(ctx, objectTimeout)
	defer cancel()
	switch err := live.Get(ctx, types.NamespacedName{Name: name}, into); {
	case apierrors.IsNotFound(err):
		return found, nil
	case err != nil:
		return found, fmt.Errorf("read %T %q: %w", into, name, err)
	}
	return into, nil
}
