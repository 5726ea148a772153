// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	podCgroupPath = "7b6b3f0a-52f5-4d3b-9d0f-0a4b7f5b1c22"
	ourPod        = "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10"
	podsCgroup    = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod"
	service       = "0::/system.slice/kubelet.service\n"
	ownGroup      = "0::" + podsCgroup + "5f0e5d0c_3a7c_4a53_9f0e_1b2f0f6f7a10.slice/cri-containerd-0.scope\n"
)

func TestInPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		group, own string
		want       bool
	}{
		"a service":                   {service, ownGroup, false},
		"a container of docker's":     {"0::/docker/0123/kubelet.slice/kubelet.service\n", "", false},
		"systemd":                     {"0::" + podsCgroup + strings.ReplaceAll(podCgroupPath, "-", "_") + ".slice/cri-containerd-1.scope\n", ownGroup, true},
		"cgroupfs":                    {"0::/kubepods/burstable/pod" + podCgroupPath + "/1\n", "", true},
		"guaranteed":                  {"0::/kubepods/pod" + podCgroupPath + "/1\n", "", true},
		"a static pod":                {"0::/kubepods/pod" + strings.ReplaceAll(podCgroupPath, "-", "") + "/1\n", "", true},
		"kind":                        {"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + strings.ReplaceAll(podCgroupPath, "-", "_") + ".slice/x\n", "", true},
		"below, by a name of its own": {"0::/kubepods/pod" + podCgroupPath + "/1/kubelet.service\n", ownGroup, true},
		"seen from another pod":       {"0::/../../kubepods-besteffort-pod" + strings.ReplaceAll(podCgroupPath, "-", "_") + ".slice/cri-1.scope\n", "0::/\n", true},
		"the node runs in our pod":    {"0::/kubepods/pod" + ourPod + "/1/kubelet.service\n", "0::/kubepods/pod" + ourPod + "/1/kubepods/pod" + podCgroupPath + "/2\n", false},
		"a pod of a node in a pod":    {"0::/kubepods/pod" + ourPod + "/1/kubepods/pod" + podCgroupPath + "/3\n", "0::/kubepods/pod" + ourPod + "/1/x\n", true},
		"one of several hierarchies":  {"12:memory:/\n3:pids:/kubepods/pod" + podCgroupPath + "/1\n", "3:pids:/\n", true},
		"a name that is like one":     {"0::/system.slice/tripod-" + podCgroupPath + "x\n", "", false},
		"ended":                       {"", ownGroup, false},
	} {
		dir := t.TempDir()
		for process, text := range map[string]string{"6": c.group, "self": c.own} {
			err := errors.Join(os.Mkdir(dir+"/"+process, 0o755), os.WriteFile(dir+"/"+process+"/cgroup", []byte(text), 0o600))
			if err != nil {
				t.Fatal(err)
			}
		}
		p := candidateProcess{pid: 6, dir: dir + "/6"}
		if why := p.foreignReason(dir + "/self"); (why == "runs in a pod") != c.want {
			t.Errorf("%s: %q, want %v", name, why, c.want)
		}
	}
}

