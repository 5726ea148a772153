// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command driver is a CSI node driver for tests. It serves volumes the way drivers for FUSE file systems do: the daemon
// of a volume mounts it at the staging path, once for the node, and each pod gets a bind of a directory in it. The
// daemon is a child in the driver's own container, so that it dies with that.
//
//	driver [flags] -- program argument...
//
// The program is the daemon. It stays in the foreground; the argument "{}" stands for the staging path. Everything but
// the driver itself comes from the node, whose root directory is the driver's from the start.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	register "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"kubediag.org/kubediag/test/csi/staged"
)

func main() {
	if err := run(); err != nil {
		log.Fatalln("driver:", err)
	}
}

func run() error {
	name := flag.String("name", "", "name of the driver")
	node := flag.String("node", "", "name of the node")
	host := flag.String("host", "", "where the node's root directory is")
	root := flag.String("root", "", "the kubelet's root directory, without links")
	flag.Parse()
	if err := enter(*host, *root); err != nil {
		return fmt.Errorf("enter root directory of the node: %w", err)
	}
	d := &driver{name: *name, node: *node, command: flag.Args(), dir: staged.Dir(*root, *name)}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return fmt.Errorf("make directory of the driver: %w", err)
	}
	said, err := os.OpenFile(filepath.Join(d.dir, staged.Log), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	os.Stdout, os.Stderr = said, said // those of a container go with it
	log.SetOutput(said)
	log.Println("driver starts", os.Args)
	if err := d.restore(); err != nil {
		return err
	}
	ended := make(chan error)
	socket := filepath.Join(d.dir, "csi.sock")
	go func() {
		ended <- serve(socket, func(s *grpc.Server) { csi.RegisterIdentityServer(s, d); csi.RegisterNodeServer(s, d) })
	}()
	go func() {
		r := &registration{dir: d.dir, info: &register.PluginInfo{
			Type: register.CSIPlugin, Name: d.name, Endpoint: socket, SupportedVersions: []string{"1.0.0"},
		}}
		ended <- serve(filepath.Join(*root, "plugins_registry", d.name+"-reg.sock"),
			func(s *grpc.Server) { register.RegisterRegistrationServer(s, r) })
	}()
	return <-ended
}

// enter makes the node's root directory that of this process. The kubelet's root directory, which is shared with the node
// at its own path, comes into it; the container's private copies of the mounts there go: a directory is busy as long as
// there is one.
func enter(host, root string) error {
	copies, err := mountinfo.GetMounts(mountinfo.PrefixFilter(host + root))
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(copies) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount copy %q: %w", m.Mountpoint, err)
		}
	}
	if err := unix.Mount(root, host+root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %q: %w", root, err)
	}
	return errors.Join(unix.Chroot(host), os.Chdir("/"))
}

// serve serves on a socket for good. The socket of an earlier driver goes away.
func serve(path string, add func(*grpc.Server)) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen on %q: %w", path, err)
	}
	s := grpc.NewServer()
	add(s)
	return s.Serve(l)
}

// registration registers the driver with the kubelet.
type registration struct {
	register.UnimplementedRegistrationServer
	info *register.PluginInfo
	dir  string // of the driver
}

// GetInfo names the driver that is to be registered.
func (r *registration) GetInfo(context.Context, *register.InfoRequest) (*register.PluginInfo, error) {
	return r.info, nil
}

// NotifyRegistrationStatus writes down that the kubelet knows the driver.
func (r *registration) NotifyRegistrationStatus(
	_ context.Context, s *register.RegistrationStatus,
) (*register.RegistrationStatusResponse, error) {
	log.Println("registered:", s.GetPluginRegistered(), s.GetError())
	if !s.GetPluginRegistered() {
		return &register.RegistrationStatusResponse{}, nil
	}
	name := filepath.Join(r.dir, staged.Registered)
	err := errors.Join(os.WriteFile(name+".new", []byte(strconv.Itoa(os.Getpid())), 0o600), os.Rename(name+".new", name))
	return &register.RegistrationStatusResponse{}, err
}
