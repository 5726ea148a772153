// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package searches

import (
	"context"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/leaving"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// ways are the ways in which a process uses a mount, in words.
var ways = map[devholder.Kind]string{
	devholder.OpenFile: "a file there open", devholder.WorkingDirectory: "its working directory there", devholder.RootDirectory: "its root directory there",
	devholder.Program: "its program there", devholder.Mapping: "a file there mapped",
}

// userSearch finds the users of a mount of a pod.
type userSearch func(ctx context.Context, m mountinfo.Mount) ([]leaving.Process, error)

// UsersBy finds the users of a mount of a pod by the search for the users of devices and file systems.
func UsersBy(i *device.Inspector) func(ctx context.Context, m mountinfo.Mount) ([]leaving.Process, error) {
	return lastingUsers(func(ctx context.Context, m mountinfo.Mount) (users []leaving.Process, err error) {
		usage, err := i.Users(ctx, m)
		if device.IsGone(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, h := range usage.Blockers() {
			p := leaving.Process{Command: h.Command, Uses: ways[h.Kind], Path: h.Path, Container: h.In.Container}
			switch {
			case h.Kind == devholder.LoopDevice:
				p.Uses = "a file there is loop device " + h.Path
			case h.Kind == devholder.Swap:
				p.Uses = "the kernel swaps to a file there"
			case len(h.PIDs) > 0:
				p.PID = h.PIDs[0]
			}
			if h.In.Pod.Name != "" {
				p.Pod = h.In.Pod.Namespace + "/" + h.In.Pod.Name
			}
			users = append(users, p)
		}
		switch c := usage.Coverage; {
		case len(users) > 0:
		case c.Unanswered+c.Denied > 0:
			err = fmt.Errorf("%d processes could not be looked into", c.Unanswered+c.Denied)
		case c.SilentLoops > 0:
			err = fmt.Errorf("the files of %d loop devices could not be asked", c.SilentLoops)
		}
		return users, err
	})
}

// lastingUsers finds the users that a second search finds, too. Many programs have a directory open for a moment, such as kubediag itself when
// it asks a mount whether it is alive, and the kubelet tries again after that.
func lastingUsers(find userSearch) userSearch {
	return func(ctx context.Context, m mountinfo.Mount) ([]leaving.Process, error) {
		users, err := find(ctx, m)
		if len(users) == 0 {
			return users, err
		}
		again, err := find(ctx, m)
		return slices.DeleteFunc(users, func(p leaving.Process) bool {
			return !slices.ContainsFunc(again, func(q leaving.Process) bool { return p == q || p.PID != 0 && p.PID == q.PID })
		}), err
	}
}
