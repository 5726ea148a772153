// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package fault is the catalogue of the faults that kubediag knows, and the plain data of findings and of actions against
// them. It imports the standard library only, so that every side can speak it. It decides nothing: the mount table and the
// kernel prove a fault.
package fault
