// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podevict

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"kubediag.org/kubediag/internal/processor"
)

// Parameters. They choose how, never what.
const (
	// ParamDaemonSet is "true" or "false" (default): whether a pod of a DaemonSet is evicted as well.
	ParamDaemonSet = "param.recover.kubernetes.pod_evict.daemon_set"
	// ParamWaitSeconds is for how many seconds, 0 to 3600, the pod is waited for until it has gone. Default: 45, and never
	// longer than the operation has time.
	ParamWaitSeconds = "param.recover.kubernetes.pod_evict.wait_seconds"
)

const (
	defaultWait    = 45 * time.Second
	maxWaitSeconds = 3600
	// reserve is left of the operation's time to say how it went.
	reserve = 2 * time.Second
)

type options struct {
	daemonSet bool
	wait      time.Duration
}

func optionsOf(values map[string]string) (options, error) {
	o := options{wait: defaultWait}
	switch v := values[ParamDaemonSet]; v {
	case "", "false":
	case "true":
		o.daemonSet = true
	default:
		return o, processor.Stalled(fmt.Errorf("read parameter %s: value %q must be true or false", ParamDaemonSet, v))
	}
	if v := values[ParamWaitSeconds]; v != "" {
		seconds, err := strconv.ParseUint(v, 10, 16)
		if err != nil || seconds > maxWaitSeconds {
			return o, processor.Stalled(fmt.Errorf("read parameter %s: value %q must be a number from 0 to %d", ParamWaitSeconds, v,
				maxWaitSeconds))
		}
		o.wait = time.Duration(seconds) * time.Second
	}
	return o, nil
}

// within shortens the wait to what the operation has time for.
func (o options) within(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return o.wait
	}
	return max(0, min(o.wait, time.Until(deadline)-reserve))
}
