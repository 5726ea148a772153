// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package nfs runs the kernel's NFS server for tests, and mounts what it exports over the loopback interface. It is for tests
// alone, which run as root in a mount namespace of their own. A machine that has no such server, or runs one already, is
// left alone: then tests are skipped.
package nfs

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// Server is the server, with one file system that it exports, and a second one that it exports always.
type Server struct {
	// Dir is the directory that is exported.
	Dir string

	t testing.TB
}

// control is where the kernel's server is steered.
const control = "/proc/fs/nfsd"

// deadline is how long the server's daemons may take to start.
const deadline = time.Minute

// Start starts the server. It ends with the test, with all that Mount has mounted.
func Start(t testing.TB) *Server {
	t.Helper()
	_ = exec.Command("modprobe", "-a", "nfs", "nfsv3", "nfsv4", "nfsd").Run() // it may be part of the kernel
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil || !bytes.Contains(known, []byte("\tnfsd\n")) {
		t.Skip("the kernel lacks an NFS server (CONFIG_NFSD)")
	}
	for _, program := range []string{"rpc.nfsd", "rpc.mountd", "rpcbind", "exportfs", "mount.nfs"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("start NFS server: %v (packages nfs-kernel-server and rpcbind)", err)
		}
	}
	s := &Server{Dir: t.TempDir(), t: t}
	s.prepare()
	if threads, err := os.ReadFile(filepath.Join(control, "threads")); err != nil || strings.TrimSpace(string(threads)) != "0" {
		t.Fatal("start NFS server: the kernel runs one already, which is not this test's")
	}
	// With the default of 90 seconds every test would wait for that long.
	for _, name := range []string{"nfsv4leasetime", "nfsv4gracetime"} {
		kerneltest.Must(s.t, os.WriteFile(filepath.Join(control, name), []byte("10"), 0))
	}
	answers := func() bool { return exec.Command("rpcinfo", "-p", "127.0.0.1").Run() == nil }
	if !answers() {
		t.Cleanup(func() { _ = os.Remove("/run/rpcbind.sock") })
		s.daemon("rpcbind", "-w", "-f")
		s.await("rpcbind", answers)
	}
	t.Cleanup(func() { _ = exec.Command("rpc.nfsd", "0").Run() })
	s.Resume()
	s.daemon("rpc.mountd", "-F")
	s.await("rpc.mountd", func() bool { return exec.Command("rpcinfo", "-t", "127.0.0.1", "mountd", "3").Run() == nil })
	other := t.TempDir()
	s.tmpfs(other)
	s.run("exportfs", "-o", "rw,insecure,no_subtree_check,fsid=2", "*:"+other)
	s.tmpfs(s.Dir)
	s.Export()
	return s
}

// prepare has files of the server that a package would have made on a machine of its own, in this mount namespace alone.
func (s *Server) prepare() {
	s.t.Helper()
	kerneltest.Must(s.t, errors.Join(os.MkdirAll("/var/lib/nfs", 0o755), os.MkdirAll("/run/rpcbind", 0o755)))
	if f, err := os.OpenFile("/etc/exports", os.O_CREATE|os.O_EXCL, 0o644); err == nil {
		f.Close()
		s.t.Cleanup(func() { _ = os.Remove("/etc/exports") })
	}
	s.tmpfs("/var/lib/nfs")
	for _, dir := range []string{"sm", "sm.bak", "v4recovery", "rpc_pipefs"} {
		kerneltest.Must(s.t, os.Mkdir(filepath.Join("/var/lib/nfs", dir), 0o755))
	}
	for _, file := range []string{"etab", "rmtab", "xtab", "state"} {
		kerneltest.Must(s.t, os.WriteFile(filepath.Join("/var/lib/nfs", file), nil, 0o644))
	}
	users, err := os.ReadFile("/etc/passwd")
	kerneltest.Must(s.t, err)
	if !bytes.Contains(users, []byte("\n_rpc:")) {
		own := filepath.Join(s.t.TempDir(), "passwd")
		kerneltest.Must(s.t, os.WriteFile(own, append(users, "_rpc:x:65533:65534::/run/rpcbind:/usr/sbin/nologin\n"...), 0o644))
		s.run("mount", "--bind", own, "/etc/passwd")
		s.t.Cleanup(func() { _ = exec.Command("umount", "/etc/passwd").Run() })
	}
	if _, err := os.Stat(filepath.Join(control, "threads")); err != nil {
		s.run("mount", "-t", "nfsd", "nfsd", control)
		s.t.Cleanup(func() { _ = exec.Command("umount", control).Run() })
	}
}

func (s *Server) tmpfs(dir string) {
	s.t.Helper()
	s.run("mount", "-t", "tmpfs", "tmpfs", dir)
	s.t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
}

// Export exports the directory; Unexport takes that back, and with all set every other export as well: then the server knows
// no client any more.
func (s *Server) Export() {
	s.t.Helper()
	s.run("exportfs", "-o", "rw,insecure,no_root_squash,no_subtree_check,fsid=1", "*:"+s.Dir)
}

// Unexport is the contrary of Export.
func (s *Server) Unexport(all bool) {
	s.t.Helper()
	if all {
		s.run("exportfs", "-ua")
	} else {
		s.run("exportfs", "-u", "*:"+s.Dir)
	}
	s.run("exportfs", "-f")
}

// Stop has the server answer no more, and Resume has it go on.
func (s *Server) Stop() {
	s.t.Helper()
	s.run("rpc.nfsd", "0")
}

// Resume starts the server's threads.
func (s *Server) Resume() {
	s.t.Helper()
	s.run("rpc.nfsd", "4")
}

// Mount mounts a directory below Dir, with options such as "vers=4.2,soft".
func (s *Server) Mount(name, point, options string) {
	s.t.Helper()
	s.run("mount", "-t", "nfs", "-o", options, "127.0.0.1:"+filepath.Join(s.Dir, name), point)
	s.t.Cleanup(func() {
		for exec.Command("umount", "-f", "-l", point).Run() == nil {
		}
	})
}

// Replace does on the server what makes every handle of a directory below Dir stale: it is removed, and another is made that
// holds a file "data" with that content.
func (s *Server) Replace(name, content string) {
	s.t.Helper()
	dir := filepath.Join(s.Dir, name)
	kerneltest.Must(s.t, errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o777), os.WriteFile(filepath.Join(dir, "data"), []byte(content), 0o644)))
}

// daemon starts a program that runs as long as the test.
func (s *Server) daemon(name string, args ...string) {
	s.t.Helper()
	cmd := exec.Command(name, args...)
	kerneltest.Must(s.t, cmd.Start())
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
}

func (s *Server) await(what string, done func() bool) {
	s.t.Helper()
	for end := time.Now().Add(deadline); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%s has not started within %s", what, deadline)
		}
	}
}

func (s *Server) run(args ...string) {
	s.t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		s.t.Fatalf("%q: %v\n%s", args, err, out)
	}
}
