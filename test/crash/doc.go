// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package crash holds the tests that kill the agent in the middle of a repair. It has no code outside its tests.
package crash
