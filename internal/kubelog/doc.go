// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubelog reads what people have of a fault: lines from the logs of the kubelet, of CSI drivers and of the
// kernel. It turns decimal byte arrays and nested escapes back into text, and finds the names of devices, volumes, pods
// and paths in it.
//
// All of it is for suspicion only: whoever writes to a log chooses what it says. Nothing that this package finds is a
// reason to change anything, and it looks at nothing but the text. It imports the standard library and package fault.
package kubelog
