// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package sweep holds the test of a Trigger that has idle krbd devices unmapped, with the manager and the agent as processes.
// It has no code outside its tests.
package sweep
