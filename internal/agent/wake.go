// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/kubelet/restart"
)

const (
	// wakeAnnotation is on a pod only while its kubelet is woken.
	wakeAnnotation = "diagnosis.kubediag.org/woken-at"
	wakeTimeout    = 5 * time.Second // for one change of it
)

// waker wakes the kubelet by changing the annotations of a pod. Kubelets of all versions sync a pod whose metadata has
// changed at once, but with what they remember of its containers, which they look at once a second: after the first change
// the one whose container has just failed still is in its back-off. Before the sync for a second change they wait until they
// have looked anew since the first: managePodLoop of kubernetes/pkg/kubelet/pod_workers.go of 1.18, podWorkerLoop of 1.36,
// and GetNewerThan of the cache. One of 1.36 that is so busy that it hears of both changes before it begins with the
// first makes one sync of them, and then the pod waits for its back-off.
//
// The annotations are changed by way of pods/status, which keeps the spec and the owners of a pod as they are, whatever is
// sent: podStatusStrategy of kubernetes/pkg/registry/core/pod. The right to that cannot be used to run another image.
type waker struct {
	client client.Client
}

// newWaker is nil where pods must not be annotated.
func (a *agent) newWaker() restart.Waker {
	if !a.AllowPodAnnotation {
		return nil
	}
	return &waker{a.manager.GetClient()}
}

// Wake sets the annotation and takes it away again, also where ctx ends in between. The API server refuses where the name is
// another pod's by now.
func (w *waker) Wake(ctx context.Context, namespace, name, uid string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	err := w.annotate(ctx, pod, time.Now().UTC().Format(time.RFC3339Nano))
	var refused apierrors.APIStatus
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: the right to patch pods/status is missing, which config/overlays/prompt-start gives", err)
	case errors.As(err, &refused):
		return err
	}
	always := context.WithoutCancel(ctx)
	gone := w.annotate(always, pod, nil)
	if gone != nil {
		gone = w.annotate(always, pod, nil)
	}
	return errors.Join(err, gone)
}

// annotate sets the annotation of the pod with this name and UID, or takes it away where the value is nil.
func (w *waker) annotate(ctx context.Context, pod *corev1.Pod, value any) error {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{wakeAnnotation: value}},
	})
	if err != nil {
		return fmt.Errorf("encoding annotation: %w", err)
	}
	if err := w.client.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotating pod %s/%s with %s: %w", pod.Namespace, pod.Name, wakeAnnotation, err)
	}
	return nil
}
