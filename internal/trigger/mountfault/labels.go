// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	klabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// labels reads labels from the API server itself, each object once, and of each the metadata only. It is for one comparison: no
// cache of pods, namespaces or nodes is kept.
type labels struct {
	ctx    context.Context //nolint:containedctx // that of the comparison
	reader client.Reader
	read   map[string]*metav1.PartialObjectMetadata // nil: there is no such object
}

func newLabels(ctx context.Context, reader client.Reader) *labels {
	return &labels{ctx: ctx, reader: reader, read: map[string]*metav1.PartialObjectMetadata{}}
}

// of are the labels of an object. With a UID, another one of the same name is not found.
func (l *labels) of(kind string, key types.NamespacedName, uid types.UID) (set klabels.Set, found bool, err error) {
	id := kind + " " + key.String()
	o, read := l.read[id]
	if !read {
		o = &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		err := l.reader.Get(l.ctx, key, o)
		switch {
		case apierrors.IsNotFound(err):
			o = nil
		case err != nil:
			return nil, false, fmt.Errorf("reading labels of %s: %w", id, err)
		}
		l.read[id] = o
	}
	if o == nil || uid != "" && o.UID != uid {
		return nil, false, nil
	}
	return o.Labels, true, nil
}
