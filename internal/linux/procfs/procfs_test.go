// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kubediag.org/kubediag/internal/linux/bounded"
)

// fakeMachine is one whose processes with the numbers in hung do not answer until release is closed. Ten are in a
// control group.
type fakeMachine struct {
	silentProcesses
	hung    []int
	busy    map[int]bool // those that can run
	release chan struct{}
	asked   sync.Map // by number
}

func newMachine(most int, hung ...int) *fakeMachine {
	m := &fakeMachine{hung: hung, release: make(chan struct{})}
	m.calls, m.groupOf = bounded.Calls{Total: most}, func(pid int) string { return strconv.Itoa(pid / 10) }
	m.runnable = func(pid int) bool { return m.busy[pid] }
	return m
}

// askFirst asks the first processes, and gives those that were silent.
func (m *fakeMachine) askFirst(t *testing.T, first int) (silent []int) {
	t.Helper()
	var pids, order []int
	for pid := range first {
		pids = append(pids, pid)
	}
	askEach(&m.silentProcesses, pids, func(pid int, _ func()) (string, error) {
		m.asked.Store(pid, true)
		if slices.Contains(m.hung, pid) {
			<-m.release
		}
		return fmt.Sprint("of ", pid), nil
	}, func(pid int, value string, err error) {
		order = append(order, pid)
		switch {
		case errors.Is(err, ErrSilent):
			silent = append(silent, pid)
		case err != nil || value != fmt.Sprint("of ", pid):
			t.Errorf("process %d: %q, %v", pid, value, err)
		}
	})
	if !slices.Equal(order, pids) {
		t.Errorf("taken in the order %v", order)
	}
	return silent
}

func TestSilentProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(maxSilentProcesses, 0, 7, 8, 23)
		begin := time.Now()
		want := []int{0, 7, 8, 9, 23} // 8 and 9 are of the control group of the first two
		if silent := m.askFirst(t, 30); !slices.Equal(silent, want) {
			t.Errorf("silent: %v, want %v", silent, want)
		}
		if took := time.Since(begin); took < 3*pollInterval || took > 3*3*pollInterval {
			t.Errorf("took %v", took)
		}
		begin = time.Now()
		if silent := m.askFirst(t, 30); !slices.Equal(silent, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 23}) || time.Since(begin) > pollInterval {
			t.Errorf("silent: %v after %v, want those that are, and their like, at once", silent, time.Since(begin))
		}
		if _, asked := m.asked.Load(8); m.calls.Abandoned() != 3 || asked {
			t.Errorf("%d threads wait, and process 8 was asked: %v", m.calls.Abandoned(), asked)
		}
		close(m.release)
		synctest.Wait()
		if silent := m.askFirst(t, 30); len(silent) > 0 || m.calls.Abandoned() != 0 || len(m.groupByPID) != 0 {
			t.Errorf("after all have answered: %v, %v", silent, m.groupByPID)
		}
	})
}

// TestBusyNode has processes that can run and get no processor. A look waits for them. It gives up those that never get one, as it does with those
// that hang.
func TestBusyNode(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answersAfter time.Duration
		silent       []int
		most         time.Duration
	}{
		"soon":  {5 * pollInterval, nil, 5 * pollInterval},
		"never": {time.Hour, []int{3, 15}, (maxRunnableChecks + 2*3) * pollInterval}, // the second of them has no time more
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(maxSilentProcesses, 3, 15)
				m.busy = map[int]bool{3: true, 15: true}
				begin := time.Now()
				time.AfterFunc(tt.answersAfter, func() { close(m.release) })
				if silent := m.askFirst(t, 20); !slices.Equal(silent, tt.silent) || time.Since(begin) > tt.most {
					t.Errorf("silent: %v after %v", silent, time.Since(begin))
				}
				<-m.release
			})
		})
	}
}

// TestProcessesApart: of the same ten processes, five are silent, and each of the others is asked.
func TestProcessesApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(maxSilentProcesses, 1, 3, 4, 6, 8)
		m.groupOf = processesApart.groupOf
		if silent := m.askFirst(t, 10); !slices.Equal(silent, m.hung) {
			t.Errorf("silent are %v, want %v", silent, m.hung)
		}
		close(m.release)
	})
}

func TestThreadsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(3, 0, 10, 20, 30)
		if silent := m.askFirst(t, 40); !slices.Contains(silent, 25) || m.calls.Abandoned() != 3 {
			t.Errorf("silent: %v, and %d threads wait, want 3 at most", silent, m.calls.Abandoned())
		}
		close(m.release)
		synctest.Wait()
	})
}

// TestSlowProcess: one that takes its time is not given up.
func TestSlowProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		Each([]int{1, 2}, func(pid int, step func()) (int, error) {
			for range 20 * pid {
				time.Sleep(pollInterval / 2)
				step()
			}
			return pid, nil
		}, func(pid, value int, err error) {
			if value != pid || err != nil {
				t.Errorf("process %d: %d, %v", pid, value, err)
			}
		})
	})
}

// TestEachParallel: answers come in order, each once, also where one process does not answer.
func TestEachParallel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var pids, order []int
		for pid := range 5*pidsPerThread + 7 {
			pids = append(pids, 1<<30+pid)
		}
		hung, release := pids[pidsPerThread/2], make(chan struct{})
		EachParallel(pids, func(pid int, _ func()) (int, error) {
			if pid == hung {
				<-release
			}
			return pid, nil
		}, func(pid, value int, err error) {
			order = append(order, pid)
			if silent := errors.Is(err, ErrSilent); silent != (pid == hung) || !silent && (value != pid || err != nil) {
				t.Errorf("process %d: %d, %v", pid, value, err)
			}
		})
		close(release)
		synctest.Wait()
		if !slices.Equal(order, pids) {
			t.Errorf("%d are taken of %d, or not in order", len(order), len(pids))
		}
		EachParallel(nil, func(int, func()) (int, error) { return 0, nil }, func(int, int, error) { t.Error("one of none") })
	})
}

func TestAsk(t *testing.T) {
	t.Parallel()
	if n, err := Ask(os.Getpid(), func() (int, error) { return 7, os.ErrExist }); n != 7 || !errors.Is(err, os.ErrExist) {
		t.Errorf("%d, %v, want what the call returns", n, err)
	}
	if group := controlGroup(os.Getpid()); group == "" || group != controlGroup(os.Getpid()) {
		t.Errorf("control group %q", group)
	}
}