// TestFinderSkipsForeignProcesses: a process that is called as the kubelet is, and sees what the kubelet has, is none
// if it runs in a pod or in a user namespace.
func TestFinderSkipsForeignProcesses(t *testing.T) {
	t.Parallel()
	const dir = DefaultRoot + "/pods/" + ourPod
	for name, c := range map[string]struct {
		set  func(m fakeProc)
		want string // in the error where it alone is left
	}{
		"in a pod": {func(m fakeProc) {
			m.writeFile(6, "cgroup", "0::"+podsCgroup+strings.ReplaceAll(podCgroupPath, "-", "_")+".slice/cri-containerd-1.scope\n")
		}, "process 6 (kubelet), which runs in a pod"},
		"in another user namespace": {func(m fakeProc) { m.addLink(6, "ns/user", "user:[4026532000]") }, "process 6 (kubelet), which is in another user namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			for _, pid := range []int{6, 7} {
				m.addProcess(pid, "kubelet", []string{"kubelet"})
				m.writeFile(pid, "cgroup", service)
				m.addLink(pid, "ns/user", "user:[4026531837]")
			}
			m.bindHosts(7, dir)
			m.must(os.MkdirAll(m.procPath(6, "root"+dir), 0o755))
			m.must(os.Link(m.hostsPath(), m.procPath(6, "root"+dir+"/etc-hosts")))
			m.must(os.MkdirAll(m.proc+"/self/ns", 0o755))
			m.must(os.Symlink("user:[4026531837]", m.proc+"/self/ns/user"))
			m.must(os.WriteFile(m.proc+"/self/cgroup", []byte(ownGroup), 0o644))
			both := &Finder{Proc: m.proc, PodUID: ourPod, Hosts: m.hostsPath()}
			if n, err := both.Node(t.Context()); err == nil {
				t.Errorf("found %v among two that are alike: the test would prove nothing", n)
			}
			c.set(m)
			for _, f := range []*Finder{{Proc: m.proc}, {Proc: m.proc, PodUID: ourPod, Hosts: m.hostsPath()}} {
				if n, err := f.Node(t.Context()); err != nil || n.PID != 7 {
					t.Errorf("found %v, %v, want process 7", n, err)
				}
			}
			m.must(os.RemoveAll(m.procPath(7, "")))
			if n, err := (&Finder{Proc: m.proc}).Node(t.Context()); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("without the kubelet: %v, %v, want %q", n, err, c.want)
			}
		})
	}
}

func TestFinderPrefersTheHost(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addProcess(1, "init", []string{"init"})
	m.addProcess(6, "kubelet", []string{"kubelet"}, DefaultRoot)
	m.addProcess(7, "kubelet", []string{"kubelet", "--root-dir=/k"}, "/k", DefaultRoot)
	m.addLink(7, "ns/mnt", "mnt:[4026531001]") // that of process 1
	if n, err := (&Finder{Proc: m.proc}).Node(t.Context()); err != nil || n.PID != 7 || n.Root != "/k" {
		t.Errorf("found %v, %v, want process 7", n, err)
	}
	if c, err := (&Finder{Proc: m.proc, Root: DefaultRoot}).NodeOrLocal(t.Context()); err != nil || c.Node.PID != 6 {
		t.Errorf("with a root directory: %v, %v, want process 6", c.Node, err)
	}
}

// TestOneLimitForAll: processes that answer just before they would be given up.
func TestOneLimitForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testOneLimitForAll)
}

func testOneLimitForAll(t *testing.T) {
	var processes []candidateProcess
	for i := range 10 {
		processes = append(processes, candidateProcess{pid: i, dir: "/none/" + string(rune('a'+i)), mounts: "mnt:[2]"})
	}
	processes = append(processes, candidateProcess{pid: 99, dir: "/none/host", mounts: "mnt:[1]"})
	began := time.Now()
	found, silent, err := askEach(t.Context(), &processCalls{}, processes, func(p candidateProcess) int {
		if p.pid != 99 {
			<-time.After(SearchTimeout * 19 / 20)
		}
		return p.pid
	})
	if took := time.Since(began); took > 3*SearchTimeout {
		t.Errorf("it took %s", took)
	}
	if err != nil || len(found) == 0 || found[len(found)-1] != 99 || len(silent) < 8 {
		t.Errorf("%v answered, %d did not, %v; want the one of another mount namespace among the first", found, len(silent), err)
	}
	time.Sleep(SearchTimeout) // in which all have answered
}

// TestFinderLetsOthersGo: who waits for a search that another has begun can give up.
func TestFinderLetsOthersGo(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot)
	m.must(os.Remove(m.procPath(7, "cmdline")))
	if out, err := exec.Command("mkfifo", m.procPath(7, "cmdline")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f := &Finder{Proc: m.proc}
	first := make(chan error)
	go func() {
		_, err := f.Node(t.Context())
		first <- err
	}()
	for waits := false; !waits; {
		f.mu.Lock()
		waits = f.search != nil
		f.mu.Unlock()
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Node(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	select {
	case err := <-first:
		t.Errorf("the first is back already: %v: the test would prove nothing", err)
	default:
	}
	if err := <-first; !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "process 7 (kubelet) was waited in vain") {
		t.Errorf("error %v, want that it was waited for in vain", err)
	}
	m.must(os.WriteFile(m.procPath(7, "cmdline"), []byte("kubelet\x00"), 0)) // lets the thread go
}
