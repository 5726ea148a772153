// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"testing"
)

func (s *scenery) check(t *testing.T, c caller, v verb, r *result) {
	t.Helper()
	t.Logf("%s: %q: %s", c.name, v.args, r)
}
