// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/processor"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	if o, err := recoverOptionsOf(nil); err != nil || o != (recoverOptions{limit: 10}) {
		t.Errorf("with nothing said: %+v, %v", o, err)
	}
	const uid = "0d2a2ae4-5a0c-4f0f-8f6c-7a3c3f7c1d11"
	if o, err := recoverOptionsOf(map[string]string{ParamUID: uid, paramLimit: "100"}); err != nil || o != (recoverOptions{uid, 100}) {
		t.Errorf("with both: %+v, %v", o, err)
	}
	for key, values := range map[string][]string{
		paramLimit: {"0", "-1", "101", "x", "1e1"},
		ParamUID:   {"..", "../" + uid, uid + "/volumes", "*", " ", uid + " ", "A", strings.Repeat("0", 129)},
	} {
		for _, value := range values {
			_, err := recoverOptionsOf(map[string]string{key: value})
			if !processor.IsStalled(err) || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), value) {
				t.Errorf("%s=%s: %v, want a stalled error that names both", key, value, err)
			}
		}
	}
}
