// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Process is a process of the node, and how it keeps a pod from going. Without a PID it is something of the kernel's, such as a loop device.
type Process struct {
	PID     int    `json:"pid,omitempty"`
	Command string `json:"command,omitempty"`
	// Uses is the way in which it uses a mount, Path the file, directory or device. A bundle has no names of files.
	Uses string `json:"uses,omitempty"`
	Path string `json:"-"`
	// Waits is where it waits in the kernel.
	Waits string `json:"waits,omitempty"`
	// Container is the name of the container that it is in, or the ID if that is all that is known; empty: it is in none. Pod is the
	// container's pod; empty: it is the pod that is being deleted, or not known.
	Container string `json:"container,omitempty"`
	Pod       string `json:"pod,omitempty"`
}

func (p Process) held() *fault.Process {
	if p.PID == 0 {
		return nil
	}
	return &fault.Process{PID: p.PID, Command: p.Command}
}

// String is the process for people.
func (p Process) String() string {
	if p.PID == 0 {
		return p.Uses
	}
	text := p.held().String()
	if p.Command != "" {
		text = "process " + text
	}
	if p.Container != "" {
		text += fmt.Sprintf(" of container %q", p.Container)
	}
	if p.Pod != "" {
		text += " of pod " + p.Pod
	}
	if p.Waits != "" {
		return text + " was killed and waits in the kernel at " + p.Waits
	}
	if text += " has " + p.Uses; p.Path != "" {
		text += fmt.Sprintf(": %q", p.Path)
	}
	return text
}

// maxUsers bounds how many processes are named.
const maxUsers = 5

// killedAndWaiting lists the processes in control groups of a pod that were killed and cannot end: a thread of theirs waits in the kernel,
// with a SIGKILL that it has not taken.
func killedAndWaiting(podUID string) (all []Process, err error) {
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	procfs.Each(pids, func(pid int, step func()) (Process, error) {
		p := Process{PID: pid}
		dir := strconv.Itoa(pid)
		group, err := sys.ReadProc(dir+"/cgroup", nil)
		if err != nil || !cri.NamesPod(string(group), podUID) {
			return p, err
		}
		tids, err := sys.ProcNumbers(dir + "/task")
		for _, tid := range tids {
			step()
			task := fmt.Sprintf("%s/task/%d", dir, tid)
			status, err := sys.ReadProc(task+"/status", nil)
			if err != nil || !killedInKernel.Match(status) {
				continue
			}
			where, _ := sys.ReadProc(task+"/wchan", nil) // some kernels have none
			stack, _ := sys.ReadProc(task+"/stack", nil) // only with the right to read it
			calls := strings.Join(strings.Fields(string(stack)), " ")
			p.Waits = strings.Trim(strings.Trim(string(where), "0\n")+": "+calls[:min(len(calls), maxStack)], ": ")
			if p.Waits == "" {
				p.Waits = "a place that the kernel does not show"
			}
			command, _ := sys.ReadProc(strconv.Itoa(p.PID)+"/comm", nil) // empty: it has ended
			p.Command = strings.TrimSpace(string(command))
			if ids := cri.ContainerIDs(string(group)); len(ids) > 0 {
				p.Container = ids[0]
			}
			break
		}
		return p, err
	}, func(_ int, p Process, err error) {
		if err == nil && p.Waits != "" && len(all) < maxUsers {
			all = append(all, p)
		}
	})
	return all, nil
}

// maxStack bounds the text of a stack in the kernel, in bytes.
const maxStack = 400

// killedInKernel is the status in /proc of a thread that waits in the kernel and has not taken a SIGKILL. The number of that signal is 9: the lowest bit
// of the third digit from the end, in the signals that wait for the thread, or for its process.
var killedInKernel = regexp.MustCompile(`(?s)\nState:\tD.*\n(?:SigPnd|ShdPnd):\t[0-9a-f]*[13579bdf][0-9a-f]{2}\n`)
