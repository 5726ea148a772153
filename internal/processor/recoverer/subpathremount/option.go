// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpathremount

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"kubediag.org/kubediag/internal/processor"
)

// Parameters. They choose how, never what.
const (
	// ParamBringForward is "true" (default) or "false".
	ParamBringForward = "param.recover.kubernetes.subpath_remount.bring_forward"
	// ParamWaitSeconds is for how many seconds, 0 to 3600, the containers are waited for. Default: 45, and never longer
	// than the operation has time.
	ParamWaitSeconds = "param.recover.kubernetes.subpath_remount.wait_seconds"
)

const (
	defaultWait    = 45 * time.Second
	maxWaitSeconds = 3600
	// reserve is left of the operation's time to say how it went.
	reserve = 2 * time.Second
)

type options struct {
	bringForward bool
	wait         time.Duration
}

func optionsOf(values map[string]string) (options, error) {
	o := options{bringForward: true, wait: defaultWait}
	switch v := values[ParamBringForward]; v {
	case "", "true":
	case "false":
		o.bringForward = false
	default:
		return o, processor.Stalled(fmt.Errorf("read parameter %s: value %q must be true or false", ParamBringForward, v))
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
