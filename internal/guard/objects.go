// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/kubeclient"
)

const (
	// objectAge is for how long the labels and annotations of a namespace or of the node are used. If they are still asked for
	// after refreshAge, they are read again in the background.
	objectAge, refreshAge = time.Minute, 30 * time.Second
	// maxObjects is how many namespaces are remembered, and how many failed requests. Few nodes have that many pods.
	maxObjects = 1000
	// nodeKey is the key of the node. No namespace has that name.
	nodeKey = ""
)

// object is a namespace or a node as it was at a time.
type object struct {
	meta metav1.ObjectMeta // labels and annotations only
	at   time.Time
}

// objects are the namespaces and the node as they were read last. They are read when they are wanted, as a watch on all namespaces
// would grow with the cluster.
type objects struct {
	node     string
	live     client.Reader
	requests *requests
	known    *cache.LRUExpireCache // an object by its namespace, or by nodeKey, for objectAge
}

// get returns the labels and annotations of a namespace, or of the node for nodeKey. nil: they are not known.
func (s *objects) get(key string, now time.Time) *metav1.ObjectMeta {
	found, ok := s.known.Get(key)
	if !ok {
		return nil
	}
	o := found.(object)
	if now.Sub(o.at) >= refreshAge {
		s.want(key)
	}
	return &o.meta
}

// want has an object read. A namespace that does not exist has no labels.
func (s *objects) want(key string) {
	s.requests.add("object "+key, key, func(ctx context.Context) error {
		kind, name := "Namespace", key
		if key == nodeKey {
			kind, name = "Node", s.node
		}
		meta, at := kubeclient.Metadata(kind), time.Now()
		if err := s.live.Get(ctx, types.NamespacedName{Name: name}, meta); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading %s %q: %w", kind, name, err)
		}
		s.known.Add(key, object{metav1.ObjectMeta{Labels: meta.Labels, Annotations: meta.Annotations}, at}, time.Until(at.Add(objectAge)))
		return nil
	})
}
