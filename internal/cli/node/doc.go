// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package node holds the verbs of the kubediag command that work on a node with no API server: they never build a
// client for one.
package node
