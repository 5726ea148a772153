// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command manager is kubediag-manager, see package internal/manager.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"kubediag.org/kubediag/internal/manager"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := manager.NewCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubediag-manager:", err)
		os.Exit(1)
	}
}
