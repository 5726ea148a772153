// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command kubediag finds and repairs broken mounts of a node from a shell on it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/cli"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/memlimit"
)

func main() {
	subprocess.Main(registry.Jobs()...)
	memlimit.DelayCollection()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second one ends us at once
	status := verb.Run(ctx, cli.NewCommand())
	stop()
	os.Exit(status)
}
