// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package manager is the part of kubediag that runs once in a cluster: it binds Diagnoses to nodes, checks Operations
// and OperationSets, makes Diagnoses when Triggers fire, and watches over the agents. It deletes old Diagnoses, and
// the Leases and MountFaults of nodes that are gone. It needs no privilege on any node.
//
// It works against API servers from 1.18 on: it uses no later API (Events are in core/v1), and
// itself checks the fields that an old server drops in silence. It requests lists in the way that every server understands.
package manager
