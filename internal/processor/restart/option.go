// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package restart

import (
	"cmp"
	"time"

	"kubediag.org/kubediag/internal/processor"
)

const (
	// defaultWait is for how long containers are waited for if nothing else is said.
	defaultWait    = 45 * time.Second
	maxWaitSeconds = 3600
)

// Keys are the names of the parameters of one processor.
type Keys struct {
	// BringForward is that of one which is "true" (default) or "false".
	BringForward string
	// WaitSeconds is that of one which says for how many seconds, 0 to 3600, the containers are waited for.
	WaitSeconds string
	// Wait is for how long they are waited for where that says nothing. 0: 45 seconds.
	Wait time.Duration
}

// Options are the values of the parameters.
type Options struct {
	BringForward bool
	Wait         time.Duration
}

// Options reads the parameters. A value that is none gives an error that is not worth another try.
func (k Keys) Options(values map[string]string) (options Options, err error) {
	options.BringForward = true
	if k.BringForward != "" { // a processor need not have it
		if options.BringForward, err = processor.ParseBool(values, k.BringForward, true); err != nil {
			return Options{}, err
		}
	}
	standard := cmp.Or(k.Wait, defaultWait)
	seconds, err := processor.Number{Key: k.WaitSeconds, Default: int(standard / time.Second), Max: maxWaitSeconds}.Parse(values)
	options.Wait = time.Duration(seconds) * time.Second
	return options, err
}
