// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/freeport"
	"kubediag.org/kubediag/test/program"
)

// kept are the capabilities of the agent, by the numbers that the kernel has for them: dac_override, dac_read_search, fowner,
// net_bind_service, sys_chroot, sys_ptrace, sys_admin, mknod, syslog.
const kept = 1<<1 | 1<<2 | 1<<3 | 1<<10 | 1<<18 | 1<<19 | 1<<21 | 1<<27 | 1<<34

// sets are the lines of /proc/PID/status about capabilities.
var sets = []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}

// TestAgentDropsPrivileges starts the program and reads the privileges of each of its threads. With scripts it keeps those
// of root.
func TestAgentDropsPrivileges(t *testing.T) {
	own := status(t, "/proc/self/status")
	if number(t, own, "CapBnd")&^kept == 0 {
		t.Fatalf("the test has nothing that the agent could drop: %s", own["CapBnd"])
	}
	agent := program.Build(t, "cmd/agent")
	for name, scripts := range map[string]bool{"without scripts": false, "with scripts": true} {
		t.Run(name, func(t *testing.T) {
			threads := start(t, agent, fmt.Sprintf("--enable-scripts=%v", scripts))
			if len(threads) < 2 {
				t.Fatalf("%d threads", len(threads))
			}
			for _, file := range threads {
				check(t, file, own, scripts)
			}
		})
	}
}

// check compares the privileges of a thread with those of the test, which started it.
func check(t *testing.T, file string, own map[string]string, scripts bool) {
	t.Helper()
	got := status(t, file)
	mask, noNewPrivs := uint64(kept), "1"
	if scripts {
		mask, noNewPrivs = ^uint64(0), own["NoNewPrivs"]
	}
	for _, set := range sets {
		if has, want := number(t, got, set), number(t, own, set)&mask; has != want {
			t.Errorf("%s: %s is %x, want %x", file, set, has, want)
		}
	}
	if got["NoNewPrivs"] != noNewPrivs {
		t.Errorf("%s: NoNewPrivs is %s, want %s", file, got["NoNewPrivs"], noNewPrivs)
	}
}

// start starts the agent under an API server that knows nothing, waits until it serves, and gives the status files of its
// threads. The agent ends with the test.
func start(t *testing.T, agent string, more ...string) []string {
	t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": %q}}], "contexts": [{"name": "x", "context": {"cluster": "x"}}]}`, server.URL)
	must(t, os.WriteFile(kubeconfig, []byte(text), 0o600))
	ports, err := freeport.Find(net.IPv4(127, 0, 0, 1), 1)
	must(t, err)
	cmd := exec.Command(agent, append(more, "--node-name=n", "--namespace=kubediag", "--data-root="+filepath.Join(dir, "data"),
		"--kubelet-root="+dir, "--kubelet-pid="+strconv.Itoa(os.Getpid()), "--sentinel-mode=Off", "--metrics-bind-address=0",
		"--health-probe-bind-address="+ports[0].String())...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	var said strings.Builder
	cmd.Stderr = &said
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // else it has ended
		<-ended                //nolint:errcheck // by that signal, or because it failed, which the test has seen
		if t.Failed() {
			t.Logf("the agent said:\n%s", said.String())
		}
	})
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); ; {
		if answer, err := http.Get("http://" + ports[0].String() + "/healthz"); err == nil {
			answer.Body.Close()
			break
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the agent ended: %v\n%s", err, said.String())
		case <-deadline:
			t.Fatal("the agent does not serve")
		case <-tick.C:
		}
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", cmd.Process.Pid))
	must(t, err)
	return threads
}

// status reads a file such as /proc/PID/status, by the names of its lines.
func status(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	lines := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		lines[name] = strings.TrimSpace(value)
	}
	return lines
}

func number(t *testing.T, lines map[string]string, name string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(lines[name], 16, 64)
	must(t, err)
	return n
}

var must = kerneltest.Must
