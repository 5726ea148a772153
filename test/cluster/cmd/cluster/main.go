// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command cluster leaves a real Kubernetes cluster of package cluster running on this machine, and takes it down
// again. It will not reach beyond the machine, and there is no image registry.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"kubediag.org/kubediag/test/ceph"
	"kubediag.org/kubediag/test/cluster"
)

const usage = `cluster runs a real Kubernetes cluster on this machine.

  cluster up [--kubelet 1.18.19|1.36.3|1.37.2]       start one and print how to reach it;
             [--name x] [--containerd 2.4.2]         with a container runtime that is newer than Debian's;
             [--fuse]                                with a CSI driver of bindfs, and the claim "model" of it
  cluster down [--name x]                            take it down
  cluster build                                      build and install all programs it can need
  cluster sweep                                      take down what killed clusters left behind
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return flag.ErrHelp
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	name := flags.String("name", "default", "")
	kubelet := flags.String("kubelet", cluster.Kubernetes118, "")
	containerd := flags.String("containerd", "", "")
	fuse := flags.Bool("fuse", false, "")
	serve := flags.Bool("serve", false, "") // what up calls itself with: stay, and own the cluster
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("read arguments: unexpected %q", flags.Arg(0))
	}
	o := cluster.Options{Name: *name, Kubelet: *kubelet, Containerd: *containerd}
	switch {
	case args[0] == "up" && *serve:
		return own(ctx, o, *fuse)
	case args[0] == "up":
		return up(ctx, o, *fuse)
	case args[0] == "down":
		return cluster.Down(ctx, *name)
	case args[0] == "build":
		return cluster.BuildAll(ctx)
	case args[0] == "sweep":
		return errors.Join(cluster.Sweep(), ceph.Sweep())
	}
	flags.Usage()
	return flag.ErrHelp
}

// own starts the cluster, says on standard output where it is, and keeps it until it is told to end it.
func own(ctx context.Context, o cluster.Options, fuse bool) error {
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return err
	}
	kubectl, err := cluster.Kubectl(ctx)
	if err != nil {
		return errors.Join(err, c.Stop())
	}
	if fuse {
		if err := addDriver(ctx, c, kubectl); err != nil {
			return errors.Join(err, c.Stop())
		}
	}
	fmt.Printf("export KUBECONFIG=%s PATH=%s:\"$PATH\"\n", c.Kubeconfig(), filepath.Dir(kubectl))
	return errors.Join(c.AwaitDown(ctx), c.Stop())
}

// up starts this program once more, apart from the terminal, to own the cluster, and passes on its output.
func up(ctx context.Context, o cluster.Options, fuse bool) error {
	if cluster.Exists(o.Name) {
		return fmt.Errorf("start cluster %q: %w", o.Name, os.ErrExist)
	}
	if err := o.Prepare(ctx); err != nil {
		return err
	}
	stderr, err := os.CreateTemp("", "cluster-up-")
	if err != nil {
		return err
	}
	defer stderr.Close()
	defer os.Remove(stderr.Name())
	cmd := exec.Command("/proc/self/exe", "up", "--serve", "--name="+o.Name, "--kubelet="+o.Kubelet, "--containerd="+o.Containerd, fmt.Sprintf("--fuse=%t", fuse))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })() // it may have ended by itself
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		fmt.Print(line)
		return cmd.Process.Release()
	}
	werr := cmd.Wait()
	text, _ := io.ReadAll(io.NewSectionReader(stderr, 0, 1<<20)) // without its words, how it ended must do
	return fmt.Errorf("start owner of cluster: %w\n%s", werr, strings.TrimSpace(string(text)))
}
