// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import "testing"

func TestIsFunction(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"/proc/version": true, "/sys/kernel/notes": true, t.TempDir(): false} {
		if got, err := openDir(t, name).IsPseudoFS(); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
}
