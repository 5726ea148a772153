// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fakenode

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/test/freeport"
)

// Bounds of what would hang: nothing needs that long, but machines may be busy.
const (
	maxWait       = 5 * time.Minute
	healthTimeout = 30 * time.Second
)

// Agent is an agent, or a manager, whose metrics and health can be read.
type Agent struct {
	*exec.Cmd
	metrics, health string // URLs
}

// apart has a program run where the agent runs in a cluster: in a mount namespace of its own, in which the kubelet's
// directories are not.
const apart = `umount -l "$0" && exec "$@"`

// LaunchAgent starts the agent that was built as Launch does, with a mode of the sentinel, in a mount namespace of its
// own, as in a pod, and with metrics on a loopback address.
func (s *Node) LaunchAgent(t testing.TB, mode string) *Agent {
	t.Helper()
	return s.launchAgent(t, mode, "unshare", "--mount", "--propagation=private", "/bin/sh", "-c", apart, s.root)
}

// LaunchAgentBeside is LaunchAgent in the kubelet's mount namespace. As that is not the one of process 1 here, it is only so
// that the kernel can be asked whether anything was mounted, as on a node.
func (s *Node) LaunchAgentBeside(t testing.TB, mode string) *Agent {
	t.Helper()
	return s.launchAgent(t, mode)
}

func (s *Node) launchAgent(t testing.TB, mode string, through ...string) *Agent {
	t.Helper()
	return s.launchSeen(t, "agent", through, "--sentinel-mode="+mode)
}

// LaunchManager starts the manager that was built as LaunchWith does, with metrics on a loopback address.
func (s *Node) LaunchManager(t testing.TB, flags ...string) *Agent {
	t.Helper()
	return s.launchSeen(t, "manager", nil, flags...)
}

// launchSeen starts a program with metrics and health on loopback addresses.
func (s *Node) launchSeen(t testing.TB, name string, through []string, flags ...string) *Agent {
	t.Helper()
	free, err := freeport.Find(net.IPv4(127, 0, 0, 1), 2)
	must(t, err)
	metrics, health := free[0].String(), free[1].String()
	return &Agent{metrics: "http://" + metrics + "/metrics", health: "http://" + health + "/healthz", Cmd: s.launch(t, name, through,
		append(flags, "--metrics-bind-address="+metrics, "--health-probe-bind-address="+health),
	)}
}

// Address is where the agent serves its metrics, as host and port.
func (a *Agent) Address() string {
	return strings.TrimSuffix(strings.TrimPrefix(a.metrics, "http://"), "/metrics")
}

// Health asks the agent for its health, as the kubelet does, and gives an error where it does not say within a second that
// it is well. The kubelet does not mind until the third in a row: on a busy machine any answer can be late.
func (a *Agent) Health() error {
	response, err := (&http.Client{Timeout: healthTimeout}).Get(a.health)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", a.health, response.Status)
	}
	return nil
}

// Await polls the metrics, by name with labels, every 50 ms until they are as they should be, for maxWait at most.
func (a *Agent) Await(t testing.TB, what string, done func(metrics map[string]float64) bool) {
	t.Helper()
	a.AwaitClosely(t, 50*time.Millisecond, what, done)
}

// AwaitClosely is Await with another pause between two looks.
func (a *Agent) AwaitClosely(t testing.TB, pause time.Duration, what string, done func(metrics map[string]float64) bool) {
	t.Helper()
	var seen map[string]float64
	var err error
	for deadline := time.Now().Add(maxWait); time.Now().Before(deadline); time.Sleep(pause) {
		if seen, err = a.read(); err == nil && done(seen) {
			return
		}
	}
	for name := range seen {
		if !strings.HasPrefix(name, "kubediag_") || strings.Contains(name, "_bucket") {
			delete(seen, name)
		}
	}
	t.Fatalf("waited too long for %s: %v, %v", what, seen, err)
}

// AwaitWatches waits until the agent has an inotify watch on each file of the volumes, for maxWait at most.
func (a *Agent) AwaitWatches(t testing.TB, volumes []*Volume) {
	t.Helper()
	missing := 0
	for deadline := time.Now().Add(maxWait); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		watched := a.watched(t)
		missing = 0
		for _, v := range volumes {
			for _, inode := range v.inodes(t) {
				if !watched[inode] {
					missing++
				}
			}
		}
		if missing == 0 {
			return
		}
	}
	t.Fatalf("waited too long for the agent to watch %d files", missing)
}

// watched returns the inode numbers of all files that the agent has inotify watches on, see proc_pid_fdinfo(5).
func (a *Agent) watched(t testing.TB) map[uint64]bool {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", a.Process.Pid))
	must(t, err)
	found := map[uint64]bool{}
	for _, name := range files {
		text, _ := os.ReadFile(name) // it may be closed by now
		for line := range strings.Lines(string(text)) {
			var watch, inode uint64
			if n, _ := fmt.Sscanf(line, "inotify wd:%x ino:%x", &watch, &inode); n == 2 {
				found[inode] = true
			}
		}
	}
	return found
}

// plain asks for texts that are not compressed, which would take time from the agent.
var plain = &http.Client{Transport: &http.Transport{DisableCompression: true}}

func (a *Agent) read() (map[string]float64, error) {
	response, err := plain.Get(a.metrics)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s says %s", a.metrics, response.Status)
	}
	found := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		i := strings.LastIndexByte(lines.Text(), ' ')
		if value, err := strconv.ParseFloat(lines.Text()[i+1:], 64); err == nil && i > 0 {
			found[lines.Text()[:i]] = value
		}
	}
	return found, lines.Err()
}
