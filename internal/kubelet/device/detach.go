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

// Target names a device in a plan so that one which has taken its place since is not taken for it.
func Target(d blockdev.Device) string { return fmt.Sprintf("%s (diskseq %d)", d.Node(), d.Sequence) }

// targeted is the reverse: the kernel's name and the number of what is behind it.
func targeted(text string) (name string, sequence uint64, err error) {
	node, rest, ok := strings.Cut(text, " (diskseq ")
	number, closed := strings.CutSuffix(rest, ")")
	sequence, err = strconv.ParseUint(number, 10, 64)
	name = strings.ReplaceAll(strings.TrimPrefix(node, "/dev/"), "/", "!")
	if !ok || !closed || err != nil || name == "" || Target(blockdev.Device{Name: name, Sequence: sequence}) != text {
		return "", 0, fmt.Errorf("read target %q: %w", text, ErrNoTarget)
	}
	return name, sequence, nil
}

// Detach detaches the device that Target wrote down, by its own means, if nothing at all holds it. gone: it had gone
// already. ErrStays: it is held. blockdev.ErrBusy: somebody has just opened it.
func (i *Inspector) Detach(ctx context.Context, target string, allowed func(blockdev.Device) error) (gone bool, err error) {
	name, sequence, err := targeted(target)
	if err != nil {
		return false, err
	}
	d, err := i.Finder.Sys.Resolve(name)
	if errors.Is(err, blockdev.ErrNotFound) || err == nil && d.Sequence != sequence {
		return true, nil
	}
	if err != nil {
		return false, err
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
	name, sequence, err := targeted(target)
	if err != nil {
		return false, err
	}
	d, err := i.Finder.Sys.Resolve(name)
	if Vanished(err) {
		return false, nil
	}
	return err == nil && d.Sequence == sequence, err
}
