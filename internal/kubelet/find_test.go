// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeProc is a made-up /proc.
type fakeProc struct {
	t    *testing.T
	proc string
}

func newMachine(t *testing.T) fakeProc {
	t.Helper()
	// A unix socket's path must be short, and that of t.TempDir has the test's name in it.
	dir, err := os.MkdirTemp("", "proc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return fakeProc{t: t, proc: dir}
}

// addProcess adds a process and makes the directories dirs in its root directory.
func (m fakeProc) addProcess(pid int, comm string, args []string, dirs ...string) {
	m.t.Helper()
	m.writeFile(pid, "comm", comm+"\n")
	m.writeFile(pid, "cmdline", strings.Join(args, "\x00")+"\x00")
	m.setStartTicks(pid, 100)
	m.addLink(pid, "ns/mnt", fmt.Sprintf("mnt:[%d]", 4026531000+pid))
	for _, dir := range append(dirs, "/") {
		m.must(os.MkdirAll(m.procPath(pid, "root"+dir), 0o755))
	}
}

func (m fakeProc) setStartTicks(pid, ticks int) {
	m.writeFile(pid, "stat", fmt.Sprintf("%d (a ) b) S%s %d%s", pid, strings.Repeat(" 0", 18), ticks, strings.Repeat(" 0", 30)))
}

func (m fakeProc) procPath(pid int, name string) string {
	return filepath.Join(m.proc, fmt.Sprint(pid), name)
}

func (m fakeProc) writeFile(pid int, name, content string) {
	m.t.Helper()
	m.must(os.MkdirAll(filepath.Dir(m.procPath(pid, name)), 0o755))
	m.must(os.WriteFile(m.procPath(pid, name), []byte(content), 0o644))
}

func (m fakeProc) addLink(pid int, name, target string) {
	m.t.Helper()
	m.must(os.MkdirAll(filepath.Dir(m.procPath(pid, name)), 0o755))
	os.Remove(m.procPath(pid, name))
	m.must(os.Symlink(target, m.procPath(pid, name)))
}

func (m fakeProc) addSocket(pid int, name string) {
	m.t.Helper()
	m.must(os.MkdirAll(filepath.Dir(m.procPath(pid, "root"+name)), 0o755))
	l, err := net.Listen("unix", m.procPath(pid, "root"+name))
	m.must(err)
	m.t.Cleanup(func() { l.Close() })
}

// bindHosts has the hosts file of our container be that of the pod whose directory dir is in the root directory of the
// process.
func (m fakeProc) bindHosts(pid int, dir string) {
	m.t.Helper()
	m.must(os.MkdirAll(m.procPath(pid, "root"+dir), 0o755))
	if err := os.WriteFile(m.hostsPath(), nil, 0o644); err != nil {
		m.t.Fatal(err)
	}
	m.must(os.Link(m.hostsPath(), m.procPath(pid, "root"+dir+"/etc-hosts")))
}

func (m fakeProc) hostsPath() string { return filepath.Join(m.proc, "hosts") }

func (m fakeProc) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func TestFinderDistinguishesKubelets(t *testing.T) {
	t.Parallel()
	const ours = "/pods/our-pod"
	for name, c := range map[string]struct {
		by    func(f *Finder)
		setup func(m fakeProc)
		pid   int
		root  string
		errs  []string // parts of the error where there is no answer
	}{
		"the only one": {
			setup: func(m fakeProc) { m.addProcess(7, "kubelet", []string{"/usr/bin/kubelet"}, DefaultRoot) },
			pid:   7, root: DefaultRoot,
		},
		"others are called alike": {
			setup: func(m fakeProc) {
				for i, name := range []string{"kubelet-csr-app", "kubelet.test", "kubelet_exporte", "kubelets", "kubelet-"} { // 15 characters
					m.addProcess(10+i, name, []string{name}, DefaultRoot)
				}
				m.addProcess(7, "kubelet-v1.36.3", []string{"/opt/kubelet-v1.36.3"}, DefaultRoot)
			},
			pid: 7, root: DefaultRoot,
		},
		"root from its arguments": {
			setup: func(m fakeProc) {
				m.addProcess(7, "kubelet-1.18.19", []string{"kubelet", "--root-dir", "/a", "--root-dir=/data/kubelet"}, "/data/kubelet")
			},
			pid: 7, root: "/data/kubelet",
		},
		"several, told apart by our pod": {
			by: func(f *Finder) { f.PodUID = "our-pod" },
			setup: func(m fakeProc) {
				m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot+"/pods/other")
				m.addProcess(8, "kubelet", []string{"kubelet", "--root-dir=/k"})
				m.bindHosts(8, "/k"+ours)
				m.addProcess(9, "kubelet", []string{"kubelet"}, DefaultRoot)
			},
			pid: 8, root: "/k",
		},
		"several, and no pod to choose by": {
			setup: func(m fakeProc) {
				m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot)
				m.addProcess(8, "kubelet", []string{"kubelet", "--root-dir=/k"}, "/k")
			},
			errs: []string{"process 7", "process 8", `"/k"`, "--kubelet-root", "--kubelet-pid"},
		},
		"several, named by number": {
			by: func(f *Finder) { f.PID = 8 },
			setup: func(m fakeProc) {
				m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot)
				m.addProcess(8, "kubelet", []string{"kubelet", "--root-dir=/k"}, "/k")
			},
			pid: 8, root: "/k",
		},
		"one kubelet in two processes": {
			setup: func(m fakeProc) {
				for _, pid := range []int{7, 8} {
					m.addProcess(pid, "kubelet", []string{"kubelet"}, DefaultRoot)
					m.addLink(pid, "ns/mnt", "mnt:[1]")
				}
			},
			pid: 7, root: DefaultRoot,
		},
		"none of them has our pod": {
			by:    func(f *Finder) { f.PodUID = "our-pod" },
			setup: func(m fakeProc) { m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot) },
			errs:  []string{"process 7", "no etc-hosts of our pod", `"our-pod"`, "--kubelet-root"},
		},
		"none at all": {
			setup: func(m fakeProc) {
				m.addProcess(7, "sleep", []string{"kubelet"}, DefaultRoot)
				m.addProcess(8, "hyperkube", []string{"hyperkube", "apiserver"}, DefaultRoot)
				m.addProcess(9, "k3s", []string{"k3s", "kubectl"}, DefaultRoot)
			},
			errs: []string{"no process is a kubelet", "--kubelet-pid"},
		},
		"root is missing": {
			setup: func(m fakeProc) { m.addProcess(7, "kubelet", []string{"kubelet", "--root-dir=/gone"}) },
			errs:  []string{"process 7", "/gone", "no such file"},
		},
		"root is relative": {
			setup: func(m fakeProc) { m.addProcess(7, "kubelet", []string{"kubelet", "--root-dir=k"}, "/k") },
			errs:  []string{"process 7", "not an absolute path"},
		},
		"root set by hand": {
			by:    func(f *Finder) { f.Root = "/elsewhere" },
			setup: func(m fakeProc) { m.addProcess(7, "k3s-server", []string{"/bin/k3s server"}, "/elsewhere") },
			pid:   7, root: "/elsewhere",
		},
		"behind links, as the process sees them": {
			by: func(f *Finder) { f.PodUID = "our-pod" },
			setup: func(m fakeProc) {
				m.addProcess(7, "kubelet", []string{"kubelet"}, "/disk/k", "/var/lib")
				m.bindHosts(7, "/pods-disk/our-pod")
				m.addLink(7, "root"+DefaultRoot, "../../disk/k")
				m.addLink(7, "root/disk/k/pods", "/pods-disk")
			},
			pid: 7, root: "/disk/k",
		},
		"changed root directory": {
			setup: func(m fakeProc) {
				m.addProcess(7, "kubelet", []string{"kubelet"})
				m.must(os.RemoveAll(m.procPath(7, "root")))
				m.addLink(7, "root", "/rootfs")
			},
			errs: []string{"process 7", `"/rootfs"`},
		},
		"k3s": {
			setup: func(m fakeProc) {
				m.addProcess(7, "k3s-agent", []string{"k3s", "agent", "--kubelet-arg=root-dir=/k"}, "/k")
			},
			pid: 7, root: "/k",
		},
		"k3s, argument apart": {
			setup: func(m fakeProc) {
				m.addProcess(7, "k3s", []string{"k3s", "server", "--kubelet-arg", "root-dir=/k"}, "/k")
			},
			pid: 7, root: "/k",
		},
		"hyperkube": {
			setup: func(m fakeProc) {
				m.addProcess(7, "hyperkube", []string{"/hyperkube", "kubelet", "--root-dir=/k"}, "/k")
			},
			pid: 7, root: "/k",
		},
		"MicroK8s": {
			setup: func(m fakeProc) {
				m.addProcess(7, "kubelite", []string{"kubelite", "--kubelet-args-file=/args"}, "/common/kubelet")
				m.writeFile(7, "root/args", "--x=1\n--root-dir=${SNAP_COMMON}/kubelet\n")
				m.writeFile(7, "environ", "A=b\x00SNAP_COMMON=/common\x00")
			},
			pid: 7, root: "/common/kubelet",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			c.setup(m)
			f := &Finder{Proc: m.proc, Hosts: m.hostsPath()}
			if c.by != nil {
				c.by(f)
			}
			n, err := f.Node(t.Context())
			if err != nil {
				checkError(t, err, c.errs)
				return
			}
			if n.PID != c.pid || n.Root != c.root || len(c.errs) > 0 {
				t.Errorf("found %v, want %d, %q, error with %q", n, c.pid, c.root, c.errs)
			}
		})
	}
}

