// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestNamespaceOfAWorkload: a process in a user namespace of its own has a copy of the node's mounts. The process holds
// the device, and is named, and nothing is unmounted in its namespace.
func TestNamespaceOfAWorkload(t *testing.T) {
	for name, owner := range map[string]*cri.Owner{"of a container": devicetest.Exporter(), "of no container": nil} {
		t.Run(name, func(t *testing.T) {
			s := devicetest.New(t, "")
			s.Runtime.Of = owner
			role := []string{"daemon"}
			if owner != nil {
				role = []string{"device container", t.TempDir(), "exporter"}
			}
			a := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), role[0], role[1:]...)
			s.UnmountOnHost()
			before := s.MountsOf(a.PID)
			usage := s.Left()
			if usage == nil || usage.Removable || len(usage.HolderInfos) != 2 || len(usage.Copies()) > 0 {
				t.Fatalf("case = %+v, want one that is held, and cannot be released", usage)
			}
			for _, h := range usage.HolderInfos {
				if len(h.PIDs) == 0 || h.PIDs[0] != a.PID {
					t.Errorf("held by %v, want process %d", h.PIDs, a.PID)
				}
				if !strings.Contains(h.Why, cri.ErrWorkload.Error()) {
					t.Errorf("it stays because %q, want that a workload has made the namespace", h.Why)
				}
				if err := s.Inspector.Unmount(t.Context(), h.RecordedMount); !errors.Is(err, device.ErrNotRemovable) {
					t.Errorf("unmount: %v, want ErrNotRemovable", err)
				}
			}
			if diff := cmp.Diff(before, s.MountsOf(a.PID)); diff != "" {
				t.Errorf("mounts changed:\n%s", diff)
			}
		})
	}
}
