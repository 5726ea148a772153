// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

// command is a line to paste: a verb of this program with its arguments, and the flags by which this call found the cluster.
func (c *client) command(args ...string) string {
	words := []string{Name}
	for _, arg := range append(args, c.flags...) {
		words = append(words, fault.Quote(arg))
	}
	return strings.Join(words, " ")
}

// kubectl is a line to paste that calls kubectl itself.
func (c *client) kubectl(args ...string) string {
	return "kubectl" + strings.TrimPrefix(c.command(args...), Name)
}
