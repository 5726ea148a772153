// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build youngorphans

package orphan

import "time"

// ShortestMinimumAge is less with the build tag youngorphans, which no release has: tests have no time to wait.
const ShortestMinimumAge = time.Second
