// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command vm boots a kernel in a virtual machine and runs a program there, to look at something by hand. For example:
//
//	go run ./test/vm/cmd/vm -kernel 5.10 -packages strace,nfs-kernel-server sh -c 'uname -a; mount'
//
// Or one of its tests, for longer than the kernel tier does:
//
//	CGO_ENABLED=0 go test -c -tags kernel -o bin/mount.test ./internal/linux/mount
//	go run ./test/vm/cmd/vm -kernel 6.1 -files bin/mount.test=/mount.test \
//		/mount.test -test.run Races -test.v -test.timeout 2h -race.rounds 10000 -race.time 1h
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
	files := flag.String("files", "", "copied into the guest: FILE=PATH, separated by commas")
	console := flag.Bool("console", false, "print the end of the console, too")
	flag.Parse()
	o := vm.Options{Files: map[string]string{}}
	if o.Kernel = *kernel; *packages != "" {
		o.Packages = strings.Split(*packages, ",")
	}
	for file := range strings.SplitSeq(*files, ",") {
		here, there, ok := strings.Cut(file, "=")
		if !ok && file != "" {
			fmt.Fprintf(os.Stderr, "vm: -files: %q has no = between a file and its path in the guest\n", file)
			os.Exit(2)
		}
		if ok {
			o.Files[there] = here
		}
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
