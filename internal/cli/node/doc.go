// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package node holds the verbs of the kubediag command that work on a node with no API server: they never build a
// client for one. A verb ends with verb.ErrFaults if it has found faults, and with nil if it has looked and found none.
// It ends with any other error if it could not look, or has found none and could not look at everything.
package node
