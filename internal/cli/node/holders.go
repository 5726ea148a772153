// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// NewHoldersCommand makes the verb holders. It looks for kubelets in the process file system at proc; empty: /proc.
func NewHoldersCommand(proc string) *cobra.Command {
	options := nodeOptions{proc: proc}
	cmd := &cobra.Command{
		Use:   "holders [DEVICE|PATH]",
		Short: "Find what keeps a block device or a file system busy",
		Long: "holders looks for whatever keeps a block device or a file system of any type busy: its mounts in every mount namespace\n" +
			"of the node, with and without processes, and open files, detached mounts, overlays, loop devices, swap and devices made\n" +
			"of it. It names the processes, their containers and pods, the volume mount that has carried a mount into a container,\n" +
			"and the change that prevents it. It needs no API server, opens no file of the file system, and changes nothing.\n\n" +
			"DEVICE is the path of its node, the kernel's name for it, or its number as major:minor. PATH is a mount, or anything on\n" +
			"one: then all that has a file open there is listed, and holders says which of it keeps the mount from being unmounted.\n" +
			"If the kubelet has mounted nothing there any more, PATH is what other mount namespaces still have from there.\n" +
			"Without an argument, it is every device and volume that is mounted somewhere but no longer where the kubelet runs.\n\n" +
			"Exit status: 0 free, or in normal use; 1 held; 2 an error, or incomplete coverage.",
		Example: "  kubediag holders /dev/rbd3\n" +
			"  kubediag holders 252:48 -o json\n" +
			"  kubediag holders /var/lib/kubelet/pods/UID/volumes/kubernetes.io~csi/pvc-1/mount\n" +
			"  kubediag holders",
		Args:              verb.Takes("DEVICE", 0),
		ValidArgsFunction: verb.CompleteArg(blockDevices),
	}
	options.addFlags(cmd.Flags())
	out := addFormat(cmd)
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, args []string) error {
		r, err := options.findHolders(cmd.Context(), args)
		if err != nil {
			return err
		}
		return writeReport(cmd.OutOrStdout(), *out, r)
	})
	return cmd
}

// findHolders looks for who holds the device that args name, or every device that was left behind.
func (o nodeOptions) findHolders(ctx context.Context, args []string) (deviceReport, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	start := time.Now()
	choice, err := o.nodeOrDefault(ctx)
	if err != nil {
		return nil, err
	}
	l := newHolderLook(choice.Node.ReadOnce())
	l.inspector.Finder.Pass = mountns.NewPass(mountns.Namespace{}, nil) // the table does not have the numbers by which files show their mounts
	l.notes = nodeNotes(o.root, choice)
	l.release = thisProgram().commandLine("kubediag release" + o.flagsText())
	if len(args) == 0 {
		return l.inspectAbandoned(ctx, start)
	}
	at, err := l.findDevice(ctx, args[0])
	if err != nil {
		return nil, err
	}
	return l.inspectDevice(ctx, at, start)
}

// nodeOrDefault is the node of the kubelet. Devices can be looked into on machines that have no kubelet, too: then it
// is the caller's own mount namespace, and the place where a kubelet would be.
func (o nodeOptions) nodeOrDefault(ctx context.Context) (kubelet.LocalNode, error) {
	if o.root != "" || o.pid != 0 {
		return o.findNode(ctx)
	}
	n, err := o.findNode(ctx)
	if !errors.Is(err, kubelet.ErrNotFound) {
		return n, err
	}
	if n.Down {
		return kubelet.LocalNode{Node: &kubelet.Node{Layout: kubelet.Layout{Root: kubelet.DefaultRoot}}}, nil
	}
	o.root = kubelet.DefaultRoot
	switch own, ownErr := o.findNode(ctx); {
	case ownErr == nil && own.Node.PID == 0:
		return own, nil
	case errors.Is(ownErr, fs.ErrNotExist):
		return kubelet.LocalNode{Node: &kubelet.Node{Layout: kubelet.Layout{Root: o.root}}}, nil
	}
	return kubelet.LocalNode{}, err
}

// holderInspection is one look at the holders of devices.
type holderInspection struct {
	node      *kubelet.Node
	runtime   *boundedRuntime
	inspector *device.Inspector
	notes     []string
	release   string // the command that releases a device, without its name; empty: none is printed
}

func newHolderLook(n *kubelet.Node) *holderInspection {
	l := &holderInspection{node: n, runtime: newBoundedRuntime(n)}
	l.inspector = newInspector(n, l.runtime)
	return l
}

