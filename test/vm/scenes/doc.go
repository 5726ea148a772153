// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package scenes holds the tests that need more of a virtual machine than its kernel. It has no code outside its tests.
package scenes
