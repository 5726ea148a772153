// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import "testing"

func TestKernelThreads(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0":     true,
		"2 (kthreadd) S 1 2 2 0 -1 4194304 0 0 0":     false, // a program that calls itself so
		"2 (a) b) S 1 2 2 0 -1 4194560 0 0 0":         false,
		"2 (x) 0 0 0 0 0 2129984) S 1 2 2 0 -1 0 0 0": false,
		"2 (short) S 0": false,
		"":              false,
	} {
		if got := kernelThread([]byte(text)); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}
