// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/restart"
)

// Parameters. They choose how, never what.
const (
	// ParamEvictAllowed is "true" or "false" (default): whether the pod may be evicted at all.
	ParamEvictAllowed = "param.recover.kubernetes.pod_evict.allowed"
	// paramEvictDaemonSet is "true" or "false" (default): whether a pod of a DaemonSet is evicted as well.
	paramEvictDaemonSet = "param.recover.kubernetes.pod_evict.daemon_set"
	// ParamEvictWaitSeconds is for how many seconds, 0 to 3600, the pod is waited for until it has gone. Default: 45,
	// and never longer than the operation has time.
	ParamEvictWaitSeconds = "param.recover.kubernetes.pod_evict.wait_seconds"
)

type evictOptions struct {
	restart.Options
	allowed, daemonSet bool
}

func evictOptionsOf(values map[string]string) (o evictOptions, err error) {
	if o.allowed, err = processor.ParseBool(values, ParamEvictAllowed, false); err != nil {
		return o, err
	}
	if o.daemonSet, err = processor.ParseBool(values, paramEvictDaemonSet, false); err != nil {
		return o, err
	}
	o.Options, err = restart.Keys{WaitSeconds: ParamEvictWaitSeconds}.Options(values)
	return o, err
}
