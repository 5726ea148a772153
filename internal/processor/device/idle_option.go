// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"strconv"
	"time"

	"kubediag.org/kubediag/internal/processor"
)

// Parameters. They choose how, never what.
const (
	// ParamMinimumIdleSeconds is for how long a device must have been seen idle, 1 to 604800 seconds. Default: 600.
	ParamMinimumIdleSeconds = "param.recover.system.idle_device.minimum_idle_seconds"
	// ParamLimit is how many devices are unmapped at most, 1 to 100. Default: 1.
	ParamLimit = "param.recover.system.idle_device.limit"
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

func idleOptionsOf(values map[string]string) (idleOptions, error) {
	seconds, err := parseNumber(values, ParamMinimumIdleSeconds, defaultIdleSeconds, maxIdleSeconds)
	if err != nil {
		return idleOptions{}, err
	}
	limit, err := parseNumber(values, ParamLimit, defaultLimit, maxLimit)
	return idleOptions{minimum: time.Duration(seconds) * time.Second, limit: limit}, err
}

func parseNumber(values map[string]string, key string, otherwise, most int) (int, error) {
	v := values[key]
	if v == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		return 0, processor.Stalled(fmt.Errorf("read parameter %s: value %q must be a number from 1 to %d", key, v, most))
	}
	return n, nil
}
