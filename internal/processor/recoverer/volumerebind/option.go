// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volumerebind

import (
	"time"

	"kubediag.org/kubediag/internal/processor/restart"
)

// Parameters. They choose how, never what.
const (
	// ParamAbort is "true" or "false" (default): whether the connection of a volume that hangs may be aborted, by which
	// what was written there and not stored is lost for every pod that has the file system.
	ParamAbort = "param.recover.kubernetes.volume_rebind.abort"
	// ParamBringForward is "true" (default) or "false".
	ParamBringForward = "param.recover.kubernetes.volume_rebind.bring_forward"
	// ParamWaitSeconds is for how many seconds, 0 to 3600, the containers are waited for. Default: 120, and never longer
	// than the operation has time.
	ParamWaitSeconds = "param.recover.kubernetes.volume_rebind.wait_seconds"
)

type options struct {
	restart.Options
	abort bool
}

// defaultWait is longer than it takes a kubelet of 1.36.3 to look at a pod again, which is 90 s at most where its
// syncFrequency is a minute, and to start a container.
const defaultWait = 2 * time.Minute

func optionsOf(values map[string]string) (options, error) {
	abort, err := restart.Bool(values, ParamAbort, false)
	if err != nil {
		return options{}, err
	}
	o, err := restart.Keys{BringForward: ParamBringForward, WaitSeconds: ParamWaitSeconds, Wait: defaultWait}.Options(values)
	return options{Options: o, abort: abort}, err
}
