// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package inventory

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/processor"
)

func TestListsNamespaces(t *testing.T) {
	daemon := kerneltest.Start(t, "daemon")
	orphan := kerneltest.StartWith(t, nil, "orphan", "ns/mnt")
	result, err := (&NamespaceCollector{}).Run(t.Context(), processor.Request{})
	if err != nil {
		t.Fatal(err)
	}
	var list []namespaceDocument
	if err := json.Unmarshal([]byte(result.Values[keyNamespaces]), &list); err != nil {
		t.Fatal(err)
	}
	ns, err := mountns.Of(daemon.PID)
	if err != nil {
		t.Fatal(err)
	}
	table, err := mountns.Table(daemon.PID)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(n namespaceDocument) bool { return n.Namespace == ns.Inode })
	// The kernel's own calls also show the mount below the root.
	if i < 0 || !slices.Equal(list[i].PIDs, []int{daemon.PID}) || list[i].Processes != 1 || list[i].Mounts-len(table.Mounts()) > 1 || list[i].Mounts < len(table.Mounts()) {
		t.Errorf("namespace %d = %+v, want process %d and %d mounts", ns.Inode, list, daemon.PID, len(table.Mounts()))
	}
	kept := func(n namespaceDocument) bool {
		return n.Processes == 0 && slices.ContainsFunc(n.Holders, func(k holderDocument) bool { return k.PID == orphan.PID && k.Kind == mountns.Descriptor })
	}
	if !slices.ContainsFunc(list, kept) {
		t.Errorf("no namespace is kept by a descriptor of process %d: %s", orphan.PID, result.Values[keyNamespaces])
	}
	if !strings.Contains(result.Values[keyNamespaceSurvey], "mount namespaces (") {
		t.Errorf("survey %q", result.Values[keyNamespaceSurvey])
	}
}
