// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command vm runs a program in a virtual machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"kubediag.org/kubediag/test/vm"
)

func main() {
	kernel := flag.String("kernel", "5.10", "k")
	flag.Parse()
	begin := time.Now()
	m, err := vm.Start(context.Background(), vm.Options{Kernel: *kernel})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("booted in", time.Since(begin), m.Release())
	err = m.Do(context.Background(), vm.Command{Args: flag.Args(), Out: os.Stdout})
	fmt.Println(err)
	fmt.Println(m.Console())
	m.Close()
}
