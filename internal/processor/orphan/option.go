// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"fmt"
	"strconv"

	"kubediag.org/kubediag/internal/processor"
)

// Parameters. They narrow what is looked at, and never add to it.
const (
	// ParamUID has only the directory of the pod with this UID be looked at. Default: all.
	ParamUID = "param.recover.kubernetes.orphaned_pods.uid"
	// ParamLimit is of how many pods volumes are removed at most, 1 to 100. Default: 10.
	ParamLimit = "param.recover.kubernetes.orphaned_pods.limit"
)

const (
	defaultLimit = 10
	maxLimit     = 100
	maxUIDLength = 128
)

type recoverOptions struct {
	uid   string
	limit int
}

func recoverOptionsOf(values map[string]string) (recoverOptions, error) {
	options := recoverOptions{uid: values[ParamUID], limit: defaultLimit}
	for _, c := range []byte(options.uid) {
		if len(options.uid) > maxUIDLength || !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c == '-') {
			return options, processor.Stalled(fmt.Errorf("read parameter %s: value %q must be the UID of a pod", ParamUID, options.uid))
		}
	}
	if v := values[ParamLimit]; v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > maxLimit {
			return options, processor.Stalled(fmt.Errorf("read parameter %s: value %q must be a number from 1 to %d", ParamLimit, v, maxLimit))
		}
		options.limit = n
	}
	return options, nil
}
