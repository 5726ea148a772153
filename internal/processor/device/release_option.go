// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/processor"
)

// paramReleaseDetach is "auto" (default: the devices that the kubelet's volumes have mapped, which are krbd, and loop devices over a
// file in the kubelet's directories), "true" (whatever has means for it, which for zram loses its content), or
// "false". Only a device that is released here is ever detached.
const paramReleaseDetach = "param.recover.system.held_device.detach"

type releaseOptions struct {
	detach string
	root   string // the kubelet's
}

// readOptions reads the parameters.
func (h *ReleaseRecoverer) readOptions(ctx context.Context, values map[string]string) (releaseOptions, error) {
	options := releaseOptions{detach: values[paramReleaseDetach]}
	switch options.detach {
	case "":
		options.detach = "auto"
	case "auto", "true", "false":
	default:
		return options, processor.Stalled(fmt.Errorf("read parameter %s: value %q must be auto, true or false", paramReleaseDetach, options.detach))
	}
	n, err := h.Inspector.Kubelet.Node(ctx)
	if err != nil {
		return options, err
	}
	options.root = n.Root
	return options, nil
}

// detachable reports whether a device is of a kind that can be detached, and is a whole one.
func detachable(d blockdev.Device) bool {
	return (d.Kind == blockdev.KRBD || d.Kind == blockdev.Loop || d.Kind == blockdev.Zram) && d.Parent == ""
}

// detachReason says why a device is detached once it is free; empty: it is not.
func (o releaseOptions) detachReason(i *device.Inspector, d blockdev.Device) string {
	switch {
	case o.detach == "false", !detachable(d), !d.Known():
		return ""
	case d.Kind == blockdev.KRBD:
		return "it was mapped only for the kubelet's volume, and nothing mounts it now"
	case o.detach == "true":
		return "the parameter " + paramReleaseDetach + " asks for it"
	case d.Kind == blockdev.Loop:
		if b, err := i.Finder.Sys.Backing(d); err == nil && path.IsAbs(b.File) && strings.HasPrefix(b.File, o.root+"/") {
			return "the file behind it is the kubelet's"
		}
	}
	return ""
}
