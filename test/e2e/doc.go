// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the tests of the cluster tier: they install kubediag on a real cluster the way its README says,
// cause a real fault, and see it found, healed and proven healed. It has no code outside its tests.
package e2e
