// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubeclient has the common parts of the manager and the agent on their way to the API server: the kinds they know, how they
// fill their caches, and how they stop. It makes no decision about a kind, and acts on no node.
//
// It works against API servers from 1.18 on, and sends them no request before it is started: a process may come before
// its API server and before the CustomResourceDefinitions, waits for both, and is not ready meanwhile.
package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/features"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// forever is the time that caches may take to be filled.
const forever = 365 * 24 * time.Hour

// New makes a controller-runtime manager. It sets the options that the manager and the agent have in common: scheme,
// REST mapper, the time that caches may take, and that the cache holds no managed fields and starts no watch because
// of a read. It turns off WatchList for the whole process. Run must run it.
func New(config *rest.Config, o manager.Options) (manager.Manager, error) {
	if err := withoutWatchList(); err != nil {
		return nil, err
	}
	scheme, err := NewScheme()
	if err != nil {
		return nil, err
	}
	o.Scheme, o.MapperProvider = scheme, newMapper
	o.Cache.ReaderFailOnMissingInformer = true
	o.Cache.DefaultTransform = cache.TransformStripManagedFields()
	o.Controller.CacheSyncTimeout = forever
	m, err := manager.New(config, o)
	if err != nil {
		return nil, fmt.Errorf("making manager: %w", err)
	}
	return m, nil
}

// Synced is a readiness check that fails as long as the caches are not filled. It takes at most a second.
func Synced(c cache.Cache) healthz.Checker {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("caches are not filled yet")
		}
		return nil
	}
}

// withoutWatchList turns off the client's wish to get lists as watch events. An API server before 1.27 does not know
// the wish; one before 1.19 does not refuse it either, and never sends the mark that ends the list: the cache would
// never be filled. KUBE_FEATURE_WatchListClient in the environment has the last word.
func withoutWatchList() error {
	const gate = features.WatchListClient
	if _, ok := os.LookupEnv("KUBE_FEATURE_" + string(gate)); ok {
		return nil
	}
	gates, ok := features.FeatureGates().(interface {
		Set(features.Feature, bool) error
	})
	if !ok {
		return fmt.Errorf("turning off %q: feature gates of the client cannot be set", gate)
	}
	return gates.Set(gate, false)
}
