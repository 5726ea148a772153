// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelog"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/printable"
)

// Parameters that narrow what is looked at. They never widen what may be changed: that is always a device that is seen
// to be left behind.
const (
	// ParamDevice is the path of a device's node, the kernel's name of it, or "major:minor".
	ParamDevice = "param.diagnoser.system.held_device.device"
	// ParamPersistentVolume is the name of a PersistentVolume as it is in the kubelet's paths.
	ParamPersistentVolume = "param.diagnoser.system.held_device.persistent_volume"
	// ParamMessage is a line of a log, as it is.
	ParamMessage = "param.diagnoser.system.held_device.message"
)

// ErrParameter is returned for a parameter that says nothing that could be looked for.
var ErrParameter = errors.New("parameter cannot be used")

// maxMentioned bounds how many devices are looked at that are named and not left behind.
const maxMentioned = 8

// Selection is what the parameters narrow a look to. The zero value is every device that is left behind.
type Selection struct {
	Device, PersistentVolume, Message string
	// Pod is the pod to whose volumes the devices belong; nil: they need not belong to any.
	Pod *corev1.Pod
}

// SelectionOf reads the parameters.
func SelectionOf(values map[string]string) Selection {
	return Selection{Device: values[ParamDevice], PersistentVolume: values[ParamPersistentVolume], Message: values[ParamMessage]}
}

// SelectionResult is what a look has found.
type SelectionResult struct {
	// Abandoned are the devices of the selection that the host no longer mounts and another mount namespace does.
	Abandoned []*Usage
	// Others says what the other devices are that the selection names, in sentences.
	Others []string
}

// Select looks at the devices of a selection. ErrParameter: the text names the parameter and its value.
func (i *Inspector) Select(ctx context.Context, s Selection) (*SelectionResult, error) {
	selector := &deviceSelector{inspector: i}
	for _, parameter := range []struct {
		value  string
		filter func(ctx context.Context, value string) (usageFilter, error)
	}{{s.Device, selector.deviceFilter}, {s.PersistentVolume, volumeFilter}, {s.Message, selector.messageFilter}} {
		if parameter.value == "" {
			continue
		}
		f, err := parameter.filter(ctx, parameter.value)
		if err != nil {
			return nil, err
		}
		selector.filters = append(selector.filters, f)
	}
	found, err := i.findAbandoned(ctx)
	left := found.usages
	if err == nil && s.Pod != nil {
		left, err = found.inspection.usagesOfPod(ctx, s.Pod, left)
	}
	if err != nil {
		return nil, err
	}
	for _, one := range left {
		if slices.ContainsFunc(selector.filters, func(f usageFilter) bool { return !f.matches(one) }) {
			continue
		}
		if one, err = selector.usageOfNamedMember(ctx, one); err != nil {
			return nil, err
		}
		selector.result.Abandoned = append(selector.result.Abandoned, one)
	}
	return &selector.result, selector.explainOthers(ctx)
}

// deviceSelector finds the devices of a selection.
type deviceSelector struct {
	inspector *Inspector
	filters   []usageFilter // one for each parameter
	result    SelectionResult
}

// usageOfNamedMember is the case of the device that a parameter names, if that is another of the same btrfs.
func (s *deviceSelector) usageOfNamedMember(ctx context.Context, usage *Usage) (*Usage, error) {
	for _, fit := range s.filters {
		for _, d := range fit.devices {
			if usage.Device.Number == d.Number || !usage.hasBtrfsMember(d) {
				continue
			}
			named, err := s.inspector.Inspect(ctx, d)
			if IsGone(err) {
				return usage, nil
			}
			return named, err
		}
	}
	return usage, nil
}

// usageFilter is one parameter's say.
type usageFilter struct {
	devices       []blockdev.Device // those that are named, and those that are made of them
	matches       func(*Usage) bool
	noMatchReason string // if no case matches
}

// volumeFilter matches the mounts that were made for a PersistentVolume.
func volumeFilter(_ context.Context, name string) (usageFilter, error) {
	if strings.ContainsAny(name, "/\x00") {
		return usageFilter{}, fmt.Errorf("read %s: %w: %q is no name of a PersistentVolume", ParamPersistentVolume, ErrParameter, name)
	}
	return usageFilter{
		matches: func(usage *Usage) bool {
			return usage.matchesHostPath(func(parts []string) bool { return slices.Contains(parts, name) })
		},
		noMatchReason: fmt.Sprintf("no device that is left behind was mounted for PersistentVolume %q on this node", name),
	}, nil
}

// matchesHostPath reports whether the components of the host path of one of the mounts fit.
func (c *Usage) matchesHostPath(fit func(parts []string) bool) bool {
	return slices.ContainsFunc(c.HolderInfos, func(h HolderInfo) bool { return h.Origin.HostPath != "" && fit(strings.Split(h.Origin.HostPath, "/")) })
}

