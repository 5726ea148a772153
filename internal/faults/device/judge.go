// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// mountTables is the two mount tables that a verdict rests on.
type mountTables struct {
	kubeletLayout
	hostTable, holderTable *mountinfo.Table
}

// kubeletLayout is where a kubelet mounts volumes.
type kubeletLayout struct {
	Plugins string // the directory of all global mounts
	Pods    string // the directory of the pods
}

func layoutOf(n *kubelet.Node) kubeletLayout { return kubeletLayout{n.PluginsDir(), n.PodsDir()} }

// tableVerdict is what the tables alone say about a mount of another namespace.
type tableVerdict struct {
	parent     mountinfo.Mount
	hostPath   string // the same directory on the host, among those of volumes; empty: none
	keepReason string // the mount stays; empty if nothing in the tables speaks against its going
}

// maxShown is at how many places of the node a file system is looked for. More, for each of many mounts, would be the square of work.
const maxShown = 256

// tooManyPlaces is why a mount stays of whose file system the node has more.
var tooManyPlaces = fmt.Sprintf("the node has that directory mounted at more than %d places, which are too many to look at", maxShown)

// judgeByTables looks whether m, of the table inside, is a copy of what the kubelet had mounted for a volume and has no
// more.
func (t mountTables) judgeByTables(mount mountinfo.Mount) tableVerdict {
	parent, ok := t.holderTable.ByID(mount.Parent)
	if !ok || parent.ID == mount.ID {
		return tableVerdict{keepReason: "it is the root of its namespace, which nothing has carried in"}
	}
	hostPath, all := t.hostVolumePath(mount, parent)
	verdict := tableVerdict{parent: parent, hostPath: hostPath}
	top, reached := t.holderTable.On(mount.Point)
	switch {
	case !all:
		verdict.keepReason = tooManyPlaces
	case verdict.hostPath == "":
		verdict.keepReason = "it is in no directory in which the kubelet mounts volumes, so it is no copy of such a mount"
	case t.hostTable.HasDevice(mount.Major, mount.Minor):
		verdict.keepReason = "the kubelet's own mount namespace has that file system mounted"
	case parent.Shared != 0:
		verdict.keepReason = fmt.Sprintf("it lies on a shared mount (peer group %d): an unmount would spread to other mount namespaces", parent.Shared)
	case slices.ContainsFunc(t.holderTable.Children(mount.ID), func(child mountinfo.Mount) bool { return !sameFileSystem(child, mount) }):
		verdict.keepReason = "another file system is mounted on it"
	case !reached || !sameFileSystem(top, mount):
		verdict.keepReason = "another mount hides it: no path leads to it until that goes"
	}
	return verdict
}

func sameFileSystem(a, b mountinfo.Mount) bool { return a.Major == b.Major && a.Minor == b.Minor }

// hostVolumePath is where on the host the directory is that m is mounted on: found by the file system that it belongs
// to and its path in there. The names that both namespaces have for it may differ. Only a directory of volumes counts.
// all is whether there were not too many places to look at.
func (t mountTables) hostVolumePath(m, parent mountinfo.Mount) (found string, all bool) {
	below, ok := mountinfo.Below(parent.Point, m.Point)
	if !ok || parent.Deleted() {
		return "", true
	}
	paths, all := t.hostPathsOf(parent, path.Join(parent.Root, below))
	for _, found := range paths {
		rest, global := strings.CutPrefix(found, t.Plugins+"/") // ROOT/plugins/...
		_, inPod, ofPod := t.splitPodPath(found)                // ROOT/pods/UID/volume...
		if global && rest != "" || !global && ofPod && strings.HasPrefix(inPod, "volume") {
			return found, all
		}
	}
	return "", all
}

// hostPathsOf lists where the host sees the directory called name in the file system of m.
func (t mountTables) hostPathsOf(m mountinfo.Mount, name string) (found []string, all bool) {
	shown, more := t.hostTable.Showing(m.Major, m.Minor, name, maxShown)
	for _, h := range shown {
		below, ok := mountinfo.Below(h.Root, name)
		if !ok {
			continue
		}
		at := path.Join(h.Point, below)
		if top, ok := t.hostTable.On(at); ok && top.ID == h.ID {
			found = append(found, at)
		}
	}
	return found, !more
}

// splitPodPath takes ROOT/pods/UID/REST apart.
func (t mountTables) splitPodPath(name string) (uid, rest string, ok bool) {
	below, ok := strings.CutPrefix(name, t.Pods+"/")
	if !ok {
		return "", "", false
	}
	uid, rest, _ = strings.Cut(below, "/")
	return uid, rest, uid != ""
}

