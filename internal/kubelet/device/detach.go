// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/linux/blockdev"
)

// ErrNoTarget is returned for a text that Target does not write, and a mount that is written down as none is.
var ErrNoTarget = errors.New("no device is named")

// Vanished tells whether err only means that a device is gone, or another by now.
func Vanished(err error) bool {
	return errors.Is(err, blockdev.ErrNotFound) || errors.Is(err, blockdev.ErrChanged)
}

// Target names a device in a plan so that one which has taken its place since is not taken for it: by the number that the
// kernel gives to what is behind it, or, where it gives none, by what krbd has mapped or which file a loop device is over.
func Target(d blockdev.Device) string {
	if d.Sequence == 0 && d.Image != "" {
		return fmt.Sprintf("%s (image %s)", d.Node(), d.Image)
	}
	return fmt.Sprintf("%s (diskseq %d)", d.Node(), d.Sequence)
}

// targeted is the reverse: the kernel's name, and the number or the image of what is behind it.
func targeted(text string) (d blockdev.Device, err error) {
	node, rest, ok := strings.Cut(text, " (")
	kind, value, _ := strings.Cut(strings.TrimSuffix(rest, ")"), " ")
	d.Name = strings.ReplaceAll(strings.TrimPrefix(node, "/dev/"), "/", "!")
	switch kind {
	case "image":
		d.Image = value
	default:
		d.Sequence, err = strconv.ParseUint(value, 10, 64)
	}
	if !ok || err != nil || d.Name == "" || strings.ContainsAny(d.Image, " ()") || Target(d) != text {
		return blockdev.Device{}, fmt.Errorf("read target %q: %w", text, ErrNoTarget)
	}
	return d, nil
}

// stillIs tells whether d is the device that was written down as want, as far as that can be told.
func stillIs(d, want blockdev.Device) bool {
	return !want.Known() || d.Sequence == want.Sequence && d.Image == want.Image
}

// Detach detaches the device that Target wrote down, by its own means, if nothing at all holds it. gone: it had gone
// already. ErrStays: it is held, or may be another by now without anybody being able to tell. blockdev.ErrBusy: somebody has
// just opened it.
func (i *Inspector) Detach(ctx context.Context, target string, allowed func(blockdev.Device) error) (gone bool, err error) {
	want, err := targeted(target)
	if err != nil {
		return false, err
	}
	d, err := i.Finder.Sys.Resolve(want.Name)
	if errors.Is(err, blockdev.ErrNotFound) || err == nil && !stillIs(d, want) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if !want.Known() {
		return false, fmt.Errorf("%w: %s may be another device by now: this kernel does not number what is behind a device, nor is it "+
			"known otherwise", ErrStays, target)
	}
	if err := allowed(d); err != nil {
		return false, err
	}
	c, err := i.InspectThoroughly(ctx, d)
	if err == nil && !c.Unused() {
		err = fmt.Errorf("%w: %s", ErrStays, c.Describe())
	}
	if err == nil {
		err = i.Finder.Sys.Detach(ctx, d)
	}
	if Vanished(err) || errors.Is(err, blockdev.ErrNotAttached) {
		return true, nil
	}
	return false, err
}

// Unused tells whether nothing holds the device, and nothing may hold it unseen.
func (c *Case) Unused() bool {
	return !c.Busy && c.Untested == nil && len(c.Held) == 0 && len(c.Hidden) == 0 && len(c.FileSystems) == 0
}

// NodeUsed says where the kubelet's namespace has the node of the device bound to a file, as for a volume that a pod
// gets as a device; empty: nowhere.
func (i *Inspector) NodeUsed(ctx context.Context, d blockdev.Device) (string, error) {
	n, err := i.Kubelet.Node(ctx)
	if err != nil {
		return "", err
	}
	table, err := hostTable(n)
	if err != nil {
		return "", err
	}
	for _, m := range table.Mounts() {
		if m.FSType == "devtmpfs" && m.Root == strings.TrimPrefix(d.Node(), "/dev") {
			return m.Point, nil
		}
	}
	return "", nil
}

// There tells whether the device that Target wrote down is still there.
func (i *Inspector) There(target string) (bool, error) {
	want, err := targeted(target)
	if err != nil {
		return false, err
	}
	d, err := i.Finder.Sys.Resolve(want.Name)
	if Vanished(err) {
		return false, nil
	}
	return err == nil && stillIs(d, want), err
}