func (s *deviceSelector) deviceFilter(ctx context.Context, spec string) (usageFilter, error) {
	d, err := s.inspector.Resolve(ctx, spec)
	switch {
	case errors.Is(err, blockdev.ErrNotFound):
		s.result.Others = append(s.result.Others, fmt.Sprintf("there is no device %q on this node: it has been detached, or never was here", spec))
		return usageFilter{matches: func(*Usage) bool { return false }}, nil
	case errors.Is(err, blockdev.ErrNoAnswer):
		return usageFilter{}, err
	case err != nil:
		return usageFilter{}, fmt.Errorf("read %s: %w: %q: %w", ParamDevice, ErrParameter, spec, err)
	}
	devices, err := s.inspector.withStackedDevices(d)
	return usageFilter{devices: devices, matches: func(usage *Usage) bool { return slices.ContainsFunc(devices, usage.involves) }}, err
}

// maxStacked bounds how many devices are followed that are made of others.
const maxStacked = 1024

// withStackedDevices adds to devices those that are made of them, such as a dm-crypt on an image of Ceph's: what holds
// these holds the device below. A device that goes meanwhile is left out.
func (i *Inspector) withStackedDevices(devices ...blockdev.Device) ([]blockdev.Device, error) {
	for n := 0; n < len(devices) && len(devices) < maxStacked; n++ {
		users, err := i.Finder.Sys.Users(devices[n])
		if err != nil && !IsGone(err) {
			return nil, err
		}
		for _, u := range users {
			if u.Kind == blockdev.Stacked && !slices.Contains(devices, u.Device) {
				devices = append(devices, u.Device)
			}
		}
	}
	return devices, nil
}

// involves reports whether the case is about a device, its disk, one of its partitions, or a member of its file system.
func (c *Usage) involves(d blockdev.Device) bool {
	own := c.Device
	if own.Number == d.Number || own.Parent != "" && own.Parent == d.Name || d.Parent != "" && d.Parent == own.Name {
		return true
	}
	return c.hasBtrfsMember(d)
}

// hasBtrfsMember reports whether the file system of the case is a btrfs that the device belongs to.
func (c *Usage) hasBtrfsMember(d blockdev.Device) bool {
	return slices.ContainsFunc(c.FileSystems, func(fs blockdev.FileSystem) bool { return slices.Contains(fs.Members, d.Name) })
}

// messageFilter matches what the message mentions: one of its devices, volumes, pods or paths.
func (s *deviceSelector) messageFilter(ctx context.Context, text string) (usageFilter, error) {
	found := kubelog.Mentions(text)
	if len(found.Devices)+len(found.PersistentVolumes)+len(found.PodUIDs)+len(found.Paths) == 0 {
		return usageFilter{}, fmt.Errorf("read %s: %w: it names no device, volume, pod or path: %q", ParamMessage, ErrParameter, printable.Clip(text, 200))
	}
	var devices []blockdev.Device
	for _, spec := range found.Devices[:min(len(found.Devices), maxMentioned)] {
		if d, err := s.inspector.Resolve(ctx, spec); err == nil { // else it is no device of this node
			devices = append(devices, d)
		}
	}
	devices, err := s.inspector.withStackedDevices(devices...)
	if err != nil {
		return usageFilter{}, err
	}
	matches := func(usage *Usage) bool {
		if slices.ContainsFunc(devices, usage.involves) {
			return true
		}
		return usage.matchesHostPath(func(parts []string) bool {
			return containsName(parts, found.PersistentVolumes) || containsName(parts, found.PodUIDs) ||
				slices.ContainsFunc(found.Paths, func(p string) bool {
					return strings.Count(strings.TrimSuffix(p, "/"), "/") >= minPathDepth && mountinfo.Within(p, strings.Join(parts, "/"))
				})
		})
	}
	return usageFilter{devices: devices, matches: matches, noMatchReason: "the message names nothing that is left behind on this node"}, nil
}

func containsName(parts, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(parts, name) })
}

// minPathDepth is how many components a path has at least that names one volume, and not all of them.
const minPathDepth = 5

// explainOthers says what the named devices are that are not left behind.
func (s *deviceSelector) explainOthers(ctx context.Context) error {
	if len(s.result.Abandoned) > 0 {
		return nil
	}
	for _, fit := range s.filters {
		for _, d := range fit.devices[:min(len(fit.devices), maxMentioned)] {
			one, err := s.inspector.InspectWithProcesses(ctx, d)
			switch {
			case IsGone(err):
				s.result.Others = append(s.result.Others, (&Usage{Report: &devholder.Report{Device: d}}).Name()+" is gone")
			case err != nil:
				return err
			default:
				s.result.Others = append(s.result.Others, one.Describe())
			}
		}
		if fit.noMatchReason != "" && len(fit.devices) == 0 {
			s.result.Others = append(s.result.Others, fit.noMatchReason)
		}
	}
	return nil
}
