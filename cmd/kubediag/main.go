// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command kubediag finds and repairs broken mounts from a shell. As kubectl-kubediag it is a plugin of kubectl.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/cli"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

func main() {
	subprocess.Main(registry.Jobs()...)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second one ends us at once
	status := cli.Run(ctx, cli.NewCommand(os.Args[0], os.Args[1:]))
	stop()
	os.Exit(status)
}
