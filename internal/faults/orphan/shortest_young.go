// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build youngorphans

package orphan

import "time"

// shortestMinimumAge is less with the build tag youngorphans, which no release has: tests have no time to wait.
const shortestMinimumAge = time.Second
