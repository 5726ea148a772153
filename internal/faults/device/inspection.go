// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// inspection is one look at the node: it finds out each thing once. A recorded one reads nothing from the node: all that
// was not written down is unknown.
type inspection struct {
	inspector    *Inspector
	recorded     bool
	node         *kubelet.Node
	host         mountns.Namespace
	table        *mountinfo.Table // of the kubelet's namespace
	tables       map[uint64]*mountinfo.Table
	unreadTables map[uint64]string // why the mount table of a namespace could not be read
	verdicts     map[mountKey]tableVerdict
	processes    map[int]Process
	aliveReasons map[string]string // UID -> why it is alive; empty: it is not
	// stayingReasons say by UID why the kubelet need not have done with the pod; empty: it must have.
	stayingReasons map[string]string
	claims         map[string]Claim
	spaces         namespaceSearch
	left           map[string]*LeftLoop // by name of the device
	// stagedVolumes are names of volumes by staging path.
	stagedVolumes map[string]string
	unseenReason  string // in the report that is judged, see describeUnseen
	seesAll       bool   // whether this process sees all others
}

// namespaceSearch bounds the search for namespaces to which no process leads, such as those whose descriptors are in a socket. Each takes a pass over
// all namespaces of the machine, and any user may make thousands.
type namespaceSearch struct {
	// owners are the user namespaces that own mount namespaces, by the IDs of those that were asked for; 0: there is none any more.
	owners map[uint64]uint64
	// searched counts those whose tables were read.
	searched int
}

// maxSearched is how many such namespaces have their tables read in one inspection.
const maxSearched = 16

// addOwners reads the owners of namespaces in one pass.
func (s *namespaceSearch) addOwners(list []mountns.Namespace) error {
	living, err := mountns.Owners(list)
	if err != nil || living == nil {
		return err
	}
	if s.owners == nil {
		s.owners = map[uint64]uint64{}
	}
	for _, ns := range list {
		s.owners[ns.ID] = living[ns.ID]
	}
	return nil
}

// mayRead reports whether the table of a namespace may be read, and counts it if it is searched for.
func (s *namespaceSearch) mayRead(ns mountns.Namespace) bool {
	if ns.PID != 0 || ns.Link != "" || ns.Name != "" {
		return true
	}
	s.searched++
	return s.searched <= maxSearched
}

// mountKey is a mount of a namespace.
type mountKey struct {
	namespace uint64
	id        int
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
	return &inspection{
		inspector: i, node: node, host: host, table: table, tables: map[uint64]*mountinfo.Table{}, unreadTables: map[uint64]string{},
		verdicts: map[mountKey]tableVerdict{}, processes: map[int]Process{}, aliveReasons: map[string]string{}, stayingReasons: map[string]string{}, claims: map[string]Claim{},
		stagedVolumes: map[string]string{}, left: map[string]*LeftLoop{}, seesAll: sys.SeesEverything(),
	}, nil
}

// claimNamespace finds out once for each namespace and owner whether mounts may be changed there.
func (n *inspection) claimNamespace(ns mountns.Namespace, owner *cri.Owner) Claim {
	key := strconv.FormatUint(ns.Inode, 10)
	if owner != nil {
		key += " " + owner.ContainerID
	}
	if known, ok := n.claims[key]; ok {
		return known
	}
	c := Claim{Namespace: ns}
	userNamespace, asked := n.spaces.owners[ns.ID]
	asked = asked && ns.ID != 0
	ns.UserNamespace = userNamespace
	if asked && userNamespace == 0 {
		c.Foreign = fmt.Sprintf("mount namespace %s has ended", ns)
	} else if n.recorded {
		c.Foreign = fmt.Sprintf("whether mount namespace %s may be entered was not recorded", ns)
	} else if claimed, err := cri.Claim(n.host, ns, owner); err != nil {
		c = Claim{Namespace: claimed, Foreign: err.Error()}
	} else {
		c.Namespace = claimed
	}
	n.claims[key] = c
	return c
}

// isHostMount reports whether a holder is a mount of the kubelet's own namespace.
func (n *inspection) isHostMount(h devholder.Holder) bool {
	return h.Kind == devholder.Mount && (h.Mount.Namespace.Same(n.host) || h.Mount.Namespace.Inode == 0 && h.Mount.Namespace.PID == n.node.PID)
}

// namespaceTable is the mount table of a namespace as it is seen from its root.
func (n *inspection) namespaceTable(namespace mountns.Namespace) (*mountinfo.Table, error) {
	n.readTables([]mountns.Namespace{namespace})
	if why := n.unreadTables[namespace.Inode]; why != "" {
		return nil, errors.New(why)
	}
	return n.tables[namespace.Inode], nil
}

