// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !youngorphans

package orphan

import "time"

// ShortestMinimumAge is more than a kubelet's longest silence while it is at work.
const ShortestMinimumAge = 5 * time.Minute
