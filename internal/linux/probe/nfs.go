// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// refineError explains an error that an NFS client has made up itself, by the options of the mount. It is called in the
// mount's namespace. It knows two errors. A server that trusts the user of whom a client speaks (sec=sys) checks no
// permission before it gives attributes: where it denies them, it refuses this client, which its exports do not name. A
// mount that is soft gives up after a while, with the same error as for a disk of the server that fails at once.
func (a answerSet) refineError(target int) {
	answer := &a[target]
	if answer.FSType != "nfs" && answer.FSType != "nfs4" || answer.State != Denied && answer.State != Broken {
		return
	}
	table, err := mountns.Table(0)
	if err != nil {
		return // it stays as it is
	}
	m, ok := table.ByID(answer.ID.MountInfoID)
	if !ok {
		return
	}
	options := strings.Split(m.SuperOptions, ",")
	soft := slices.Contains(options, "soft") || slices.Contains(options, "softerr")
	firstTimeout := time.Minute // for which the client waits for the first answer: the default over TCP
	for _, o := range options {
		name, text, _ := strings.Cut(o, "=")
		if tenths, err := strconv.Atoi(text); err == nil && name == "timeo" {
			firstTimeout = time.Duration(tenths) * time.Second / 10
		}
	}
	switch {
	case answer.State == Denied && answer.Errno == sys.EACCES && slices.Contains(options, "sec=sys"):
		answer.State = Stale
		answer.Evidence = append(answer.Evidence, "the server refuses this node: it no longer exports the directory, or not to this node")
	case answer.State == Broken && soft && (answer.Errno == sys.ETIMEDOUT || answer.Errno == sys.EIO && answer.Took >= firstTimeout):
		answer.State = Hung
		answer.Evidence = append(answer.Evidence, fmt.Sprintf("the mount is soft: its client has given up after %s", answer.Took.Round(time.Millisecond)))
	}
}
