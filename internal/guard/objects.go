// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/policy"
)

const (
	// objectAge is for how long the labels and annotations of a namespace or of the node are used. If they are still asked for
	// after refreshAge, they are read again in the background.
	objectAge, refreshAge = time.Minute, 30 * time.Second
	// maxObjects is how many namespaces are remembered. Few nodes have that many pods.
	maxObjects = 1000
	// nodeKey is the key of the node. No namespace has that name.
	nodeKey = ""
)

// object is a namespace or a node as it was at a time.
type object struct {
	policy.Object
	at time.Time
}

// object returns what is known of a namespace, or of the node for nodeKey. nil: it is not known. It is read when it is wanted,
// as a watch on all namespaces would grow with the cluster. The caller holds the lock.
func (g *Guard) object(key string, now time.Time) *policy.Object {
	o := g.objects[key]
	if o == nil || now.Sub(o.at) >= objectAge {
		return nil
	}
	if now.Sub(o.at) >= refreshAge {
		g.want(key)
	}
	return &o.Object
}

// want has an object read. The caller holds the lock.
func (g *Guard) want(key string) {
	g.requests.add("object "+key, func(ctx context.Context) error { return g.readObject(ctx, key) })
}

// readObject asks the API server. A namespace that does not exist has no labels.
func (g *Guard) readObject(ctx context.Context, key string) error {
	kind, name := "Namespace", key
	if key == nodeKey {
		kind, name = "Node", g.Node
	}
	meta, at := &metav1.PartialObjectMetadata{}, time.Now()
	meta.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	if err := g.Live.Get(ctx, types.NamespacedName{Name: name}, meta); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading %s %q: %w", kind, name, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.objects) >= maxObjects {
		clear(g.objects)
	}
	g.objects[key] = &object{policy.Object{Labels: meta.Labels, Annotations: meta.Annotations}, at}
	return nil
}