// newInspector asks the runtime of the kubelet; if no kubelet is known, nothing is known about containers.
func newInspector(n *kubelet.Node, runtime *boundedRuntime) *device.Inspector {
	i := &device.Inspector{Kubelet: n, Finder: &devholder.Finder{Runner: &subprocess.Runner{}, Pass: n.Pass()}}
	if n.PID != 0 {
		i.Runtime = runtime
	}
	return i
}

// inspectDevice looks at one device.
func (l *holderInspection) inspectDevice(ctx context.Context, at namedDevice, start time.Time) (*holdersReport, error) {
	look := func() (*device.Usage, error) { return l.inspector.Inspect(ctx, at.device) }
	if at.mount.Point != "" {
		look = func() (*device.Usage, error) { return l.inspector.Users(ctx, at.mount) }
	}
	c, err := look()
	if err != nil {
		return nil, err
	}
	d, err := l.deviceUseOf(ctx, c)
	if err != nil {
		return nil, err
	}
	d.Device.MountPoint = at.mount.Point
	r := &holdersReport{SchemaVersion: schemaVersion, deviceUse: d}
	r.Looked.Origin, err = l.coverageFrom(start, r.Looked.Passed)
	r.partial = r.Looked.mayHideHolder()
	return r, err
}

// inspectAbandoned looks at every device that the host has done with and another mount namespace keeps.
func (l *holderInspection) inspectAbandoned(ctx context.Context, start time.Time) (*abandonedReport, error) {
	cases, survey, err := l.inspector.FindAbandoned(ctx)
	if err != nil {
		return nil, err
	}
	r := &abandonedReport{SchemaVersion: schemaVersion, Devices: []deviceUse{}}
	for _, c := range cases {
		d, err := l.deviceUseOf(ctx, c)
		if err != nil {
			return nil, err
		}
		r.Devices = append(r.Devices, d)
	}
	passed := namespaceCoverage(survey)
	passed.Denied, passed.DeniedPIDs = searches.HidingMounts(passed.Denied, passed.DeniedPIDs...)
	r.Looked.Passed = passed
	r.Looked.Origin, err = l.coverageFrom(start, passed)
	for i := range r.Devices {
		r.Devices[i].partial = r.Looked.mayHideHolder()
	}
	return r, err
}

// neverKubelets is why a device is in use that a process has mounted by itself: as for the diagnoser, that is no fault.
const neverKubelets = "none of its mounts is a copy of one of the kubelet's"

// deviceUseOf is the report about one device.
func (l *holderInspection) deviceUseOf(ctx context.Context, usage *device.Usage) (deviceUse, error) {
	why, err := l.inUseReasons(ctx, usage, maxStackDepth)
	if err != nil {
		return deviceUse{}, err
	}
	foreign := len(why) == 0 && usage.IsHeld() && !usage.HasCopies() && !usage.HasUnreadTable()
	if foreign {
		why = []string{neverKubelets}
	}
	l.notes = append(l.notes, usage.SilentSources()...)
	u, err := newDeviceUse(usage, why)
	u.left = usage.Left != nil
	if u.foreign = foreign; len(why) == 0 && usage.IsHeld() && !usage.HasCopies() && usage.HasUnreadTable() {
		u.Device.State = stateUnknown
	}
	passed := &u.Looked.Passed
	passed.Denied, passed.DeniedPIDs = searches.Refusing(max(passed.Denied, u.Looked.Processes.Locked), passed.DeniedPIDs...)
	if l.release != "" && u.isHeld() && u.Device.Removable {
		u.release = l.release + " " + fault.Quote(u.Device.Name)
	}
	return u, err
}

// maxStackDepth is how many devices are followed that are made of one another.
const maxStackDepth = 8

// inUseReasons says why a device is in use as it should be. One that is mounted nowhere by itself may be so as swap
// space, or by way of a device that is made of it.
func (l *holderInspection) inUseReasons(ctx context.Context, c *device.Usage, depth int) ([]string, error) {
	why := c.LiveUse
	if len(why) > 0 || c.IsHeld() || depth == 0 {
		return why, nil
	}
	for _, h := range c.HolderInfos {
		switch h.Kind {
		case devholder.Swap:
			why = append(why, "the kernel swaps to "+h.Path)
		case devholder.StackedDevice:
			var through []string
			stacked, err := l.inspector.Finder.Sys.Resolve(strings.ReplaceAll(strings.TrimPrefix(h.Path, "/dev/"), "/", "!"))
			if err == nil {
				var usage *device.Usage
				if usage, err = l.inspector.Inspect(ctx, stacked); err == nil {
					through, err = l.inUseReasons(ctx, usage, depth-1)
				}
			}
			if errors.Is(err, blockdev.ErrNotFound) || errors.Is(err, blockdev.ErrChanged) {
				continue // it has gone
			}
			if err != nil {
				return nil, err
			}
			for _, reason := range through {
				why = append(why, fmt.Sprintf("device %s is made of it: %s", h.Path, reason))
			}
		}
	}
	return why, nil
}

