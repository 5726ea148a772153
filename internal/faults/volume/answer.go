// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/probe"
)

// Judge says what the answer of a mount means where nothing else is known of it: an empty code is a healthy one, and why
// the reason of any other. ok is false where the answer says nothing about faults.
func Judge(a probe.Answer) (code fault.Code, why string, ok bool) {
	d, ok := judgeRoot(a, !strings.HasPrefix(a.FSType, "fuse"))
	return d.code, d.why, ok
}
