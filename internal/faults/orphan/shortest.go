// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !youngorphans

package orphan

import "time"

// shortestMinimumAge is more than a kubelet's longest silence while it is at work.
const shortestMinimumAge = 5 * time.Minute
