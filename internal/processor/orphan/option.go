// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"fmt"
	"strings"

	"kubediag.org/kubediag/internal/processor"
)

// Parameters. They narrow the search, and never add to it.
const (
	// ParamUID has only the directory of the pod with this UID be looked at. Default: all.
	ParamUID = "param.recover.kubernetes.orphaned_pods.uid"
	// paramLimit is of how many pods volumes are removed at most, 1 to 100. Default: 10.
	paramLimit = "param.recover.kubernetes.orphaned_pods.limit"
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

func recoverOptionsOf(values map[string]string) (options recoverOptions, err error) {
	options.uid = values[ParamUID]
	if len(options.uid) > maxUIDLength || strings.Trim(options.uid, "0123456789abcdef-") != "" {
		return options, processor.Stalled(fmt.Errorf("read parameter %s: value %q must be the UID of a pod", ParamUID, options.uid))
	}
	options.limit, err = processor.Number{Key: paramLimit, Default: defaultLimit, Min: 1, Max: maxLimit}.Parse(values)
	return options, err
}
