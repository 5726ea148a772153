// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

const (
	// wakeAnnotation is on a pod only while its kubelet is woken.
	wakeAnnotation = "diagnosis.kubediag.org/woken-at"
	// wakeTimeout bounds one request to the API server for it.
	wakeTimeout = 5 * time.Second
)

// wakeRequested tells whether an agent asks to wake the kubelet.
func wakeRequested(d *v1.Diagnosis) bool {
	return started(d) && bound(d) && meta.IsStatusConditionPresentAndEqual(d.Status.Conditions, v1.ConditionKubeletWoken, metav1.ConditionUnknown)
}

// wake has the kubelet look at the pod of the Diagnosis at once where its agent asks for that. It is asked once: the agent
// does not wait for long, and the kubelet looks at the pod anyway when its time has come.
func (r *Reconciler) wake(ctx context.Context, v *visit) error {
	if !wakeRequested(v.was) {
		return nil
	}
	status, reason, message := metav1.ConditionTrue, v1.ReasonWoken, "The kubelet was made to look at the Pod"
	if err := r.wakeKubelet(ctx, v.was); err != nil {
		status, reason, message = metav1.ConditionFalse, v1.ReasonNotWoken, err.Error()
	}
	r.set(v, v1.ConditionKubeletWoken, status, reason, message)
	v.again, v.done = r.Agents.CheckEvery, true
	return nil
}

// wakeKubelet changes the annotations of the pod twice. Kubelets of all versions sync a pod whose metadata has changed at
// once, but with what they remember of its containers, which they look at once a second: after the first change the one
// whose container has just failed still is in its back-off. Before the sync for a second change they wait until they have
// looked anew since the first: managePodLoop of kubernetes/pkg/kubelet/pod_workers.go of 1.18, podWorkerLoop of 1.36, and
// GetNewerThan of the cache. One of 1.36 that is so busy that it hears of both changes before it begins with the first
// makes one sync of them, and then the pod waits for its back-off.
func (r *Reconciler) wakeKubelet(ctx context.Context, d *v1.Diagnosis) error {
	pod, err := r.wakeable(ctx, d)
	if err != nil {
		return err
	}
	err = r.annotate(ctx, pod, r.Clock.Now().UTC().Format(time.RFC3339Nano))
	var refused apierrors.APIStatus
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: the right to patch pods/status is missing, which config/rbac/manager/annotator.yaml gives", err)
	case errors.As(err, &refused):
		return err
	}
	always := context.WithoutCancel(ctx)
	gone := r.annotate(always, pod, nil)
	if gone != nil {
		gone = r.annotate(always, pod, nil)
	}
	return errors.Join(err, gone)
}

// wakeable reads the pod, and refuses one that the agent has no business with, or that would suffer from it.
func (r *Reconciler) wakeable(ctx context.Context, d *v1.Diagnosis) (*corev1.Pod, error) {
	ref := d.Spec.PodReference
	if ref == nil {
		return nil, errors.New("the Diagnosis has no podReference")
	}
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	pod := &corev1.Pod{}
	if err := r.Reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, pod); err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	switch {
	case pod.Spec.NodeName != d.Spec.NodeName:
		return nil, fmt.Errorf("pod %s/%s is on node %q, not on %q", ref.Namespace, ref.Name, pod.Spec.NodeName, d.Spec.NodeName)
	case showsAnnotations(pod):
		return nil, fmt.Errorf("a volume of pod %s/%s has all of its annotations: it would be written anew, and binds of its subPaths be stale",
			ref.Namespace, ref.Name)
	}
	return pod, nil
}

// showsAnnotations tells whether a volume of the pod has all of its annotations.
func showsAnnotations(pod *corev1.Pod) bool {
	var files []corev1.DownwardAPIVolumeFile
	for _, v := range pod.Spec.Volumes {
		if v.DownwardAPI != nil {
			files = append(files, v.DownwardAPI.Items...)
		}
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.DownwardAPI != nil {
				files = append(files, source.DownwardAPI.Items...)
			}
		}
	}
	return slices.ContainsFunc(files, func(f corev1.DownwardAPIVolumeFile) bool {
		return f.FieldRef != nil && f.FieldRef.FieldPath == "metadata.annotations"
	})
}

// annotate sets the annotation of this very pod, or takes it away where the value is nil. It does so by way of pods/status,
// which keeps the spec and the owners of a pod as they are, whatever is sent: podStatusStrategy of
// kubernetes/pkg/registry/core/pod. The right to that cannot be used to run another image.
func (r *Reconciler) annotate(ctx context.Context, pod *corev1.Pod, value any) error {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{wakeAnnotation: value}},
	})
	if err != nil {
		return fmt.Errorf("encoding annotation: %w", err)
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	if err := r.Client.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotating pod %s/%s with %s: %w", pod.Namespace, pod.Name, wakeAnnotation, err)
	}
	return nil
}