// judgeMount judges one mount, and says how it is used as it should be.
func (n *inspection) judgeMount(ctx context.Context, holder *HolderInfo, unknown string) (live string) {
	table, err := n.namespaceTable(holder.Mount.Namespace)
	if err != nil {
		holder.Why, holder.TableUnread = "its mount table cannot be read: "+err.Error(), true
		return ""
	}
	m, ok := table.ByID(holder.Mount.ID)
	if !ok || m.Major != holder.Mount.Major || m.Minor != holder.Mount.Minor {
		holder.Why = "it went while it was looked at"
		return ""
	}
	holder.tableOrder = table.Position(m.ID)
	holder.RecordedMount = faults.MountOf(mountns.Mount{Mount: m, Unique: holder.Mount.Unique, Namespace: holder.Mount.Namespace})
	tables := mountTables{layoutOf(n.node), n.table, table}
	key := mountKey{holder.Mount.Namespace.Inode, m.ID}
	verdict, known := n.verdicts[key] // a mount may hold many devices
	if !known {
		verdict = tables.judgeByTables(m)
		n.verdicts[key] = verdict
	}
	holder.Origin.HostPath, holder.Origin.Volume = verdict.hostPath, n.volumeName(ctx, verdict.hostPath)
	var how, why string
	if unknown == "" && holder.In.Owner != nil {
		how, why, live = tables.carriedByContainer(holder, m)
	} else {
		how, why = n.propagationPath(holder, verdict, m, unknown)
	}
	claim := n.claimNamespace(holder.Mount.Namespace, holder.In.Owner)
	if live == "" && verdict.hostPath != "" {
		live = n.livePodReason(ctx, tables, verdict.hostPath)
	}
	// A file system without a device has none that has to be detached.
	if live == "" && m.Major == 0 && m.FSType != "btrfs" {
		live = n.stayingReason(tables, verdict.hostPath)
	}
	switch {
	case live != "":
		holder.Why = live
	case verdict.keepReason != "":
		holder.Why = verdict.keepReason
	case why != "":
		holder.Why = why
	case claim.Foreign != "":
		holder.Why = claim.Foreign
	default:
		holder.Removable, holder.Mount.Namespace = true, claim.Namespace
		holder.Why = fmt.Sprintf("it is a copy of the kubelet's former mount at %q; that file system is no longer mounted in the kubelet's "+
			"namespace; %s; no unmount spreads from there", verdict.hostPath, how)
	}
	return live
}

// propagationPath says how a mount in no container came into its namespace, and why it is to stay for that.
func (n *inspection) propagationPath(h *HolderInfo, verdict tableVerdict, mount mountinfo.Mount, unknown string) (how, why string) {
	switch {
	case unknown != "":
		return "", unknown
	case len(holderPIDs(h.Holder)) == 0 && n.unseenReason != "":
		return "", "no process was found in that namespace, and " + n.unseenReason
	case len(holderPIDs(h.Holder)) == 0:
		return "no process is in that namespace", ""
	case mount.Point != verdict.hostPath:
		return "", "its process is in no container that the runtime knows, and has it at another path than the kubelet had"
	case verdict.parent.Master != 0 || mount.Shared != 0:
		return "", "it is not private to its namespace"
	}
	return "that namespace began as a private copy of the host's", ""
}

// carriedByContainer is propagationPath for a mount in a container. live says that the container has it as a volume of its own.
func (t mountTables) carriedByContainer(holder *HolderInfo, m mountinfo.Mount) (how, why, live string) {
	whose := fmt.Sprintf("container %q of pod %s/%s", holder.In.Container, holder.In.Pod.Namespace, holder.In.Pod.Name)
	carrier, ok := holder.In.Owner.Carrier(m.Point)
	if !ok || carrier.HostPath == "" {
		return "", whose + " has mounted it itself: it lies in none of its volumes", ""
	}
	holder.Origin.CarrierMount = &carrier
	// The carrier leads from a path of the host to a path of the container.
	paths, all := []string{path.Clean(carrier.HostPath)}, true
	if top, ok := t.holderTable.Top(path.Clean(carrier.ContainerPath)); ok && !top.Deleted() {
		var more []string
		more, all = t.hostPathsOf(top, top.Root)
		paths = append(paths, more...)
	}
	for _, p := range paths {
		if mountinfo.Within(p, t.Plugins) || mountinfo.Within(p, t.Pods) { // it has all volumes of the node, of pods or global
			return fmt.Sprintf("hostPath %q at %q has carried it into %s", carrier.HostPath, carrier.ContainerPath, whose), "", ""
		}
	}
	for _, p := range paths {
		if uid, _, ok := t.splitPodPath(p); ok && (uid == holder.In.Pod.UID || holder.In.Pod.UID == "") {
			return "", "", fmt.Sprintf("%s has it as a volume of its own, at %q", whose, carrier.ContainerPath)
		}
	}
	if !all {
		return "", tooManyPlaces, ""
	}
	return "", fmt.Sprintf("it came into %s with %q, which is not above all volumes of the node", whose, carrier.HostPath), ""
}
