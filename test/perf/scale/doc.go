// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package scale measures the load that the manager and the API server bear in a large cluster: Leases, MountFaults and
// ended Diagnoses are written as agents would write them, and nothing else runs. It has no code outside its tests.
//
// The default is a small cluster. For a large one:
//
//	go test -tags api -run '^$' -bench . -benchtime 1x -timeout 150m ./test/perf/scale -args -nodes 5000 -ended 100000
package scale
