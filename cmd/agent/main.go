// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command agent is kubediag's DaemonSet: it runs the Diagnoses of its node.
package main

import (
	"fmt"
	"os"

	"kubediag.org/kubediag/internal/agent"
)

func main() {
	if err := agent.NewCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "kubediag-agent:", err)
		os.Exit(1)
	}
}
