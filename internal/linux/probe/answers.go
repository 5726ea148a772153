// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"time"

	"kubediag.org/kubediag/internal/linux/mount"
)

// answerSet is the answers of a pass by target. Those with a state are final.
type answerSet []Answer

// awaits reports whether there is such a target and no answer yet.
func (a answerSet) awaits(target int) bool {
	return target >= 0 && target < len(a) && a[target].State == ""
}

// describeMount notes the kernel's facts about a target's mount.
func (a answerSet) describeMount(target int, st mount.State) {
	to := &a[target]
	to.ID, to.FSType, to.Deleted, to.ReadOnly = st.ID, st.FSType, st.Deleted, to.ReadOnly || st.ReadOnly
}

func (a answerSet) setState(target int, state State, took time.Duration, evidence ...string) {
	to := &a[target]
	to.State, to.Took = state, took
	to.Evidence = append(to.Evidence, evidence...)
}
