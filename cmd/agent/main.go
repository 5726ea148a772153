// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// The runtime would look every second whether its limit of processors has changed: a good part of the work of an agent
// while nothing happens. It keeps the one that it starts with.
//
//go:debug updatemaxprocs=0

// Command agent is kubediag's DaemonSet: it runs the Diagnoses of its node.
package main

import (
	"fmt"
	"os"

	"kubediag.org/kubediag/internal/agent"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

func main() {
	subprocess.Main(registry.Jobs()...)
	if err := agent.NewCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "kubediag-agent:", err)
		os.Exit(1)
	}
}
