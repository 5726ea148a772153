// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-kubediag is the plugin of kubectl: it shows, explains and heals the mount faults of a cluster from a person's own
// machine, through the API server. Under the name kubectl_complete-kubediag it completes a line for kubectl.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"kubediag.org/kubediag/internal/cli/cluster"
	"kubediag.org/kubediag/internal/cli/verb"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second one ends us at once
	status := verb.Run(ctx, cluster.NewCommand(os.Args[0], os.Args[1:]))
	stop()
	os.Exit(status)
}
