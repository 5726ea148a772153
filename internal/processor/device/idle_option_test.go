// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/processor"
)

func TestIdleOptions(t *testing.T) {
	t.Parallel()
	o, err := idleOptionsOf(nil)
	if err != nil || o != (idleOptions{minimum: 10 * time.Minute, limit: 1}) {
		t.Errorf("with nothing said: %+v, %v", o, err)
	}
	o, err = idleOptionsOf(map[string]string{paramMinimumIdleSeconds: "60", paramLimit: "100"})
	if err != nil || o != (idleOptions{minimum: time.Minute, limit: 100}) {
		t.Errorf("60 and 100: %+v, %v", o, err)
	}
	for _, key := range []string{paramMinimumIdleSeconds, paramLimit} {
		for _, value := range []string{"0", "-1", "x", "1e3", "999999999999999999999", "604801"} {
			_, err := idleOptionsOf(map[string]string{key: value})
			if !processor.IsStalled(err) || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), value) {
				t.Errorf("%s=%s: %v, want a stalled error that names both", key, value, err)
			}
		}
	}
}
