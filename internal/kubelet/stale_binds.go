// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import "errors"

// errReplacesUnknown is returned if it cannot be seen whether a kubelet renews subPath binds.
var errReplacesUnknown = errors.New("not known whether this kubelet renews subPath binds")

// ReplacesStaleBinds reports whether this kubelet itself replaces a subPath bind whose source is another one by now:
// Kubernetes 1.19 and later, and wherever that was back-ported. It is read from the kubelet's own program, once per
// process: at most 1 GiB of it. An error counts as not: there is no kubelet process, or its program has none of the
// texts that it looks for.
func (n *Node) ReplacesStaleBinds() (bool, error) {
	return n.hasMarker(replacesMarker, bindsMarker, errReplacesUnknown)
}
