// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// inspection is one look at the node: what is found out once and asked of often.
type inspection struct {
	*Inspector
	node         *kubelet.Node
	host         mountns.Namespace
	table        *mountinfo.Table // of the kubelet's namespace
	tables       map[uint64]*mountinfo.Table
	verdicts     map[mountKey]tableVerdict
	processes    map[int]Process
	aliveReasons map[string]string // UID -> why it is alive; empty: it is not
	unseenReason string            // in the report that is judged, see unseen
	unreadTables map[uint64]string // why the mount table of a namespace could not be read
	// seesAll is whether this process sees all others.
	seesAll bool
	claims  map[string]Claim
	// stagedVolumes are names of volumes by staging path.
	stagedVolumes map[string]string
	asker         asker
}

// claimNamespace asks once for each namespace and owner.
func (n *inspection) claimNamespace(ns mountns.Namespace, owner *cri.Owner) Claim {
	key := strconv.FormatUint(ns.Inode, 10)
	if owner != nil {
		key += " " + owner.ContainerID
	}
	c, known := n.claims[key]
	if !known {
		c = n.asker.claimNamespace(ns, owner)
		n.claims[key] = c
	}
	return c
}

// asker says what has not been asked for yet in this look.
type asker interface {
	mountTable(ns mountns.Namespace) (*mountinfo.Table, error)
	// process says who a process is. Whether it still has what holds the device, and its name, confirm adds.
	process(ctx context.Context, pid int) Process
	confirm(pid int, h devholder.Holder, p Process) Process
	claimNamespace(ns mountns.Namespace, owner *cri.Owner) Claim
	// aliveReason says why a pod is alive; empty: it is not.
	aliveReason(ctx context.Context, uid string) string
	// stagedVolume is the name of the volume at a staging path, by the kubelet's record of it; empty: not known.
	stagedVolume(ctx context.Context, point string) string
}

func (i *Inspector) newInspection(ctx context.Context) (*inspection, error) {
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, err
	}
	host, table, err := node.OwnedMounts()
	if err != nil {
		return nil, err
	}
	inspection := &inspection{
		Inspector: i, node: node, host: host, table: table, tables: map[uint64]*mountinfo.Table{}, processes: map[int]Process{},
		aliveReasons: map[string]string{}, unreadTables: map[uint64]string{}, seesAll: sys.SeesEverything(), claims: map[string]Claim{}, stagedVolumes: map[string]string{},
	}
	inspection.asker = nodeAsker{inspection}
	return inspection, nil
}

// isHostMount reports whether a holder is a mount of the kubelet's own namespace.
func (n *inspection) isHostMount(h devholder.Holder) bool {
	return h.Kind == devholder.Mount && (h.Mount.Namespace.Same(n.host) || h.Mount.Namespace.Inode == 0 && h.Mount.Namespace.PID == n.node.PID)
}

// namespaceTable is the mount table of a namespace as it is seen from its root.
func (n *inspection) namespaceTable(namespace mountns.Namespace) (*mountinfo.Table, error) {
	if t := n.tables[namespace.Inode]; t != nil {
		return t, nil
	}
	if why := n.unreadTables[namespace.Inode]; why != "" {
		return nil, errors.New(why)
	}
	t, err := n.asker.mountTable(namespace)
	n.keepTable(namespace, t, err)
	return t, err
}

func (n *inspection) keepTable(namespace mountns.Namespace, t *mountinfo.Table, err error) {
	if err != nil {
		n.unreadTables[namespace.Inode] = err.Error()
		return
	}
	n.tables[namespace.Inode] = t
}

// maxTableReaders is how many mount tables are read at once. Each takes a thread of its own.
const maxTableReaders = 4

// readTables reads the tables of all other namespaces that holders are mounted in, several at a time.
func (n *inspection) readTables(holders []devholder.Holder) {
	todo := map[uint64]mountns.Namespace{}
	for _, h := range holders {
		inode := h.Mount.Namespace.Inode
		if h.Kind == devholder.Mount && !n.isHostMount(h) && n.tables[inode] == nil && n.unreadTables[inode] == "" {
			todo[inode] = h.Mount.Namespace
		}
	}
	delete(todo, 0) // those that are known by a process alone
	var (
		readers errgroup.Group
		mu      sync.Mutex
	)
	readers.SetLimit(min(runtime.GOMAXPROCS(0), maxTableReaders))
	for _, namespace := range todo {
		readers.Go(func() error {
			t, err := n.asker.mountTable(namespace)
			mu.Lock()
			defer mu.Unlock()
			n.keepTable(namespace, t, err)
			return nil
		})
	}
	_ = readers.Wait() // an error is kept
}

// describeUnseen says why there may be processes in a namespace in which none was found; empty: there are none. Process
// 1 does not count: it stays in the one that the machine began with, where others are.
func describeUnseen(survey mountns.Survey) string {
	switch visibility, err := sys.ProcVisibility(); {
	case err != nil || visibility == sys.SeesOwn:
		return "/proc does not show the processes of others"
	case visibility == sys.SeesNamespace:
		return "/proc shows no process outside of this PID namespace"
	}
	denied := survey.Denied
	if _, err := mountns.Of(1); denied > 0 && (errors.Is(err, sys.EACCES) || errors.Is(err, sys.EPERM)) {
		denied--
	}
	if denied == 0 {
		return ""
	}
	return fmt.Sprintf("%d could not be asked for theirs", denied)
}

// maxAsked bounds of how many processes of a namespace the container is asked for.
const maxAsked = 16

