// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fakenode

import (
	"maps"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/apitest"
)

// Main is for TestMain of tests with many mounts: it is apitest.Main in a mount namespace that no other process sees,
// so that neither the tests nor others on the machine see each other's mounts come and go. A process that a node has
// started plays its role instead; roles are those of the tests themselves.
func Main(m *testing.M, roles kerneltest.Roles) {
	all := kerneltest.Roles{serverRole: serve, containerRole: contain}
	maps.Copy(all, roles)
	all.Play()
	kerneltest.Isolate()
	apitest.Main(m)
}