func checkError(t *testing.T, err error, parts []string) {
	t.Helper()
	if len(parts) == 0 {
		t.Fatal(err)
	}
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("error %v is not ErrNotFound", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not speak of %q", err, part)
		}
	}
}

func TestFinderSearchesAgainWhenTheKubeletRestarts(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot)
	f := Finder{Proc: m.proc}
	first, err := f.Node(t.Context())
	m.must(err)
	if again, err := f.Node(t.Context()); err != nil || again != first {
		t.Errorf("second look gave %v, %v, want what was found first", again, err)
	}
	m.addProcess(7, "kubelet", []string{"kubelet", "--root-dir=/new"}, "/new")
	m.setStartTicks(7, 200) // the number was given to another process
	second, err := f.Node(t.Context())
	m.must(err)
	if second.Root != "/new" {
		t.Errorf("after the restart the root is %q, want /new", second.Root)
	}
	m.must(os.RemoveAll(m.procPath(7, "")))
	if gone, err := f.Node(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("without a kubelet: %v, %v, want ErrNotFound", gone, err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	m.addProcess(8, "kubelet", []string{"kubelet"}, DefaultRoot)
	if _, err := f.Node(stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancellation: %v, want context.Canceled", err)
	}
}

func TestRuntimeSocket(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args  []string
		setup func(m fakeProc)
		want  string // below the process' root
		err   string
	}{
		"argument":              {args: []string{"--container-runtime-endpoint=unix:///run/x.sock"}, want: "/run/x.sock"},
		"argument, bare path":   {args: []string{"--container-runtime-endpoint", "/run/x.sock"}, want: "/run/x.sock"},
		"argument, through var": {args: []string{"--container-runtime-endpoint=/var/run/x.sock"}, want: "/run/x.sock"},
		"configuration": {
			args: []string{"--config=/etc/kubelet.yaml"},
			setup: func(m fakeProc) {
				m.writeFile(7, "root/etc/kubelet.yaml", "containerRuntimeEndpoint: unix:///run/x.sock\n")
			},
			want: "/run/x.sock",
		},
		"configuration says nothing": {
			args: []string{"--config=/etc/kubelet.yaml"},
			setup: func(m fakeProc) {
				m.writeFile(7, "root/etc/kubelet.yaml", "kind: KubeletConfiguration\n")
				m.addSocket(7, "/run/crio/crio.sock")
			},
			want: "/run/crio/crio.sock",
		},
		"dockershim before Docker's containerd": {
			setup: func(m fakeProc) {
				m.addSocket(7, "/run/containerd/containerd.sock")
				m.addSocket(7, "/run/dockershim.sock")
			},
			want: "/run/dockershim.sock",
		},
		"none":             {err: "none of"},
		"not a socket":     {args: []string{"--container-runtime-endpoint=/etc"}, err: "not a socket"},
		"not unix":         {args: []string{"--container-runtime-endpoint=tcp://localhost:1"}, err: "tcp://localhost:1"},
		"no configuration": {args: []string{"--config=/gone"}, err: "/gone"},
		"bad configuration": {
			args:  []string{"--config=/etc/kubelet.yaml"},
			setup: func(m fakeProc) { m.writeFile(7, "root/etc/kubelet.yaml", "\tno yaml") },
			err:   "/etc/kubelet.yaml",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.addProcess(7, "kubelet", append([]string{"kubelet"}, c.args...), DefaultRoot, "/etc", "/run")
			m.addLink(7, "root/var/run", "/run")
			m.addSocket(7, "/run/x.sock")
			if c.setup != nil {
				c.setup(m)
			}
			n, err := (&Finder{Proc: m.proc}).Node(t.Context())
			m.must(err)
			got, err := n.RuntimeSocket(t.Context())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v does not speak of %q", err, c.err)
				}
				return
			}
			if want := m.procPath(7, "root"+c.want); err != nil || got != want {
				t.Errorf("socket = %q, %v, want %q", got, err, want)
			}
		})
	}
	if _, err := node(DefaultRoot).RuntimeSocket(t.Context()); !errors.Is(err, ErrNoRuntime) {
		t.Errorf("without a process: %v, want ErrNoRuntime", err)
	}
}

func TestResolveInStaysInside(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addProcess(7, "kubelet", nil, "/a/b", "/c")
	m.addLink(7, "root/up", "../../../../../c")
	m.addLink(7, "root/a/abs", "/c")
	m.addLink(7, "root/loop", "loop")
	for name, want := range map[string]string{
		"/a/b": "/a/b", "/a/../c/.": "/c", "/up": "/c", "/a/abs": "/c", "/../../c": "/c", "//a//b/": "/a/b", "/": "/",
		"/loop": "", "/gone": "", "/c/gone": "",
	} {
		got, err := resolveIn(m.procPath(7, "root"), name, nil)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q resolves to %q, %v, want %q", name, got, err, want)
		}
	}
}