// holderInfo finds out who is behind a holder, and for a mount whether it may go. live says how the holder uses the
// device as it should.
func (n *inspection) holderInfo(ctx context.Context, holder devholder.Holder) (held HolderInfo, live string, err error) {
	held = HolderInfo{Holder: holder, seesAll: n.seesAll}
	if err := ctx.Err(); err != nil {
		return held, "", err
	}
	p := n.ownerProcess(ctx, holder)
	held.Command, held.Owner = p.Command, p.Owner
	if p.Owner != nil {
		held.Pod = fault.Pod{Namespace: p.Owner.PodNamespace, Name: p.Owner.PodName, UID: p.Owner.PodUID}
		held.Container, held.Since = p.Owner.Container, p.Owner.Created
	}
	if holder.Kind != devholder.Mount {
		held.Why = "it is no mount"
		if holder.Kind == devholder.StackedDevice {
			held.Why = "it is made of this device and must be removed first: kubediag holders " + holder.Path + " says who holds it"
		}
		return held, "", nil
	}
	held.RecordedMount = faults.MountOf(holder.Mount)
	if n.isHostMount(holder) {
		held.Why = "it is the kubelet's own mount"
		return held, "", nil
	}
	live = n.judgeMount(ctx, &held, p.Unknown)
	n.addPatch(ctx, &held)
	return held, live, nil
}

// ownerProcess finds out who a holder is: the first of its processes that is in a container, else the first. Those that
// have ended by now say nothing.
func (n *inspection) ownerProcess(ctx context.Context, h devholder.Holder) Process {
	pids := holderPIDs(h)
	first := Process{}
	if len(pids) > 0 {
		first.Unknown = fmt.Sprintf("its processes %v have ended or gone elsewhere", pids[:min(len(pids), maxAsked)])
	}
	for _, pid := range pids[:min(len(pids), maxAsked)] {
		p, known := n.processes[pid]
		if !known {
			p = n.asker.process(ctx, pid)
		}
		contained := p.Owner != nil || p.Unknown != ""
		if !p.Gone && !p.confirmed && (contained || first.Unknown != "") {
			p = n.asker.confirm(pid, h, p)
		}
		n.processes[pid] = p
		switch {
		case p.Gone:
		case contained:
			return p
		case first.Unknown != "":
			first = p
		}
	}
	return first
}

// holderPIDs are the processes that are in the namespace of a mount, or have what else holds the device.
func holderPIDs(h devholder.Holder) []int {
	if h.Kind != devholder.Mount {
		return h.PIDs
	}
	var pids []int
	for _, k := range h.NamespaceHolders {
		if k.Kind == mountns.Process || k.Kind == mountns.Thread {
			pids = append(pids, k.PID)
		}
	}
	return pids
}

// nodeAsker asks the node.
type nodeAsker struct{ *inspection }

func (nodeAsker) mountTable(ns mountns.Namespace) (*mountinfo.Table, error) { return ns.Table() }

func (l nodeAsker) claimNamespace(ns mountns.Namespace, owner *cri.Owner) Claim {
	claimed, err := cri.Claim(l.host, ns, owner)
	if err != nil {
		return Claim{Namespace: claimed, Foreign: err.Error()}
	}
	return Claim{Namespace: claimed}
}

func (l nodeAsker) process(ctx context.Context, pid int) (p Process) {
	cgroup, err := sys.ReadProc(strconv.Itoa(pid)+"/cgroup", nil)
	switch {
	case errors.Is(err, sys.ENOENT), errors.Is(err, sys.ESRCH):
		p.Gone = true
	case err != nil:
		p.Unknown = fmt.Sprintf("read control group of process %d: %v", pid, err)
	default:
		p.Owner, p.Unknown = l.owner(ctx, string(cgroup))
	}
	return p
}

func (nodeAsker) confirm(pid int, holder devholder.Holder, p Process) Process {
	comm, _ := sys.ReadProc(strconv.Itoa(pid)+"/comm", nil) // empty: it has ended
	p.Command = strings.TrimSpace(string(comm))
	p.Gone, p.confirmed = !isStillHolder(pid, holder), true
	return p
}

// owner asks the runtime. A process in no container has none. unknown says why it is not known, if there may be one.
func (l nodeAsker) owner(ctx context.Context, cgroup string) (owner *cri.Owner, unknown string) {
	id, contained := cri.ContainerID(cgroup)
	if l.Runtime == nil {
		if contained {
			return nil, fmt.Sprintf("its process is in container %q, and no container runtime was asked about it", id)
		}
		return nil, ""
	}
	found, err := l.Runtime.Owner(ctx, cgroup)
	switch {
	case err == nil:
		return &found, ""
	case !contained, errors.Is(err, cri.ErrNotFound):
		return nil, ""
	}
	return nil, fmt.Sprintf("ask runtime whose process it is: %v", err)
}

// isStillHolder makes sure that a number still means the process that was found in the namespace of the mount. One that
// may not be asked has to be believed.
func isStillHolder(pid int, holder devholder.Holder) bool {
	if holder.Kind != devholder.Mount {
		return true
	}
	// A thread alone may be in the namespace; then that of its process is another.
	for _, k := range holder.NamespaceHolders {
		if k.PID == pid && k.Kind == mountns.Thread {
			return true
		}
	}
	ns, err := mountns.Of(pid)
	if err != nil {
		return !errors.Is(err, sys.ENOENT) && !errors.Is(err, sys.ESRCH)
	}
	return ns.Same(holder.Mount.Namespace)
}
