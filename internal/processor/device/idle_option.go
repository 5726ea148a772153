// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"time"

	"kubediag.org/kubediag/internal/processor"
)

// Parameters. They choose how, never what.
const (
	// paramMinimumIdleSeconds is for how long a device must have been seen idle, 1 to 604800 seconds. Default: 600.
	paramMinimumIdleSeconds = "param.recover.system.idle_device.minimum_idle_seconds"
	// paramLimit is how many devices are unmapped at most, 1 to 100. Default: 1.
	paramLimit = "param.recover.system.idle_device.limit"
)

const (
	defaultIdleSeconds = 600
	maxIdleSeconds     = 7 * 24 * 3600
	defaultLimit       = 1
	maxLimit           = 100
)

type idleOptions struct {
	minimum time.Duration
	limit   int
}

func idleOptionsOf(values map[string]string) (options idleOptions, err error) {
	seconds, err := processor.Number{Key: paramMinimumIdleSeconds, Default: defaultIdleSeconds, Min: 1, Max: maxIdleSeconds}.Parse(values)
	if err != nil {
		return idleOptions{}, err
	}
	options.minimum = time.Duration(seconds) * time.Second
	options.limit, err = processor.Number{Key: paramLimit, Default: defaultLimit, Min: 1, Max: maxLimit}.Parse(values)
	return options, err
}
