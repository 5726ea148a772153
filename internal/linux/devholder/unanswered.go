// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"slices"
	"strconv"
	"sync"

	"kubediag.org/kubediag/internal/linux/sys"
)

// process is a process of ours. A number that is used again has another start.
type process struct {
	PID     int
	Started string
}

// started is when a process of ours has; empty if that cannot be read. Another one may not answer.
func started(pid int) string {
	stat, err := sys.ReadProcStat(strconv.Itoa(pid))
	if err != nil {
		return ""
	}
	return stat.Started
}

// unansweredCall is something that a job has given up on, and the process of the job, which may wait for it still.
type unansweredCall struct {
	Key    string
	Waiter process
}

// jobs remembers the processes and namespaces on which jobs of this process have given up: the next job leaves them
// out.
var jobs memory

type memory struct {
	mu    sync.Mutex
	stuck []unansweredCall
}

func (m *memory) note(s unansweredCall) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stuck = append(m.stuck, s)
}

// waitFor lists the keys for which jobs wait.
func (m *memory) waitFor() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stuck = slices.DeleteFunc(m.stuck, func(s unansweredCall) bool { // its process has ended
		return s.Waiter.Started == "" || started(s.Waiter.PID) != s.Waiter.Started
	})
	var keys []string
	for _, s := range m.stuck {
		keys = append(keys, s.Key)
	}
	return keys
}
