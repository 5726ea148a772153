// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package vm boots other kernels than the machine's own, under qemu, with a root file system of Debian's packages, and runs
// programs there. It installs qemu and a few tools; kernels and packages of the guest are only unpacked, and kept in the
// user's cache folder. Nothing is mounted for it on the machine. It is for tests alone.
//
// All is emulated. KVM is not used: /dev/kvm is there on machines on which a guest never gets past its first instructions.
package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"kubediag.org/kubediag/test/debian"
	"kubediag.org/kubediag/test/lock"
	"kubediag.org/kubediag/test/vm/wire"
)

// Kernels are the versions that can be booted, the oldest first.
var Kernels = []string{"5.10", "6.1", "6.12"}

// Options say which machine is to be started.
type Options struct {
	Kernel   string            // one of Kernels
	Packages []string          // of Debian, beside the basic ones; what they depend on comes with them
	Modules  []string          // kernel modules that are loaded at boot; fuse and loop are
	Files    map[string]string // path in the guest to a file or folder of this machine, which is copied
	Disks    []string          // raw images; as /dev/vdd and so on, in their order; they outlive the machine
	Memory   int               // MiB; 0: 4096
	Network  bool              // eth0, by which 10.0.2.2 is this machine's 127.0.0.1; the guest has to configure it
	Init     []string          // process 1 of the guest, such as systemd, and its arguments; none: one that waits for orphans
	Limit    time.Duration     // for the boot; 0: five minutes
	QEMU     string            // the program; empty: Debian's
}

// Start boots a machine and waits until it can run programs. It is the caller's to close it, but nothing of it outlives this process.
func Start(ctx context.Context, o Options) (*Machine, error) {
	if o.Memory == 0 {
		o.Memory = 4096
	}
	if o.Limit == 0 {
		o.Limit = 5 * time.Minute
	}
	if o.QEMU == "" {
		o.QEMU = "qemu-system-x86_64"
		if err := debian.Install(ctx, o.QEMU); err != nil {
			return nil, fmt.Errorf("install qemu: %w", err)
		}
	}
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("boot kernel %s: kernels are there for amd64, not for %s: %w", o.Kernel, runtime.GOARCH, errors.ErrUnsupported)
	}
	s, err := openStore()
	if err != nil {
		return nil, err
	}
	k, err := s.kernel(ctx, o.Kernel)
	if err != nil {
		return nil, err
	}
	root, err := s.root(ctx, o.Packages)
	if err != nil {
		return nil, err
	}
	m, err := o.boot(ctx, s, k, root)
	if errors.Is(err, errCrashed) { // once in many boots
		m, err = o.boot(ctx, s, k, root)
	}
	return m, err
}

