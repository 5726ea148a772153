// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import "kubediag.org/kubediag/internal/processor/restart"

// Parameters. They choose how, never what.
const (
	// paramBringForward is "true" (default) or "false".
	paramBringForward = "param.recover.kubernetes.subpath_remount.bring_forward"
	// ParamWaitSeconds is for how many seconds, 0 to 3600, the containers are waited for. Default: 45, and never longer
	// than the operation has time.
	ParamWaitSeconds = "param.recover.kubernetes.subpath_remount.wait_seconds"
)

var parameters = restart.Keys{BringForward: paramBringForward, WaitSeconds: ParamWaitSeconds}
