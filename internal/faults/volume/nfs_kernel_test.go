// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/nfs"
)

// probeDeadline is the deadline of a prober on a machine that may be emulated.
var probeDeadline = kerneltest.Patience(time.Second)

// nfsScene is a pod's volume that the kernel's NFS client has from a real server.
func nfsScene(t *testing.T, server *nfs.Server, version string, staged bool) *volumeScene {
	t.Helper()
	s := bareScene(t, ".")
	server.Replace("pv", "old")
	s.must(os.Mkdir(server.Dir+"/pv/sub", 0o755))
	s.must(os.WriteFile(server.Dir+"/pv/sub/data", []byte("old"), 0o644))
	if staged {
		server.Mount("pv", s.Staging, version)
		s.must(sys.BindMount(s.Staging, s.Point))
		return s
	}
	s.must(os.Remove(kubelet.VolumeRecordPath(s.Staging)))
	server.Mount("pv", s.Point, version)
	return s
}

// replaceDirectory does what is done on a server whose directory is made again.
func replaceDirectory(s *volumeScene, server *nfs.Server) {
	s.t.Helper()
	server.Replace("pv", "new")
	s.must(os.Mkdir(server.Dir+"/pv/sub", 0o755))
	s.must(os.WriteFile(server.Dir+"/pv/sub/data", []byte("new"), 0o644))
}

// expectCode expects the volume to have a fault, or none, and gives it.
func (s *volumeScene) expectCode(want fault.Code) *volume.Health {
	s.t.Helper()
	begin := time.Now()
	health := s.inspectVolume()
	if took := time.Since(begin); took > 4*probeDeadline+kerneltest.Patience(20*time.Second) {
		s.t.Errorf("the look took %s", took)
	}
	if health.Verdict.Code != want {
		s.t.Fatalf("the volume has fault %q, want %q: %q %+v", health.Verdict.Code, want, health.Verdict.Reasons, health.Evidence.Answer)
	}
	return health
}

var versions = map[string]string{"v4": "vers=4.2", "v3": "vers=3,nolock"}

func TestNFSDirectoryReplacedOnTheServer(t *testing.T) {
	server := nfs.Start(t)
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			s := nfsScene(t, server, version, true)
			s.expectCode("")
			replaceDirectory(s, server)
			health := s.expectCode(fault.StaleFileHandle)
			if health.Replacement.Source != nil || !strings.Contains(health.Replacement.NoSourceReason, "not alive either") {
				t.Fatalf("source %+v, because %q; want none, as the staged mount is stale as well", health.Replacement.Source, health.Replacement.NoSourceReason)
			}
			// The driver mounts it again.
			s.must(systest.UnmountPath(s.Staging, true))
			server.Mount("pv", s.Staging, version)
			if health = s.expectCode(fault.StaleFileHandle); health.Replacement.Source == nil {
				t.Fatalf("no source, because %q", health.Replacement.NoSourceReason)
			}
			s.repairVolume()
			s.expectCode("")
			if got, err := os.ReadFile(filepath.Join(s.Point, "data")); err != nil || string(got) != "new" {
				t.Errorf("the pod's volume holds %q, %v, want what the server has now", got, err)
			}
		})
	}
}

func TestNFSExportRemovedAndBack(t *testing.T) {
	server := nfs.Start(t)
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			s := nfsScene(t, server, version, false)
			for _, all := range []bool{false, true} { // of two exports
				server.Unexport(all)
				v := s.expectCode(fault.StaleFileHandle)
				if v.Replacement.Source != nil || !strings.Contains(v.Replacement.NoSourceReason, "nothing mounted for the whole node") {
					t.Errorf("source %+v, because %q; want none, as nothing is staged", v.Replacement.Source, v.Replacement.NoSourceReason)
				}
				server.Export()
				s.expectCode("")
			}
		})
	}
}

func TestNFSServerStoppedAndBack(t *testing.T) {
	server := nfs.Start(t)
	for name, options := range map[string]string{
		"v4 hard": "vers=4.2,hard", "v3 soft": "vers=3,nolock,soft,timeo=10,retrans=1",
	} {
		t.Run(name, func(t *testing.T) {
			s := nfsScene(t, server, options, false)
			s.expectCode("")
			server.Stop()
			resumed := false
			defer func() {
				if !resumed {
					server.Resume()
				}
			}()
			for range 2 {
				v := s.expectCode(fault.HungMount)
				t.Logf("%q %q", v.Verdict.Reasons, v.Evidence.Answer.Evidence)
				actions, refusals := s.planOf(v, volume.PlanOptions{})
				if len(actions) != 0 {
					t.Errorf("actions %+v, refusals %q, want nothing done to a mount that may yet answer", actions, refusals)
				}
			}
			server.Resume()
			resumed = true
			s.awaitHealthy()
			if n := s.Inspector.Runner.Lingering(); n != 0 {
				t.Errorf("%d processes that asked are left", n)
			}
		})
	}
}

// awaitHealthy waits until the client has found its server again.
func (s *volumeScene) awaitHealthy() {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); s.inspectVolume().Verdict.Code != ""; {
		if time.Now().After(end) {
			s.t.Fatalf("a minute after the server came back the volume has %q", s.inspectVolume().Verdict.Code)
		}
	}
}
