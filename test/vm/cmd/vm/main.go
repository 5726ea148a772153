// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command vm boots a kernel in a virtual machine and runs a program there, to look at something by hand:
//
//	go run ./test/vm/cmd/vm -kernel 5.10 -packages strace,nfs-kernel-server sh -c 'uname -a; mount'
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"kubediag.org/kubediag/test/vm"
)

func main() {
	kernel := flag.String("kernel", vm.Kernels[0], "one of "+strings.Join(vm.Kernels, ", "))
	packages := flag.String("packages", "", "of Debian, separated by commas")
	console := flag.Bool("console", false, "print the end of the console, too")
	flag.Parse()
	var o vm.Options
	if o.Kernel = *kernel; *packages != "" {
		o.Packages = strings.Split(*packages, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o, flag.Args(), *console)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o vm.Options, args []string, console bool) error {
	begin := time.Now()
	m, err := vm.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }() // what it has left goes with this process
	fmt.Fprintf(os.Stderr, "%s is up after %s\n", m.Release(), time.Since(begin).Round(100*time.Millisecond))
	if len(args) > 0 {
		err = m.Do(ctx, vm.Command{Args: args, Out: os.Stdout})
	}
	if console {
		fmt.Fprintln(os.Stderr, m.Console())
	}
	return err
}
