// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/kubelog"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
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
}

// SelectionOf reads the parameters.
func SelectionOf(values map[string]string) Selection {
	return Selection{values[ParamDevice], values[ParamPersistentVolume], values[ParamMessage]}
}

// Choice is what a look has found.
type Choice struct {
	// Left are the devices of the selection that the host no longer mounts and another mount namespace does.
	Left []*Case
	// Others says what the other devices are that the selection names, in sentences.
	Others []string
}

// Choose looks at the devices of a selection. ErrParameter: the text names the parameter and its value.
func (i *Inspector) Choose(ctx context.Context, s Selection) (*Choice, error) {
	c := &Choice{}
	fits, err := i.filters(ctx, s, c)
	if err != nil {
		return nil, err
	}
	left, err := i.Left(ctx)
	if err != nil {
		return nil, err
	}
	for _, one := range left {
		if slices.ContainsFunc(fits, func(fit filter) bool { return !fit.matches(one) }) {
			continue
		}
		if one, err = i.asNamed(ctx, one, fits); err != nil {
			return nil, err
		}
		c.Left = append(c.Left, one)
	}
	return c, i.explain(ctx, fits, c)
}

// asNamed is the case of the device that a parameter names, if that is another of the same btrfs.
func (i *Inspector) asNamed(ctx context.Context, c *Case, fits []filter) (*Case, error) {
	for _, fit := range fits {
		for _, d := range fit.devices {
			if c.Device.Number == d.Number || !c.member(d) {
				continue
			}
			named, err := i.Inspect(ctx, d)
			if Vanished(err) {
				return c, nil
			}
			return named, err
		}
	}
	return c, nil
}

// filter is one parameter's say.
type filter struct {
	devices []blockdev.Device // those that are named, and those that are made of them
	matches func(*Case) bool
	nothing string // if no case matches
}

func (i *Inspector) filters(ctx context.Context, s Selection, c *Choice) ([]filter, error) {
	var fits []filter
	if s.Device != "" {
		f, err := i.byDevice(ctx, s.Device, c)
		if err != nil {
			return nil, err
		}
		fits = append(fits, f)
	}
	if s.PersistentVolume != "" {
		if strings.ContainsAny(s.PersistentVolume, "/\x00") {
			return nil, fmt.Errorf("read %s: %w: %q is no name of a PersistentVolume", ParamPersistentVolume, ErrParameter, s.PersistentVolume)
		}
		fits = append(fits, filter{
			matches: func(c *Case) bool {
				return c.onPath(func(parts []string) bool { return slices.Contains(parts, s.PersistentVolume) })
			},
			nothing: fmt.Sprintf("no device that is left behind was mounted for PersistentVolume %q on this node", s.PersistentVolume),
		})
	}
	if s.Message != "" {
		f, err := i.byMessage(ctx, s.Message)
		if err != nil {
			return nil, err
		}
		fits = append(fits, f)
	}
	return fits, nil
}

// onPath reports whether the components of the host path of one of the mounts fit.
func (c *Case) onPath(fit func(parts []string) bool) bool {
	return slices.ContainsFunc(c.Held, func(h Held) bool { return h.HostPath != "" && fit(strings.Split(h.HostPath, "/")) })
}

func (i *Inspector) byDevice(ctx context.Context, spec string, c *Choice) (filter, error) {
	d, err := i.Resolve(ctx, spec)
	switch {
	case errors.Is(err, blockdev.ErrNotFound):
		c.Others = append(c.Others, fmt.Sprintf("there is no device %q on this node: it has been detached, or never was here", spec))
		return filter{matches: func(*Case) bool { return false }}, nil
	case errors.Is(err, blockdev.ErrNoAnswer):
		return filter{}, err
	case err != nil:
		return filter{}, fmt.Errorf("read %s: %w: %q: %w", ParamDevice, ErrParameter, spec, err)
	}
	devices, err := i.withStacked(d)
	return filter{devices: devices, matches: func(c *Case) bool { return slices.ContainsFunc(devices, c.has) }}, err
}

// maxStacked bounds how many devices are followed that are made of others.
const maxStacked = 1024

// withStacked adds to devices those that are made of them, such as a dm-crypt on an image of Ceph's: what holds these holds the
// device below. A device that goes meanwhile is left out.
func (i *Inspector) withStacked(devices ...blockdev.Device) ([]blockdev.Device, error) {
	for n := 0; n < len(devices) && len(devices) < maxStacked; n++ {
		users, err := i.Finder.Sys.Users(devices[n])
		if err != nil && !Vanished(err) {
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

// has reports whether the case is about a device, its disk, one of its partitions, or a member of its file system.
func (c *Case) has(d blockdev.Device) bool {
	own := c.Device
	if own.Number == d.Number || own.Parent != "" && own.Parent == d.Name || d.Parent != "" && d.Parent == own.Name {
		return true
	}
	return c.member(d)
}

// member reports whether the file system of the case is a btrfs that the device belongs to.
func (c *Case) member(d blockdev.Device) bool {
	return slices.ContainsFunc(c.FileSystems, func(fs blockdev.FileSystem) bool { return slices.Contains(fs.Members, d.Name) })
}

// byMessage matches what the message mentions: one of its devices, volumes, pods or paths.
func (i *Inspector) byMessage(ctx context.Context, text string) (filter, error) {
	found := kubelog.Mentions(text)
	if len(found.Devices)+len(found.PersistentVolumes)+len(found.PodUIDs)+len(found.Paths) == 0 {
		return filter{}, fmt.Errorf("read %s: %w: it names no device, volume, pod or path: %q", ParamMessage, ErrParameter, clip(text))
	}
	var devices []blockdev.Device
	for _, spec := range found.Devices[:min(len(found.Devices), maxMentioned)] {
		if d, err := i.Resolve(ctx, spec); err == nil { // else it is no device of this node
			devices = append(devices, d)
		}
	}
	devices, err := i.withStacked(devices...)
	if err != nil {
		return filter{}, err
	}
	matches := func(c *Case) bool {
		if slices.ContainsFunc(devices, c.has) {
			return true
		}
		return c.onPath(func(parts []string) bool {
			return mentions(parts, found.PersistentVolumes) || mentions(parts, found.PodUIDs) ||
				slices.ContainsFunc(found.Paths, func(p string) bool { return deep(p) && mountinfo.Within(p, strings.Join(parts, "/")) })
		})
	}
	return filter{devices: devices, matches: matches, nothing: "the message names nothing that is left behind on this node"}, nil
}

func mentions(parts, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(parts, name) })
}

// minDepth is how many components a path has at least that names one volume, and not all of them.
const minDepth = 5

func deep(name string) bool { return strings.Count(strings.TrimSuffix(name, "/"), "/") >= minDepth }

// explain says what the named devices are that are not left behind.
func (i *Inspector) explain(ctx context.Context, fits []filter, c *Choice) error {
	if len(c.Left) > 0 {
		return nil
	}
	for _, fit := range fits {
		for _, d := range fit.devices[:min(len(fit.devices), maxMentioned)] {
			one, err := i.InspectThoroughly(ctx, d)
			switch {
			case errors.Is(err, blockdev.ErrNotFound), errors.Is(err, blockdev.ErrChanged):
				c.Others = append(c.Others, fmt.Sprintf("device %s is gone", d.Node()))
			case err != nil:
				return err
			default:
				c.Others = append(c.Others, one.Describe())
			}
		}
		if fit.nothing != "" && len(fit.devices) == 0 {
			c.Others = append(c.Others, fit.nothing)
		}
	}
	return nil
}

// clip shortens a text for an error.
func clip(text string) string {
	const most = 200
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
