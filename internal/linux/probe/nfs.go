// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

// refineNFS knows two errors. A server that trusts the user of whom a client speaks (sec=sys) asks for no permission
// before it gives attributes: where it denies them, it refuses this client, as one that its exports do not name. A
// mount that is soft gives up after a while, with the same error as for a disk of the server that fails at once.
func (a *Answer) refineNFS(options []string) {
	soft := slices.Contains(options, "soft") || slices.Contains(options, "softerr")
	switch {
	case a.State == Denied && a.Errno == sys.EACCES && slices.Contains(options, "sec=sys"):
		a.State = Stale
		a.Evidence = append(a.Evidence, "the server refuses this node: it no longer exports the directory, or not to this node")
	case a.State == Broken && soft && (a.Errno == sys.ETIMEDOUT || a.Errno == sys.EIO && a.Took >= firstTimeout(options)):
		a.State = Hung
		a.Evidence = append(a.Evidence, fmt.Sprintf("the mount is soft: its client has given up after %s", a.Took.Round(time.Millisecond)))
	}
}

// firstTimeout is how long a client waits for the first answer, which mountinfo has in tenths of a second.
func firstTimeout(options []string) time.Duration {
	for _, o := range options {
		if text, ok := strings.CutPrefix(o, "timeo="); ok {
			if tenths, err := strconv.Atoi(text); err == nil {
				return time.Duration(tenths) * time.Second / 10
			}
		}
	}
	return time.Minute // the default over TCP
}
