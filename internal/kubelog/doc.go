// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubelog reads the texts that people have of a fault: lines from the logs of the kubelet, of CSI drivers and of the
// kernel. It turns decimal byte arrays and nested escapes back into text. It finds the names of devices, volumes, pods
// and paths in it, and names the faults that such a text describes.
//
// It serves the verb decode alone: the writers of a log choose its text, so no finding and no repair depends on it. It
// reads the text alone. It imports the standard library and package fault.
package kubelog