// coverageFrom returns the kubelet and mount namespace of the look, its gaps, and how long it took.
func (l *holderInspection) coverageFrom(start time.Time, passed namespaceCoverage) (coverageOrigin, error) {
	ns, err := l.node.Namespace()
	if err != nil {
		return coverageOrigin{}, err
	}
	var skipped mountstate.Unknown
	skipped.AddSkipped(passed.Skipped...)
	return coverageOrigin{
		KubeletRoot: l.node.Root, KubeletPID: l.node.PID, MountNamespace: ns.Inode,
		NameErrors: l.runtime.errorTexts(), Milliseconds: float64(time.Since(start).Microseconds()) / 1000,
		NotLookedAt: slices.Concat(hiddenProcessGaps(passed.Denied, passed.DeniedPIDs, passed.Partial), skipped.Gaps,
			l.runtime.coverageGaps()), Notes: l.notes,
		blind: processesHidden(),
	}, nil
}

// pathTimeout bounds the wait for the file systems on the way to a path.
const pathTimeout = 3 * time.Second

// namedDevice is a device, and how it was named.
type namedDevice struct {
	device blockdev.Device
	// mount has the path that was named. It is empty if the device itself was named.
	mount mountinfo.Mount
}

// findDevice finds the subject of spec: a device by the path of its node, by the kernel's name for it or by number, or a mount by
// the path of anything on it. Paths are those that the kubelet sees.
func (l *holderInspection) findDevice(ctx context.Context, spec string) (namedDevice, error) {
	if !strings.HasPrefix(spec, "/") || strings.HasPrefix(spec, "/dev/") {
		d, err := l.inspector.Resolve(ctx, spec)
		if err == nil || !errors.Is(err, blockdev.ErrNotBlock) {
			return namedDevice{device: d}, err
		}
	}
	// The kubelet had mounted a file system there, which another mount namespace may still have. Most paths have none.
	if name := path.Clean(spec); mountinfo.Within(l.node.Root, name) {
		left, _, err := l.inspector.FindAbandoned(ctx)
		for _, usage := range left {
			if usage.IsHeld() && slices.ContainsFunc(usage.HolderInfos, func(h device.HolderInfo) bool { return h.Origin.HostPath == name }) {
				return namedDevice{device: usage.Device}, nil
			}
		}
		if err != nil {
			return namedDevice{}, err
		}
	}
	at, err := callWithin(ctx, pathTimeout, func(ctx context.Context) (namedDevice, error) { return l.lookUpPath(ctx, spec) })
	if err == nil && at.mount.Point != "" {
		at.device, err = l.inspector.Finder.DeviceOf(at.mount)
	}
	if err != nil {
		return namedDevice{}, fmt.Errorf("find file system of %q: %w", spec, err)
	}
	return at, nil
}

// lookUpPath finds the mount that a path lies on, or the device whose node it is. A file system that may hang is not asked: a
// path on one stands for itself.
func (l *holderInspection) lookUpPath(ctx context.Context, name string) (at namedDevice, err error) {
	err = l.node.Do(ctx, func() error {
		table, err := l.node.TableInside()
		if err != nil {
			return err
		}
		resolved := path.Clean(name)
		if top, ok := table.Top(resolved); !ok || top.FSType == "devtmpfs" {
			var fd *sys.FD
			fd, resolved, err = mountns.View{Known: table}.LookupFollowing(name)
			if errors.Is(err, mountns.ErrMayBlock) {
				resolved, err = path.Clean(name), nil
			} else if err == nil {
				var st sys.Stat
				if st, err = fd.Stat(sys.StatType); err == nil && st.IsBlockDevice() { // the node of a device
					at.device, err = blockdev.Sys{}.Resolve(blockdev.Number{Major: st.RdevMajor, Minor: st.RdevMinor}.String())
				}
				fd.Close()
			}
			if err != nil {
				return fmt.Errorf("look up %q: %w", resolved, err)
			}
		}
		if at.device != (blockdev.Device{}) {
			return nil
		}
		var ok bool
		if at.mount, ok = table.On(resolved); !ok {
			return fmt.Errorf("%q is on no mount", resolved)
		}
		return nil
	})
	return at, err
}
