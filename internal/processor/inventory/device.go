// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/processor"
)

// keyDevices is the key of the result.
const keyDevices = "collector.system.block_device.list"

// DeviceCollector is the processor blockDeviceCollector.
//
// It collects the block devices of the node: their kind, their live file systems, whether they are busy, and their
// mounts. With a pod, it collects those with a mount in the kubelet's directory of that pod. It rests on packages blockdev and mountns.
type DeviceCollector struct {
	Kubelet kubelet.Locator
	Pods    kubelet.Pods
	Sys     blockdev.Sys
}

// Name is blockDeviceCollector.
func (*DeviceCollector) Name() string { return "blockDeviceCollector" }

// deviceDocument is one device as it is shown.
type deviceDocument struct {
	Name   string        `json:"name"`
	Number string        `json:"number"`
	Kind   blockdev.Kind `json:"kind"`
	Disk   string        `json:"disk,omitempty"` // that it is a partition of
	// FileSystems are the types of those that are alive on it.
	FileSystems []string `json:"fileSystems,omitempty"`
	// Busy is whether the kernel refuses to open it exclusively; Error says why that is not known.
	Busy  bool   `json:"busy"`
	Error string `json:"error,omitempty"`
	// Host is whether the kubelet's mount namespace has it mounted, Abandoned whether only other namespaces have.
	Host      bool `json:"host"`
	Abandoned bool `json:"left"`
	// Namespaces counts the mount namespaces that have it mounted.
	Namespaces int `json:"namespaces"`
}

// Run lists them by name.
func (c *DeviceCollector) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	podUID, elsewhere, err := findScope(ctx, c.Pods, r)
	if err != nil || elsewhere != "" {
		return processor.Result{NotApplicable: elsewhere}, err
	}
	n, err := c.Kubelet.Node(ctx)
	if err != nil {
		return processor.Result{}, err
	}
	host, err := n.Namespace()
	if err != nil {
		return processor.Result{}, err
	}
	devices, err := c.Sys.All()
	if err != nil {
		return processor.Result{}, err
	}
	mounted, _, err := mountns.FileSystems()
	if err != nil {
		return processor.Result{}, fmt.Errorf("list mounted file systems: %w", err)
	}
	if podUID != "" {
		if devices, err = podDevices(ctx, n, podUID, devices); err != nil {
			return processor.Result{}, err
		}
	}
	list := make([]deviceDocument, 0, len(devices))
	for _, d := range devices {
		if err := ctx.Err(); err != nil {
			return processor.Result{}, err
		}
		list = append(list, c.describe(d, host, mounted))
	}
	values := map[string]string{}
	err = processor.AddJSON(values, map[string]any{keyDevices: list})
	return processor.Result{Values: values}, err
}

// podDevices are the devices that have a mount in the kubelet's directory of a pod.
func podDevices(ctx context.Context, n *kubelet.Node, podUID string, devices []blockdev.Device) ([]blockdev.Device, error) {
	table, err := n.Mounts(ctx)
	if err != nil {
		return nil, err
	}
	mounts := table.Under(n.PodDir(podUID))
	return slices.DeleteFunc(devices, func(d blockdev.Device) bool {
		return !slices.ContainsFunc(mounts, func(m mountinfo.Mount) bool {
			return isOnDevice(m, d, []string{d.Name})
		})
	}), nil
}

func (c *DeviceCollector) describe(device blockdev.Device, host mountns.Namespace, mounted []mountns.FileSystem) deviceDocument {
	out := deviceDocument{Name: device.Name, Number: device.Number.String(), Kind: device.Kind, Disk: device.Parent}
	members := []string{device.Name}
	alive, err := c.Sys.FileSystems(device)
	for _, fs := range alive {
		// Those of the disk and of its partitions are listed there.
		if fs.Number == device.Number || fs.Journal || len(fs.Members) > 0 {
			out.FileSystems = append(out.FileSystems, fs.Type)
			members = append(members, fs.Members...)
		}
	}
	if err == nil {
		out.Busy, err = c.Sys.Busy(device)
	}
	if err != nil {
		out.Error = err.Error()
	}
	for _, fs := range mounted {
		if !isOnDevice(fs.Mount.Mount, device, members) {
			continue
		}
		out.Namespaces += len(fs.Namespaces)
		for _, ns := range fs.Namespaces {
			out.Host = out.Host || ns.Same(host)
		}
	}
	out.Abandoned = out.Namespaces > 0 && !out.Host
	return out
}

// isOnDevice reports whether a mounted file system is on the device. A btrfs shows a number of its own, and the node of
// one of its devices.
func isOnDevice(fs mountinfo.Mount, d blockdev.Device, members []string) bool {
	if fs.FSType != "btrfs" {
		return fs.Major == d.Major && fs.Minor == d.Minor
	}
	for _, name := range members {
		if path.Base(fs.Source) == name {
			return true
		}
	}
	return false
}