func (o Options) boot(ctx context.Context, s store, k kernel, root string) (_ *Machine, err error) {
	if err := removeLeftovers(); err != nil {
		return nil, err
	}
	dir, held, err := lock.MakeFolder("", machinePrefix)
	if err != nil {
		return nil, err
	}
	m := &Machine{dir: dir, held: held, release: k.release, calls: map[uint64]*call{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if err := o.lay(ctx, s, k, dir); err != nil {
		return nil, err
	}
	if err := m.start(o.QEMU, o.arguments(k, root, dir)); err != nil {
		return nil, err
	}
	return m, m.greet(ctx, o.Limit)
}

// machinePrefix begins the names of directories of machines, among those for temporary files.
const machinePrefix = "kubediag-vm."

// removeLeftovers removes the directories of machines whose starter was killed.
func removeLeftovers() error {
	all, err := filepath.Glob(filepath.Join(os.TempDir(), machinePrefix+"*"))
	lock.SweepFolders(all, os.RemoveAll)
	return err
}

// lay makes what is of this machine alone: its initramfs and its disk of files.
func (o Options) lay(ctx context.Context, s store, k kernel, dir string) error {
	guest, err := s.guest(ctx)
	if err != nil {
		return err
	}
	boot := wire.Boot{Modules: append([]string{"fuse", "loop"}, o.Modules...), Init: o.Init, Links: map[string]string{}}
	tree := filepath.Join(dir, "files")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	for i, path := range slices.Sorted(maps.Keys(o.Files)) {
		boot.Links[path] = fmt.Sprintf("%d", i)
		if _, err := command(ctx, "", "cp", "-aL", o.Files[path], filepath.Join(tree, boot.Links[path])); err != nil {
			return err
		}
	}
	if err := makeExt4(ctx, tree, filepath.Join(dir, "files.ext4"), 256); err != nil {
		return err
	}
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	return writeInitramfs(filepath.Join(dir, "initramfs"), guest, k, boot)
}

// guest compiles the program that runs in the machine. Go knows whether that is to be done again.
func (s store) guest(ctx context.Context) (string, error) {
	turn, err := lock.Take(ctx, filepath.Join(s.dir, ".guest.lock"))
	if err != nil {
		return "", err
	}
	defer turn.Close()
	path := filepath.Join(s.dir, "guest")
	_, err = command(ctx, "", "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "kubediag.org/kubediag/test/vm/guest")
	return path, err
}

func writeInitramfs(path, guest string, k kernel, boot wire.Boot) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	out := bufio.NewWriter(f)
	add := func(name, from string) error {
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return writeCPIO(out, name, bytes.NewReader(content), int64(len(content)))
	}
	for _, name := range []string{"dev/", "proc/", "sys/", "sysroot/", "modules/"} {
		if err := writeCPIO(out, name, bytes.NewReader(nil), 0); err != nil {
			return err
		}
	}
	order, err := os.ReadFile(filepath.Join(k.dir, "drivers", "order"))
	if err != nil {
		return err
	}
	boot.Drivers = strings.Fields(string(order))
	for _, name := range boot.Drivers {
		if err := add("modules/"+name, filepath.Join(k.dir, "drivers", name)); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(boot); err != nil {
		return err
	}
	return errors.Join(add("init", guest), writeCPIO(out, "boot.gob", &b, int64(b.Len())),
		writeCPIO(out, "TRAILER!!!", bytes.NewReader(nil), 0), out.Flush())
}

// portFD is the descriptor in qemu of the socket to the guest.
const portFD = 3

// accelerator emulates the two processors of a guest in turn. Kernels rewrite their own code while they run, and with a
// thread for each processor the other one may execute what is no longer there, of which guests have crashed.
const accelerator = "tcg,thread=single"

// cmdline of the kernel. On a machine that is busy, the kernel's check of its timer sees too few ticks, and goes on
// looking for a better one for ever; and its check of the TSC finds it unstable, though that is the same for all
// processors here.
const cmdline = "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check tsc=reliable"

// arguments are those of qemu. The disks that many machines share stay as they are.
func (o Options) arguments(k kernel, root, dir string) []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-accel", accelerator, "-cpu", "max", "-smp", "2",
		"-m", fmt.Sprint(o.Memory), "-serial", "stdio", "-kernel", k.image(), "-initrd", filepath.Join(dir, "initramfs"),
		"-append", cmdline,
		"-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=port,fd=%d", portFD), "-device", "virtserialport,chardev=port,name=" + wire.Port,
	}
	if o.Network {
		args = append(args, "-netdev", "user,id=net,ipv6=off", "-device", "virtio-net-pci,netdev=net,romfile=")
	}
	disk := func(serial, file, options string) {
		args = append(args, "-drive", "if=none,format=raw,id="+serial+",file="+strings.ReplaceAll(file, ",", ",,")+options,
			"-device", "virtio-blk-pci,drive="+serial+",serial="+serial)
	}
	disk(wire.Root, root, ",snapshot=on")
	disk(wire.Modules, k.modules(), ",readonly=on")
	disk(wire.Files, filepath.Join(dir, "files.ext4"), "")
	for i, file := range o.Disks {
		disk(fmt.Sprintf("disk%d", i), file, "")
	}
	return args
}

// tail bounds what is kept of a console, and console what is said of it, in bytes.
const (
	tail    = 256 << 10
	console = 4 << 10
)
