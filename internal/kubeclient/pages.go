// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// maxRestarts bounds the restarts of a list because the API server no longer has the objects as they were at its first page.
const maxRestarts = 3

// Pages returns a ListerWatcher that lists in pages of so many objects, and reduces each page before it asks for the next. So a list
// takes the memory of one page, however large the objects are. An informer reads a whole list at once, because the API server answers
// that from its memory; pages come from its storage.
func Pages(of cache.ListerWatcher, size int64, reduce cache.TransformFunc) cache.ListerWatcher {
	inner := cache.ToListerWatcherWithContext(of)
	return &cache.ListWatch{
		WatchFuncWithContext: inner.WatchWithContext,
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			for try := 0; ; try++ {
				list, err := listPages(ctx, inner, size, reduce, o)
				if try == maxRestarts || !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
					return list, err
				}
			}
		},
	}
}

func listPages(ctx context.Context, from cache.ListerWithContext, size int64, reduce cache.TransformFunc, o metav1.ListOptions) (runtime.Object, error) {
	o.ResourceVersion, o.ResourceVersionMatch, o.Limit, o.Continue = "", "", size, ""
	var all []runtime.Object
	for {
		page, err := from.ListWithContext(ctx, o)
		if err != nil {
			return nil, err
		}
		items, err := meta.ExtractList(page)
		if err != nil {
			return nil, fmt.Errorf("reading page: %w", err)
		}
		for _, item := range items {
			kept, err := reduce(item)
			if err != nil {
				return nil, fmt.Errorf("reducing object: %w", err)
			}
			object, ok := kept.(runtime.Object)
			if !ok {
				return nil, fmt.Errorf("reducing object: %T is no object", kept)
			}
			all = append(all, object.DeepCopyObject()) // the item is part of the page, which would stay
		}
		about, err := meta.ListAccessor(page)
		if err != nil {
			return nil, fmt.Errorf("reading page: %w", err)
		}
		if o.Continue = about.GetContinue(); o.Continue == "" {
			if err := meta.SetList(page, all); err != nil {
				return nil, fmt.Errorf("joining pages: %w", err)
			}
			return page, nil
		}
	}
}
