// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestReadInOpensNothingButFiles: to open a socket gives ENXIO, so that EINVAL says that it was not opened.
func TestReadInOpensNothingButFiles(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addProcess(7, "kubelet", nil, "/dir")
	m.addSocket(7, "/s")
	m.writeFile(7, "root/f", "text")
	m.must(os.WriteFile(filepath.Join(m.proc, "outside"), []byte("secret"), 0o600))
	m.addLink(7, "root/out", filepath.Join(m.proc, "outside"))
	m.addLink(7, "root/climb", "../../outside")
	m.addLink(7, "root/to-s", "/s")
	for name, want := range map[string]error{
		"/f": nil, "/dir": sys.EINVAL, "/s": sys.EINVAL, "/to-s": sys.EINVAL, "/out": sys.ENOENT, "/climb": sys.ENOENT, "/gone": sys.ENOENT,
	} {
		text, err := (&candidateProcess{dir: m.procPath(7, "")}).readInRoot(name)
		if !errors.Is(err, want) || (text == "text") != (want == nil) || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %q, %v, want %v", name, text, err, want)
		}
	}
}

// TestReadInCallsNoFunction: a file of /proc is regular, and may be one that waits, or gives what it has only once.
func TestReadInCallsNoFunction(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.must(os.MkdirAll(m.procPath(7, ""), 0o755))
	m.addLink(7, "root", "/")
	if text, err := (&candidateProcess{dir: m.procPath(7, "")}).readInRoot("/proc/version"); !errors.Is(err, sys.EINVAL) {
		t.Errorf("%q, %v, want EINVAL", text, err)
	}
}

// TestFinderRefusesKubeletsOfOtherPods: a process in a container that is called as a kubelet is, and has made the
// directory of our pod.
func TestFinderRefusesKubeletsOfOtherPods(t *testing.T) {
	t.Parallel()
	const dir = DefaultRoot + "/pods/our-pod"
	for name, fake := range map[string]func(m fakeProc){
		"a file of its own":  func(m fakeProc) { m.writeFile(6, "root"+dir+"/etc-hosts", "") },
		"no file":            func(fakeProc) {},
		"a link to our file": func(m fakeProc) { m.addLink(6, "root"+dir+"/etc-hosts", m.hostsPath()) },
		"a link upwards":     func(m fakeProc) { m.addLink(6, "root"+dir+"/etc-hosts", strings.Repeat("../", 9)+m.hostsPath()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.addProcess(7, "kubelet", []string{"kubelet"})
			m.bindHosts(7, dir)
			m.addProcess(6, "kubelet", []string{"kubelet"}, dir)
			fake(m)
			f := &Finder{Proc: m.proc, PodUID: "our-pod", Hosts: m.hostsPath()}
			if n, err := f.Node(t.Context()); err != nil || n.PID != 7 {
				t.Errorf("found %v, %v, want process 7", n, err)
			}
			m.must(os.RemoveAll(m.procPath(7, "")))
			if n, err := f.Node(t.Context()); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "etc-hosts") {
				t.Errorf("without the kubelet: %v, %v, want ErrNotFound", n, err)
			}
		})
	}
	m := newMachine(t)
	m.addProcess(7, "kubelet", []string{"kubelet"})
	m.bindHosts(7, dir)
	n, err := (&Finder{Proc: m.proc, PodUID: "our-pod", Hosts: "/gone/hosts"}).Node(t.Context())
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), `"/gone/hosts"`) {
		t.Errorf("without a file of our own: %v, %v, want ErrNotFound", n, err)
	}
}

func TestFinderForgetsWhatBecameAnother(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(m fakeProc){
		"program":         func(m fakeProc) { m.writeFile(7, "comm", "sh\n") },
		"mount namespace": func(m fakeProc) { m.addLink(7, "ns/mnt", "mnt:[1]") },
		"start":           func(m fakeProc) { m.setStartTicks(7, 101) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot, "/new")
			f := &Finder{Proc: m.proc}
			_, err := f.Node(t.Context())
			m.must(err)
			m.writeFile(7, "cmdline", "kubelet\x00--root-dir=/new\x00")
			if n, err := f.Node(t.Context()); err != nil || n.Root != DefaultRoot {
				t.Errorf("unchanged: %v, %v, want what was found first", n, err)
			}
			change(m)
			if n, err := f.Node(t.Context()); err == nil && n.Root != "/new" {
				t.Errorf("%v is kept", n)
			}
		})
	}
}

// TestCallersLeaveRoomForTheHost: containers full of such processes keep no kubelet of the host from being asked.
func TestCallersLeaveRoomForTheHost(t *testing.T) {
	t.Parallel()
	var c processCalls
	asked := map[*bounded.Calls]int{}
	ended, end := context.WithCancel(t.Context())
	end()
	for i := range 30 {
		for j := range 10 {
			calls, call := c.callsFor(candidateProcess{dir: fmt.Sprintf("/proc/%d", 10*i+j), mounts: fmt.Sprintf("mnt:[%d]", i)}, "mnt:[0]")
			if call.Key != fmt.Sprintf("/proc/%d ", 10*i+j) || call.Owner != fmt.Sprintf("mnt:[%d]", i) {
				t.Errorf("called as %+v", call)
			}
			_, err := bounded.Do(ended, calls, call, func() (int, error) { <-t.Context().Done(); return 0, nil })
			if errors.Is(err, bounded.ErrLeft) {
				asked[calls]++
			}
		}
	}
	if asked[&c.host] != maxStuckPerNamespace || asked[&c.others] != maxStuck {
		t.Errorf("%d of the host wait and %d of others, want %d and %d", asked[&c.host], asked[&c.others], maxStuckPerNamespace, maxStuck)
	}
}

func TestErrorsNameTheFlag(t *testing.T) {
	t.Parallel()
	two := func(m fakeProc) {
		m.addProcess(7, "kubelet", []string{"kubelet", "--root-dir=/k"}, "/k")
		m.addProcess(8, "kubelet", []string{"kubelet", "--root-dir=/k"}, "/k")
	}
	for name, c := range map[string]struct {
		root        string
		pid         int
		setup       func(m fakeProc)
		has, hasNot string
	}{
		"several have the root": {
			root: "/k", setup: two, has: `--kubelet-root="/k" alone is ambiguous: set --kubelet-pid`, hasNot: "set --kubelet-root",
		},
		"not that process": {
			pid: 9, setup: func(m fakeProc) { m.addProcess(9, "init", []string{"init"}) }, has: "--kubelet-pid=9 is no kubelet", hasNot: `pod ""`,
		},
		"no such process": {pid: 99999999, has: "--kubelet-pid=99999999", hasNot: "\n"},
		"no such root":    {root: "/gone", has: `--kubelet-root="/gone" is that of no kubelet`, hasNot: "\n"},
		"unusable": {setup: func(m fakeProc) { m.addProcess(7, "kubelet", []string{"kubelet"}) }, has: "none of these can be used: process 7",
			hasNot: `pod ""`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			if c.setup != nil {
				c.setup(m)
			}
			_, err := (&Finder{Proc: m.proc, Root: c.root, PID: c.pid}).NodeOrLocal(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.has) || strings.Contains(err.Error(), c.hasNot) {
				t.Errorf("error %v, want %q in it and not %q", err, c.has, c.hasNot)
			}
		})
	}
}
