// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package waking

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "kubediag.org/kubediag/api/v1"
)

const (
	// annotation is on a pod only while its kubelet is woken. Its value is the time.
	annotation = "diagnosis.kubediag.org/woken-at"
	// setting bounds what it takes until the annotation is set. An agent waits for 3.4 s.
	setting = 3 * time.Second
	// removing is for how long it is tried to take the annotation away again.
	removing = 4 * time.Second
)

// removals are the tries.
var removals = wait.Backoff{Steps: 6, Duration: 50 * time.Millisecond, Factor: 2.5}

// wake changes the annotations of the pod twice. Kubelets of all versions sync a pod whose metadata has changed at once, but
// with what they remember of its containers, which they look at once a second: after the first change the one whose
// container has just failed still is in its back-off. Before the sync for a second change they wait until they have looked
// anew since the first: managePodLoop of kubernetes/pkg/kubelet/pod_workers.go of 1.18, podWorkerLoop of 1.36, and
// GetNewerThan of the cache. One of 1.36 that is so busy that it hears of both changes before it begins with the first
// makes one sync of them, and then the pod waits for its back-off.
func (r *Reconciler) wake(ctx context.Context, d *v1.Diagnosis) error {
	soon, cancel := context.WithTimeout(ctx, setting)
	defer cancel()
	pod, err := r.pod(soon, d)
	if err != nil {
		return err
	}
	if !r.limiter.TryAccept() {
		return fmt.Errorf("more than %d kubelets a second are to be woken", perSecond)
	}
	err = r.annotate(soon, pod, r.clock.Now().UTC().Format(time.RFC3339Nano))
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; if it is the right to patch pods/status that is missing, config/overlays/waking gives it", err)
	}
	if refused(err) {
		return err
	}
	return errors.Join(err, r.restore(ctx, pod)) // nobody knows whether a request that got lost was carried out
}

// restore takes the annotation away, also where ctx has ended meanwhile.
func (r *Reconciler) restore(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removing)
	defer cancel()
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, removals, func(ctx context.Context) (bool, error) {
		last = r.annotate(ctx, pod, nil)
		gone := apierrors.IsNotFound(last) || apierrors.IsInvalid(last) // or the name is another pod's
		return last == nil || gone, nil
	})
	if err != nil {
		log.FromContext(ctx).Error(last, "Could not take the annotation from a pod", "pod", client.ObjectKeyFromObject(pod), "annotation", annotation)
		return fmt.Errorf("the annotation may still be there: %w", last)
	}
	return last
}

// refused tells whether an API server has looked at a request and not carried it out.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// pod reads the pod that the Diagnosis is about, and refuses one that its agent has no business with, or that would suffer
// from being woken.
func (r *Reconciler) pod(ctx context.Context, d *v1.Diagnosis) (*corev1.Pod, error) {
	ref := d.Spec.PodReference
	if ref == nil {
		return nil, errors.New("the Diagnosis has no podReference")
	}
	pod := &corev1.Pod{}
	if err := r.reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, pod); err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	switch {
	case pod.Spec.NodeName == "" || pod.Spec.NodeName != d.Spec.NodeName:
		return nil, fmt.Errorf("pod %s/%s is on node %q, the Diagnosis on %q", ref.Namespace, ref.Name, pod.Spec.NodeName, d.Spec.NodeName)
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
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{annotation: value}},
	})
	if err != nil {
		return fmt.Errorf("encoding annotation: %w", err)
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	if err := r.client.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotating pod %s/%s with %s: %w", pod.Namespace, pod.Name, annotation, err)
	}
	return nil
}
