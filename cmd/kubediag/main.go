// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command kubediag finds and heals broken mounts from a shell.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"kubediag.org/kubediag/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := cli.NewCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubediag:", err)
		os.Exit(1)
	}
}
