// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podevict

import "kubediag.org/kubediag/internal/processor/restart"

// Parameters. They choose how, never what.
const (
	// ParamDaemonSet is "true" or "false" (default): whether a pod of a DaemonSet is evicted as well.
	ParamDaemonSet = "param.recover.kubernetes.pod_evict.daemon_set"
	// ParamWaitSeconds is for how many seconds, 0 to 3600, the pod is waited for until it has gone. Default: 45, and never
	// longer than the operation has time.
	ParamWaitSeconds = "param.recover.kubernetes.pod_evict.wait_seconds"
)

type options struct {
	restart.Options
	daemonSet bool
}

func optionsOf(values map[string]string) (o options, err error) {
	if o.daemonSet, err = restart.Bool(values, ParamDaemonSet, false); err != nil {
		return o, err
	}
	o.Options, err = restart.Keys{WaitSeconds: ParamWaitSeconds}.Options(values)
	return o, err
}
