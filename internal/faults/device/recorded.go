// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// Evidence is what the node has answered about the devices that are left, so that it can be written down and judged again
// elsewhere.
type Evidence struct {
	KubeletPID int               `json:"kubeletPID"`
	Host       mountns.Namespace `json:"host"`
	// Table is the kubelet's mount table, and Tables are those of the namespaces that have a device. Both are empty if no
	// device is left.
	Table  []mountinfo.Mount            `json:"table,omitempty"`
	Tables map[uint64][]mountinfo.Mount `json:"tables,omitempty"`
	// Unread is why the table of a namespace could not be read.
	Unread map[uint64]string `json:"unread,omitempty"`
	// Processes are those that were asked for their container.
	Processes map[int]Process `json:"processes,omitempty"`
	// AlivePods says by UID why a pod is alive; empty: it is not.
	AlivePods map[string]string `json:"alivePods,omitempty"`
	SeesAll   bool              `json:"seesAll"`
	// Claims say by namespace and container whether the namespace may be entered for it.
	Claims  map[string]Claim `json:"claims,omitempty"`
	Devices []Reported       `json:"devices"`
}

// Claim is a namespace that may be entered, or why not.
type Claim struct {
	Namespace mountns.Namespace `json:"namespace"`
	Foreign   string            `json:"foreign,omitempty"`
}

// Process is who a process is.
type Process struct {
	Command string     `json:"command,omitempty"`
	Owner   *cri.Owner `json:"owner,omitempty"`
	// Unknown is why the owner is not known, if there may be one.
	Unknown string `json:"unknown,omitempty"`
	Gone    bool   `json:"gone,omitempty"`
}

// Reported is one device.
type Reported struct {
	Report devholder.Report `json:"report"`
	// Untested is why the kernel could not be asked for it, and NoAnswer whether it did not answer.
	Untested string `json:"untested,omitempty"`
	NoAnswer bool   `json:"noAnswer,omitempty"`
	// Unseen says why there may be processes in a namespace in which none was found.
	Unseen string `json:"unseen,omitempty"`
}

// LeftWithEvidence is Left, with what it rests on.
func (i *Inspector) LeftWithEvidence(ctx context.Context) ([]*Case, *Evidence, error) {
	l, reports, cases, err := i.left(ctx)
	if err != nil {
		return nil, nil, err
	}
	return cases, l.evidence(reports), nil
}

// evidence is what was asked for in the look.
func (l *look) evidence(reports []*devholder.Report) *Evidence {
	e := &Evidence{
		KubeletPID: l.node.PID, Host: l.host, AlivePods: l.pods, SeesAll: l.seesAll, Devices: []Reported{},
		Tables: map[uint64][]mountinfo.Mount{}, Unread: map[uint64]string{}, Processes: map[int]Process{},
		Claims: map[string]Claim{},
	}
	for _, r := range reports {
		of := Reported{Report: *r, Unseen: unseen(r.Looked.Mounts)}
		if of.Report.Untested != nil {
			of.Untested, of.NoAnswer, of.Report.Untested = r.Untested.Error(), errors.Is(r.Untested, blockdev.ErrNoAnswer), nil
		}
		e.Devices = append(e.Devices, of)
		e.Table = l.table.Mounts()
	}
	for inode, table := range l.tables {
		e.Tables[inode] = table.Mounts()
	}
	for inode, err := range l.unread {
		e.Unread[inode] = err.Error()
	}
	for key, c := range l.claims {
		of := Claim{Namespace: c.namespace}
		if c.foreign != nil {
			of.Foreign = c.foreign.Error()
		}
		e.Claims[key] = of
	}
	for pid, p := range l.people {
		of := Process{Command: p.command, Owner: p.owner, Gone: p.gone}
		if p.err != nil {
			of.Unknown = p.err.Error()
		}
		e.Processes[pid] = of
	}
	return e
}

// Judge makes the cases again from evidence alone. n gives paths alone.
func (e *Evidence) Judge(ctx context.Context, n *kubelet.Node) ([]*Case, error) {
	of := *n
	of.PID = e.KubeletPID
	l := &look{
		Inspector: &Inspector{Kubelet: n}, node: &of, host: e.Host, table: mountinfo.NewTable(e.Table), tables: map[uint64]*mountinfo.Table{},
		people: map[int]person{}, pods: e.AlivePods, unread: map[uint64]error{}, seesAll: e.SeesAll, claims: map[string]claimed{},
		asker: recordedAsker{},
	}
	if l.pods == nil {
		l.pods = map[string]string{}
	}
	for inode, mounts := range e.Tables {
		l.tables[inode] = mountinfo.NewTable(mounts)
	}
	for inode, why := range e.Unread {
		l.unread[inode] = errors.New(why)
	}
	for key, c := range e.Claims {
		of := claimed{namespace: c.Namespace}
		if c.Foreign != "" {
			of.foreign = errors.New(c.Foreign)
		}
		l.claims[key] = of
	}
	for pid, p := range e.Processes {
		who := person{command: p.Command, owner: p.Owner, gone: p.Gone}
		if p.Unknown != "" {
			who.err = errors.New(p.Unknown)
		}
		l.people[pid] = who
	}
	var cases []*Case
	for _, d := range e.Devices {
		if d.Untested != "" {
			d.Report.Untested = untested{d.Untested, d.NoAnswer}
		}
		l.unseen = d.Unseen
		c, err := l.caseOf(ctx, &d.Report)
		if err != nil {
			return nil, err
		}
		cases = append(cases, c)
	}
	return cases, nil
}

// untested is why a device could not be asked for, as it was written down.
type untested struct {
	text     string
	noAnswer bool
}

// Error is the text.
func (u untested) Error() string { return u.text }

// Is reports whether the device did not answer.
func (u untested) Is(target error) bool { return u.noAnswer && target == blockdev.ErrNoAnswer }

// recordedAsker says of what was not written down that it is not known.
type recordedAsker struct{}

func (recordedAsker) table(ns mountns.Namespace) (*mountinfo.Table, error) {
	return nil, fmt.Errorf("the table of mount namespace %s was not recorded", ns)
}

func (recordedAsker) claim(ns mountns.Namespace, _ *cri.Owner) (mountns.Namespace, error) {
	return ns, fmt.Errorf("whether mount namespace %s may be entered was not recorded", ns)
}

func (recordedAsker) person(_ context.Context, pid int, _ devholder.Holder) person {
	return person{err: fmt.Errorf("whose process %d is was not recorded", pid)}
}

func (recordedAsker) alive(_ context.Context, uid string) string {
	return fmt.Sprintf("whether the pod with UID %q is alive was not recorded", uid)
}
