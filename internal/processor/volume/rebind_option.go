// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"time"

	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/restart"
)

// Parameters. They choose how, never what.
const (
	// paramRebindAbort is "true" or "false" (default): whether the connection of a volume that hangs may be aborted, by
	// which what was written there and not stored is lost for every pod that has the file system.
	paramRebindAbort = "param.recover.kubernetes.volume_rebind.abort"
	// paramRebindBringForward is "true" (default) or "false".
	paramRebindBringForward = "param.recover.kubernetes.volume_rebind.bring_forward"
	// ParamRebindWaitSeconds is for how many seconds, 0 to 3600, the containers are waited for. Default: 120, and never
	// longer than the operation has time.
	ParamRebindWaitSeconds = "param.recover.kubernetes.volume_rebind.wait_seconds"
)

type rebindOptions struct {
	restart.Options
	abort bool
}

// defaultRebindWait is longer than it takes a kubelet of 1.36.3 to look at a pod again, and to start a container. The
// former takes 90 s at most if its syncFrequency is a minute.
const defaultRebindWait = 2 * time.Minute

func rebindOptionsOf(values map[string]string) (rebindOptions, error) {
	abort, err := processor.ParseBool(values, paramRebindAbort, false)
	if err != nil {
		return rebindOptions{}, err
	}
	o, err := restart.Keys{BringForward: paramRebindBringForward, WaitSeconds: ParamRebindWaitSeconds, Wait: defaultRebindWait}.Options(values)
	return rebindOptions{Options: o, abort: abort}, err
}
