// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package store is the embedded store: it holds the API's objects in memory for one machine without a cluster, takes
// them in as YAML manifests and gives them out as YAML. It writes no file and has no watches. The objects
// that go in and come out are copies.
package store
