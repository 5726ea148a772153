// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package e2e

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/ceph"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/csi"
	"kubediag.org/kubediag/test/debian"
)

// fuseClient is a program that mounts a file system on FUSE.
type fuseClient struct {
	programs []string // of Debian
	// daemon returns the command line that mounts the directory data at {}; own is a directory for its files.
	daemon func(t *testing.T, data, own string) []string
}

var clients = map[string]fuseClient{
	"rclone": {[]string{"rclone"}, func(_ *testing.T, data, _ string) []string {
		return []string{"rclone", "mount", ":local:" + data, "{}", "--config=", "--allow-other"}
	}},
	"sshfs": {[]string{"sshfs", sftpServer}, func(t *testing.T, data, own string) []string {
		script := filepath.Join(own, "ssh") // the server at the other end of a pipe, without ssh between them
		must(t, os.WriteFile(script, []byte("#!/bin/sh\nexec "+sftpServer+"\n"), 0o700))
		return []string{"sshfs", "-f", "-o", "allow_other,ssh_command=" + script, "host:" + data, "{}"}
	}},
	"mergerfs": {[]string{"mergerfs"}, func(_ *testing.T, data, _ string) []string {
		return []string{"mergerfs", "-f", "-o", "allow_other,cache.files=off", data, "{}"}
	}},
	"s3fs": {[]string{"s3fs"}, func(t *testing.T, data, own string) []string {
		server := httptest.NewServer(bucket{data})
		t.Cleanup(server.Close)
		passwords := filepath.Join(own, "passwords")
		must(t, os.WriteFile(passwords, []byte("user:password"), 0o600))
		return []string{"s3fs", "data", "{}", "-f", "-o", "allow_other,use_path_request_style,url=" + server.URL + ",passwd_file=" + passwords}
	}},
	"weed":      {nil, seaweedFS},
	"ceph-fuse": {nil, cephFS},
}

const sftpServer = "/usr/lib/openssh/sftp-server"

// cephFS starts a Ceph with the files of the directory data, and returns the command line of its client.
func cephFS(t *testing.T, data, _ string) []string {
	t.Helper()
	files, err := ceph.Start(t.Context())
	must(t, err)
	t.Cleanup(func() { must(t, files.Stop()) })
	all := t.TempDir()
	c, err := files.Mount(t.Context(), all, ceph.MountOptions{})
	must(t, err)
	must(t, errors.Join(os.CopyFS(all, os.DirFS(data)), c.Close(t.Context())))
	return cephFuse(files)
}

// TestClients stops, kills and mounts again real clients of file systems on FUSE, below a volume of a running pod that has a container
// with a subPath. A client that is stopped is reported, and nothing is done. One that was killed is reported, too; once it is mounted again
// for the node, a Diagnosis repairs the volume in the containers, which run on.
func TestClients(t *testing.T) {
	for name, c := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkClient(t, c, cluster.Options{Kubelet: cluster.Kubernetes137})
		})
	}
}

func checkClient(t *testing.T, c fuseClient, o cluster.Options) {
	startClient(t, c, o).stopAndKill(t)
}

// startClient starts a cluster with a volume of the client, and a pod that has it.
func startClient(t *testing.T, c fuseClient, o cluster.Options) *cephVolume {
	t.Helper()
	must(t, debian.Install(t.Context(), c.programs...))
	data := t.TempDir()
	must(t, fillVolume(data))
	daemon := c.daemon(t, data, t.TempDir()) // a server that it needs ends after the cluster
	v := &cephVolume{env: start(t, o)}
	v.driver = csi.Install(t, v.Env, daemon...)
	v.driver.AddVolume(t, volumeName, "")
	v.pods = v.driver.Start(t, readersOf("readers", volumeName, 1))
	v.checkReaders(t, "whole", "part")
	return v
}

// awaitStaged returns when the volume answers where it is mounted for the node: a Ceph has a new client wait for what it gave to the dead one.
func (v *cephVolume) awaitStaged(t *testing.T) {
	t.Helper()
	began := time.Now()
	text, err := os.ReadFile(filepath.Join(v.staging(t), "file"))
	if err != nil || string(text) != "whole\n" {
		t.Errorf("the volume for the node has %q, %v", text, err)
	}
	t.Logf("the volume for the node answers after %.1f s", time.Since(began).Seconds())
}

// stopAndKill stops the daemon of the volume, has it go on, kills it, and has the driver mount the volume again.
func (v *cephVolume) stopAndKill(t *testing.T) {
	t.Helper()
	const faults = 4 // of the volume, its part, and one in each container

	daemon := v.driver.Staged(t, volumeName).PID
	must(t, unix.Kill(daemon, unix.SIGSTOP))
	t.Cleanup(func() { _ = unix.Kill(daemon, unix.SIGCONT) })
	v.awaitFaults(t, "HungMount", faults)
	must(t, unix.Kill(daemon, unix.SIGCONT))
	v.awaitFaults(t, "", 0)
	v.checkReaders(t, "whole", "part")

	v.driver.KillDaemon(t, volumeName)
	v.awaitFaults(t, "DisconnectedFUSE", faults)
	v.checkReaders(t, notConnected, notConnected)
	v.driver.Restart(t)
	v.awaitStaged(t)
	v.checkDead(t, v.mounted(&v.pods[0]))
	v.Kubectl(t, "", "apply", "-f", volumeHealth)
	v.checkHealed(t, v.diagnose(t, "killed", &v.pods[0]))
	v.checkReaders(t, "whole", "part")
	v.checkSame(t, v.pods)
	v.awaitFaults(t, "", 0)
}