// maxTableReaders is how many mount tables are read at once. Each takes a thread of its own.
const maxTableReaders = 4

// readTables reads the tables of namespaces that were not read yet, several at a time. A namespace that has ended since
// its mounts were found has an empty one.
func (n *inspection) readTables(namespaces []mountns.Namespace) {
	todo := map[uint64]mountns.Namespace{}
	for _, ns := range namespaces {
		switch {
		case n.tables[ns.Inode] != nil || n.unreadTables[ns.Inode] != "":
		case todo[ns.Inode].Inode == 0 && !n.recorded && !n.spaces.mayRead(ns):
			n.unreadTables[ns.Inode] = fmt.Sprintf("no process leads to it, as to more than %d others", maxSearched)
		default:
			todo[ns.Inode] = ns
		}
	}
	var (
		readers errgroup.Group
		mu      sync.Mutex
	)
	readers.SetLimit(min(runtime.GOMAXPROCS(0), maxTableReaders))
	for inode, namespace := range todo {
		readers.Go(func() error {
			t, err := (*mountinfo.Table)(nil), fmt.Errorf("the table of mount namespace %s was not recorded", namespace)
			if !n.recorded {
				t, err = namespace.Table()
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				n.unreadTables[inode] = err.Error()
			} else {
				n.tables[inode] = t
			}
			return nil
		})
	}
	_ = readers.Wait() // an error is kept
	maps.DeleteFunc(todo, func(inode uint64, _ mountns.Namespace) bool { return n.unreadTables[inode] == "" })
	if len(todo) == 0 || n.recorded {
		return
	}
	ended, err := mountns.Ended()
	for inode, namespace := range todo {
		if err == nil && ended(namespace) {
			delete(n.unreadTables, inode)
			n.tables[inode] = mountinfo.NewTable(nil)
		}
	}
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

// holderInfo says whose a holder is, and why it is to stay; it does not say that of a mount in another namespace than the kubelet's.
func (n *inspection) holderInfo(holder devholder.Holder, p Process) HolderInfo {
	held := HolderInfo{Holder: holder, seesAll: n.seesAll}
	held.Command, held.In.Owner = p.Command, p.Owner
	if p.Owner != nil {
		held.In.Pod = fault.Pod{Namespace: p.Owner.PodNamespace, Name: p.Owner.PodName, UID: p.Owner.PodUID}
		held.In.Container, held.In.Since = p.Owner.Container, p.Owner.Created
	}
	if holder.Kind != devholder.Mount {
		held.Why = "it is no mount"
		if holder.Kind == devholder.StackedDevice {
			held.Why = "it is made of this device and must be removed first: kubediag holders " + holder.Path + " says who holds it"
		}
		return held
	}
	held.RecordedMount = faults.MountOf(holder.Mount)
	if n.isHostMount(holder) {
		held.Why = "it is the kubelet's own mount"
	}
	return held
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
		if !known && n.recorded {
			p.Unknown = fmt.Sprintf("whose process %d is was not recorded", pid)
		} else if !known {
			cgroup, err := sys.ReadProc(strconv.Itoa(pid)+"/cgroup", nil)
			switch {
			case errors.Is(err, sys.ENOENT), errors.Is(err, sys.ESRCH):
				p.Gone = true
			case err != nil:
				p.Unknown = fmt.Sprintf("read control group of process %d: %v", pid, err)
			default:
				p.Owner, p.Unknown = ownerOf(ctx, n.inspector.Runtime, string(cgroup))
			}
		}
		contained := p.Owner != nil || p.Unknown != ""
		if !n.recorded && !p.Gone && !p.confirmed && (contained || first.Unknown != "") {
			comm, _ := sys.ReadProc(strconv.Itoa(pid)+"/comm", nil) // empty: it has ended
			p.Command = strings.TrimSpace(string(comm))
			p.Gone, p.confirmed = !isStillHolder(pid, h), true
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

// holderPIDs are the processes in the mount namespace of a holder that is a mount; else those that have the holder.
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

// ownerOf asks the runtime. A process in no container has none. unknown says why it is not known, if there may be one.
func ownerOf(ctx context.Context, r Runtime, cgroup string) (owner *cri.Owner, unknown string) {
	id, contained := cri.ContainerID(cgroup)
	if r == nil {
		if contained {
			return nil, fmt.Sprintf("its process is in container %q, and no container runtime was asked about it", id)
		}
		return nil, ""
	}
	found, err := r.Owner(ctx, cgroup)
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
