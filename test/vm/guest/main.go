// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command guest is the first process of a virtual machine: it loads the drivers of the disks, mounts the root file system
// and moves there, and then runs for the host what that asks for over a virtio port. It is for tests alone.
package main

import (
	"encoding/gob"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/vm/wire"
)

// self is where the guest finds its own program when it has left the initramfs.
const self = "/run/kubediag-guest"

func main() {
	_, _ = os.Setenv("PATH", debian.Path), os.Setenv("HOME", "/tmp") // neither name is refused
	var boot wire.Boot
	err := prepare(&boot)
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		failed := ""
		if len(os.Args) > 2 {
			failed = os.Args[2]
		}
		halt(serve(failed))
	}
	args := []string{"serve"}
	if err != nil {
		fmt.Println("guest:", err)
		args = append(args, err.Error())
	}
	server := exec.Command(self, args...)
	if err != nil {
		server.Path = "/proc/self/exe" // wherever it came to stand
	}
	server.Stdout, server.Stderr = os.Stdout, os.Stderr
	if err := server.Start(); err != nil {
		halt(err)
	}
	if err == nil && len(boot.Init) > 0 {
		halt(unix.Exec(boot.Init[0], boot.Init, os.Environ()))
	}
	for {
		_, err := unix.Wait4(-1, nil, 0, nil) // this process adopts all orphans
		if err == unix.ECHILD {
			halt(err)
		}
	}
}

// prepare does what is to be done once, by process 1.
func prepare(boot *wire.Boot) error {
	if os.Getpid() != 1 {
		return nil
	}
	f, err := os.Open("/boot.gob")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := gob.NewDecoder(f).Decode(boot); err != nil {
		return fmt.Errorf("read what to boot: %w", err)
	}
	if err := mountAll(early); err != nil {
		return err
	}
	for _, name := range boot.Drivers {
		if err := load(name); err != nil {
			return err
		}
	}
	if err := enterRoot(); err != nil {
		return err
	}
	if err := link(boot.Links); err != nil {
		return err
	}
	for _, name := range boot.Modules {
		if out, err := exec.Command("modprobe", name).CombinedOutput(); err != nil {
			return fmt.Errorf("load module %q: %w: %s", name, err, out)
		}
	}
	if err := mountAll(late); err != nil {
		return err
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("bring up loopback: %w: %s", err, out)
	}
	return unix.Sethostname([]byte("vm"))
}

// halt ends the machine, as the end of process 1 would.
func halt(err error) {
	fmt.Println("guest: the end:", err)
	unix.Sync()
	_ = os.WriteFile("/proc/sysrq-trigger", []byte("o"), 0)
	time.Sleep(time.Minute)
	os.Exit(1)
}
