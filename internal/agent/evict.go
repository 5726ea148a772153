// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubediag.org/kubediag/internal/repair"
)

// evictTimeout bounds one call to the API server.
const evictTimeout = 30 * time.Second

// errNoEviction is returned by API servers that evict no pods.
var errNoEviction = errors.New("the API server has no pods/eviction")

// errEvictionVersion is returned for a version that is not known here.
var errEvictionVersion = errors.New("unsupported eviction API version")

// evictor evicts pods through the Eviction API, in the version that the API server has: policy/v1 from 1.22 on, before
// that policy/v1beta1.
type evictor struct {
	set kubernetes.Interface
}

// newEvictor is nil if evicting pods is not allowed, for which podEvictRecover has words.
func (o *options) newEvictor(config *rest.Config) (repair.Evictor, error) {
	if !o.AllowEviction {
		return nil, nil
	}
	config = rest.CopyConfig(config)
	config.Timeout = evictTimeout
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making client for evictions: %w", err)
	}
	return &evictor{set}, nil
}

// Evict asks once: a budget that forbids it is for the pipeline to wait for.
func (e *evictor) Evict(ctx context.Context, namespace, name, uid string) error {
	// The version of the group policy which the API server takes evictions in may be another one after an update.
	list := &metav1.APIResourceList{}
	if err := e.set.CoreV1().RESTClient().Get().AbsPath("/api/v1").Do(ctx).Into(list); err != nil {
		return fmt.Errorf("asking for the version of evictions: %w", err)
	}
	i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods/eviction" && r.Group == policyv1.GroupName })
	if i < 0 {
		return errNoEviction
	}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(types.UID(uid))}}
	var eviction runtime.Object
	switch version := list.APIResources[i].Version; version {
	case "v1":
		eviction = &policyv1.Eviction{ObjectMeta: meta, DeleteOptions: options}
	case "v1beta1":
		eviction = &policyv1beta1.Eviction{ObjectMeta: meta, DeleteOptions: options}
	default:
		return fmt.Errorf("%w %q", errEvictionVersion, version)
	}
	err := e.set.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(name).SubResource("eviction").
		Body(eviction).MaxRetries(0).Do(ctx).Error()
	if !apierrors.IsConflict(err) {
		return evictionError(err)
	}
	// Another pod has the name, or this one was changed meanwhile: then it is tried again.
	pod, errGet := e.set.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(errGet), errGet == nil && string(pod.UID) != uid:
		return fmt.Errorf("%w: %w", repair.ErrGone, err)
	case errGet != nil:
		return errors.Join(err, errGet)
	}
	return err
}

// evictionError translates an error of the API server for podEvictRecover.
func evictionError(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", repair.ErrGone, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w", repair.ErrForbidden, err)
	case apierrors.IsTooManyRequests(err):
		seconds, _ := apierrors.SuggestsClientDelay(err)
		reasons := []string{err.Error()} // with the causes, which name the PodDisruptionBudget
		var status apierrors.APIStatus
		if errors.As(err, &status) && status.Status().Details != nil {
			for _, cause := range status.Status().Details.Causes {
				reasons = append(reasons, cause.Message)
			}
		}
		return &repair.BlockedError{Reason: strings.Join(reasons, " "), After: time.Duration(seconds) * time.Second}
	}
	return err
}
