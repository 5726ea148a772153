// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// A kubelet binds the node of a raw block volume to a file for each pod, and makes a loop device over that file: as long as that is there, the
// name of the device is not given to another. It detaches the loop device when the pod goes. One that it has left keeps the device.

// LeftLoop is such a loop device of a pod that is no more.
type LeftLoop struct {
	// File is behind it, in the kubelet's directory of the volume.
	File   string `json:"file"`
	PodUID string `json:"podUID"`
	Volume string `json:"volume"`
}

// uidOfPod is the UID of a pod: that of the API server, or the digest of a static pod.
var uidOfPod = regexp.MustCompile(`^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$`)

// parseLoop takes the path of the file behind a loop device apart: ROOT/plugins/kubernetes.io/PLUGIN/volumeDevices/VOLUME/UID, and for a CSI
// driver a directory "dev" before the UID.
func parseLoop(plugins, file string) *LeftLoop {
	name := strings.TrimSuffix(file, " (deleted)")
	below, ok := mountinfo.Below(plugins, name)
	parts := strings.Split(strings.Replace(below, "/dev/", "/", 1), "/")
	if !ok || path.Clean(name) != name || len(parts) < 5 || parts[0] != "kubernetes.io" || parts[2] != "volumeDevices" || !uidOfPod.MatchString(parts[len(parts)-1]) {
		return nil
	}
	return &LeftLoop{file, parts[len(parts)-1], parts[len(parts)-2]}
}

// addLeftLoops adds the loop devices of pods that are no more.
func (n *inspection) addLeftLoops(ctx context.Context, found *abandonedDevices) error {
	all, err := n.inspector.Finder.Sys.LoopsOver(func(file string) bool { return parseLoop(n.node.PluginsDir(), file) != nil })
	if err != nil {
		return err
	}
	for _, d := range all {
		left, why, err := n.leftLoop(ctx, d)
		if err != nil {
			return err
		}
		if left == nil || why != "" {
			continue
		}
		usage, err := n.inspector.InspectWithProcesses(ctx, d)
		switch {
		case IsGone(err):
		case err != nil:
			return err
		default:
			usage.setLeft(left)
			n.left[d.Name] = left
			found.reports, found.usages = append(found.reports, usage.Report), append(found.usages, usage)
		}
	}
	return nil
}

// leftLoop is a loop device over a file of a raw block volume; nil: it is none. why says that it need not be left over.
func (n *inspection) leftLoop(ctx context.Context, d blockdev.Device) (left *LeftLoop, why string, err error) {
	if d.Kind != blockdev.Loop || d.Parent != "" {
		return nil, "", nil
	}
	b, err := n.inspector.Finder.Sys.Backing(d) // its path is known even if the rest is not
	if left = parseLoop(n.node.PluginsDir(), b.File); left == nil {
		return nil, "", nil
	}
	if err != nil {
		return left, err.Error(), ctx.Err()
	}
	why, err = n.whyPodMayBe(ctx, left.PodUID)
	return left, why, err
}

// whyPodMayBe says why a pod is there, or may be; empty: the kubelet has no directory of it, the runtime no sandbox, and no source its spec.
func (n *inspection) whyPodMayBe(ctx context.Context, uid string) (why string, err error) {
	if specs := n.inspector.Specs; specs != nil {
		if pod := specs.PodByUID(uid); pod != nil {
			return fmt.Sprintf("pod %s/%s has the volume", pod.Namespace, pod.Name), nil
		}
	}
	if why = n.askAlive(ctx, uid); why != "" {
		return why, ctx.Err()
	}
	err = n.node.Do(ctx, func() error {
		if _, err := os.Lstat(n.node.PodDir(uid)); !errors.Is(err, sys.ENOENT) {
			why = fmt.Sprintf("the kubelet still has the directory of the pod with UID %q", uid)
			return nil
		}
		// The directory of the pods changes when a pod comes or goes. The kubelet has its time after that.
		st, err := os.Stat(n.node.PodsDir())
		if err == nil && time.Since(st.ModTime()) < mountstate.Grace {
			why = "a pod of the node has come or gone just now"
		}
		return err
	})
	return why, err
}

// CheckLoop refuses a loop device of a raw block volume whose pod is there, or may be. It does not refuse any other device.
func (i *Inspector) CheckLoop(ctx context.Context, d blockdev.Device) error {
	n, err := i.newInspection(ctx)
	if err != nil {
		return err
	}
	_, why, err := n.leftLoop(ctx, d)
	if err == nil && why != "" {
		err = fmt.Errorf("%w: it is the kubelet's for a raw block volume: %s", ErrNotRemovable, why)
	}
	return err
}

// setLeft notes that the device is a loop device of a pod that is no more.
func (c *Usage) setLeft(left *LeftLoop) {
	c.Removable, c.Why = false, "nothing uses it"
	switch {
	case !c.Unused():
		c.Why = "it may be in use: " + c.Describe()
	case !c.Device.Known():
		c.Why = "another device could take its name unnoticed, as the kernel numbers disks only from Linux " + sys.HasDiskSequence.Kernel
	default:
		c.Removable = true
	}
	c.Left = left
}

// leftFinding is the fault.
func (c *Usage) leftFinding() fault.Finding {
	f := fault.Finding{
		Code: fault.HeldDevice, Volume: c.Left.Volume,
		Evidence: append([]string{
			fmt.Sprintf("loop device %s is over %q, which the kubelet makes for a raw block volume of the pod with UID %q", c.Device.Node(), c.Left.File, c.Left.PodUID),
			"the kubelet has no directory of that pod, the container runtime no sandbox of it, and no pod has come or gone for " + mountstate.Grace.String(),
			c.Why,
		}, c.evidence()...),
		Details: fault.Details{Device: c.Device.Name, Place: fault.PlaceDevice, Path: c.Left.File, Repair: fault.Detach},
	}
	if !c.Removable {
		f.Details.Repair, f.Details.Refusal = "", fault.Refuse(fault.InUse, c.Why)
	}
	return f
}
