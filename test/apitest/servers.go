// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"

	"kubediag.org/kubediag/test/cluster"
)

// VersionVar names the variable of the environment with the version of the API server that Start starts, such as 1.24.17. Default: the newest.
const VersionVar = "KUBEDIAG_API_SERVER"

// Version returns the version of the API server that Start starts.
func Version() string { return cmp.Or(os.Getenv(VersionVar), cluster.Kubernetes137) }

// Since reports whether that version is at least the given one, such as 1.25.0.
func Since(least string) bool {
	return version.MustParseSemantic(Version()).AtLeast(version.MustParseSemantic(least))
}

// HasPolicies reports whether that version serves ValidatingAdmissionPolicies, as Kubernetes does from 1.30 on.
func HasPolicies() bool { return Since("1.30.0") }

// running is what Main stops.
var running *cluster.Cluster

// Main runs the tests of a binary, stops the servers if any was started, and ends the process.
func Main(m *testing.M) {
	code := m.Run()
	if running != nil {
		if err := running.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping API server:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func startServer(ctx context.Context) (*rest.Config, error) {
	c, err := cluster.Start(ctx, cluster.Options{ControlPlane: Version()})
	if err != nil {
		return nil, err
	}
	running = c
	return c.RESTConfig(), nil
}

func startOldServer(ctx context.Context) (*rest.Config, error) {
	config, _, err := cluster.StartCRDServer118(ctx, running)
	return config, err
}
