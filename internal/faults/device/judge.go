// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// view is the two mount tables that a verdict rests on.
type view struct {
	layout
	host, inside *mountinfo.Table
}

// layout is where a kubelet mounts volumes.
type layout struct {
	Plugins string // the directory of all global mounts
	Pods    string // the directory of the pods
}

func layoutOf(n *kubelet.Node) layout { return layout{n.PluginsDir(), n.PodsDir()} }

// verdict is what the tables alone say about a mount of another namespace.
type verdict struct {
	parent   mountinfo.Mount
	hostPath string // the same directory on the host, among those of volumes; empty: none
	why      string // the mount stays; empty if nothing in the tables speaks against its going
}

// verdictOn looks whether m, of the table inside, is a copy of what the kubelet had mounted for a volume and has no more.
func (v view) verdictOn(m mountinfo.Mount) verdict {
	parent, ok := v.inside.ByID(m.Parent)
	if !ok || parent.ID == m.ID {
		return verdict{why: "it is the root of its namespace, which nothing has carried in"}
	}
	d := verdict{parent: parent, hostPath: v.volumePath(m, parent)}
	switch {
	case d.hostPath == "":
		d.why = "it lies on none of the directories in which the kubelet mounts volumes, so it is no copy of such a mount"
	case v.hostMounts(m):
		d.why = "the kubelet's own mount namespace has that file system mounted"
	case parent.Shared != 0:
		d.why = fmt.Sprintf("it lies on a shared mount (peer group %d): to unmount it would spread to other mount namespaces", parent.Shared)
	case v.covered(m):
		d.why = "another file system is mounted on it"
	case v.hidden(m):
		d.why = "another mount hides it: no path leads to it until that goes"
	}
	return d
}

// hidden reports whether the way to m ends on a mount of another file system.
func (v view) hidden(m mountinfo.Mount) bool {
	top, ok := v.inside.On(m.Point)
	return !ok || top.Major != m.Major || top.Minor != m.Minor
}

// hostMounts reports whether the host has the file system of m mounted.
func (v view) hostMounts(m mountinfo.Mount) bool {
	for _, h := range v.host.Mounts() {
		if h.Major == m.Major && h.Minor == m.Minor {
			return true
		}
	}
	return false
}

// covered reports whether a mount of another file system lies on m.
func (v view) covered(m mountinfo.Mount) bool {
	for _, child := range v.inside.Children(m.ID) {
		if child.Major != m.Major || child.Minor != m.Minor {
			return true
		}
	}
	return false
}

// volumePath is where on the host the directory is that m is mounted on: found by the file system that it belongs to
// and its path in there, whatever both namespaces call it. Only a directory of volumes counts.
func (v view) volumePath(m, parent mountinfo.Mount) string {
	below, ok := relative(parent.Point, m.Point)
	if !ok || parent.Deleted() {
		return ""
	}
	for _, found := range v.onHost(parent, path.Join(parent.Root, below)) {
		if v.ofVolume(found) {
			return found
		}
	}
	return ""
}

// onHost lists where the host sees the directory called name in the file system of m.
func (v view) onHost(m mountinfo.Mount, name string) []string {
	var found []string
	for _, h := range v.host.Mounts() {
		below, ok := relative(h.Root, name)
		if !ok || h.Major != m.Major || h.Minor != m.Minor {
			continue
		}
		at := path.Join(h.Point, below)
		if top, ok := v.host.On(at); ok && top.ID == h.ID {
			found = append(found, at)
		}
	}
	return found
}

// relative is what has to be added to dir to give name.
func relative(dir, name string) (string, bool) {
	if !path.IsAbs(dir) || !path.IsAbs(name) || !mountinfo.Within(dir, name) {
		return "", false
	}
	return strings.TrimPrefix(name, strings.TrimSuffix(dir, "/")), true
}

// ofVolume reports whether the kubelet mounts volumes at such a path: ROOT/plugins/..., ROOT/pods/UID/volume...
func (v view) ofVolume(name string) bool {
	if rest, ok := strings.CutPrefix(name, v.Plugins+"/"); ok {
		return rest != ""
	}
	_, rest, ok := v.podPath(name)
	return ok && strings.HasPrefix(rest, "volume")
}

// podPath takes ROOT/pods/UID/REST apart.
func (v view) podPath(name string) (uid, rest string, ok bool) {
	below, ok := strings.CutPrefix(name, v.Pods+"/")
	if !ok {
		return "", "", false
	}
	uid, rest, _ = strings.Cut(below, "/")
	return uid, rest, uid != ""
}

