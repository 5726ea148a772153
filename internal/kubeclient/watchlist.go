// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"fmt"
	"os"

	"k8s.io/client-go/features"
)

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
