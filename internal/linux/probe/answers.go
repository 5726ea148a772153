// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"strings"
	"time"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// answerSet is the answers of a pass by target. Those with a state are final.
type answerSet []Answer

// awaits reports whether there is such a target and no answer yet.
func (a answerSet) awaits(target int) bool {
	return target >= 0 && target < len(a) && a[target].State == ""
}

// describeMount notes what the kernel knows of a target's mount.
func (a answerSet) describeMount(target int, st mount.State) {
	to := &a[target]
	to.ID, to.FSType, to.Deleted, to.ReadOnly = st.ID, st.FSType, st.Deleted, to.ReadOnly || st.ReadOnly
}

// setNotProbed is the state of all that is not known by now.
func (a answerSet) setNotProbed(why string) {
	for i := range a {
		if a.awaits(i) {
			a.setState(i, NotProbed, 0, "not asked: "+why)
		}
	}
}

func (a answerSet) setState(target int, state State, took time.Duration, evidence ...string) {
	to := &a[target]
	to.State, to.Took = state, took
	to.Evidence = append(to.Evidence, evidence...)
}

// refineError says what an error means that an NFS client has made up itself, by the options of the mount. It is called
// in the mount's namespace.
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
	answer.refineNFS(strings.Split(m.SuperOptions, ","))
}