// holdsAll reports whether the directory has all volumes of the node below it, or all global or all pods' mounts of
// them.
func (v view) holdsAll(dir string) bool {
	dir = path.Clean(dir)
	return mountinfo.Within(dir, v.Plugins) || mountinfo.Within(dir, v.Pods)
}

// carrierPaths lists where on the host that is which a volume of a container mounts: as the runtime was told, and by
// what is mounted in the container.
func (v view) carrierPaths(c cri.Mount) []string {
	paths := []string{path.Clean(c.HostPath)}
	if top, ok := v.inside.Top(path.Clean(c.ContainerPath)); ok && !top.Deleted() {
		paths = append(paths, v.onHost(top, top.Root)...)
	}
	return paths
}

// examine judges one mount, and says how it is used as it should be.
func (l *look) examine(ctx context.Context, h *Held, unknown error) (live string) {
	table, err := l.inside(h.Mount.Namespace)
	if err != nil {
		h.Why, h.Unread = "its mount table cannot be read: "+err.Error(), true
		return ""
	}
	m, ok := table.ByID(h.Mount.ID)
	if !ok || m.Major != h.Mount.Major || m.Minor != h.Mount.Minor {
		h.Why = "it went while it was looked at"
		return ""
	}
	h.order = position(table, m.ID)
	h.At = faults.MountOf(mountns.Mount{Mount: m, Unique: h.Mount.Unique, Namespace: h.Mount.Namespace})
	v := view{layoutOf(l.node), l.table, table}
	d := v.verdictOn(m)
	h.HostPath, h.Volume = d.hostPath, volumeOf(d.hostPath)
	how, why, live := l.cameIn(v, h, d, m, unknown)
	ns, foreign := l.claim(h.Mount.Namespace, h.Owner)
	if live == "" && d.hostPath != "" {
		live = l.livePod(ctx, v, d.hostPath)
	}
	switch {
	case live != "":
		h.Why = live
	case d.why != "":
		h.Why = d.why
	case why != "":
		h.Why = why
	case foreign != nil:
		h.Why = foreign.Error()
	default:
		h.Removable, h.Mount.Namespace = true, ns
		h.Why = fmt.Sprintf("it is a copy of what the kubelet had mounted at %q, and the kubelet's namespace has that file system mounted no "+
			"more; %s; no unmount spreads from there", d.hostPath, how)
	}
	return live
}

// cameIn says how the mount came into its namespace, why it is to stay for that, and whether a container has it as a
// volume of its own.
func (l *look) cameIn(v view, h *Held, d verdict, m mountinfo.Mount, unknown error) (how, why, live string) {
	switch {
	case unknown != nil:
		return "", unknown.Error(), ""
	case h.Owner != nil:
		return l.carried(v, h, m)
	case len(residents(h.Holder)) == 0 && l.unseen != "":
		return "", "no process was found in that namespace, and " + l.unseen, ""
	case len(residents(h.Holder)) == 0:
		return "no process is in that namespace", "", ""
	case m.Point != d.hostPath:
		return "", "its process is in no container that the runtime knows, and has it at another path than the kubelet had", ""
	case d.parent.Master != 0 || m.Shared != 0:
		return "", "it is not private to its namespace", ""
	}
	return "that namespace began as a private copy of the host's", "", ""
}

// carried is cameIn for a mount in a container.
func (l *look) carried(v view, h *Held, m mountinfo.Mount) (how, why, live string) {
	whose := fmt.Sprintf("container %q of pod %s/%s", h.Container, h.Pod.Namespace, h.Pod.Name)
	carrier, ok := h.Owner.Carrier(m.Point)
	if !ok || carrier.HostPath == "" {
		return "", whose + " has mounted it itself: it lies in none of its volumes", ""
	}
	h.Carrier = &carrier
	paths := v.carrierPaths(carrier)
	for _, p := range paths {
		if v.holdsAll(p) {
			return fmt.Sprintf("hostPath %q at %q has carried it into %s", carrier.HostPath, carrier.ContainerPath, whose), "", ""
		}
	}
	for _, p := range paths {
		if uid, _, ok := v.podPath(p); ok && (uid == h.Pod.UID || h.Pod.UID == "") {
			return "", "", fmt.Sprintf("%s has it as a volume of its own, at %q", whose, carrier.ContainerPath)
		}
	}
	return "", fmt.Sprintf("it came into %s with %q, which is not above all volumes of the node", whose, carrier.HostPath), ""
}

func position(t *mountinfo.Table, id int) int {
	for i, m := range t.Mounts() {
		if m.ID == id {
			return i
		}
	}
	return -1
}
