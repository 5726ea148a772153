// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

func TestOptionsComplete(t *testing.T) {
	t.Parallel()
	var o Options
	must(t, o.complete())
	if o.NodeName != "node-1" || o.SyncFrequency != 5*time.Second || o.Controllers {
		t.Errorf("complete() of nothing = %+v", o)
	}
}

func TestOptionsRefused(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"Kubelet":     {Kubelet: "1.2.3"},
		"KubeletRoot": {KubeletRoot: "var/lib/kubelet"},
		"KubeletDisk": {KubeletDisk: true},
		"OwnMounts":   {OwnMounts: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := o.complete(); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("complete() = %v, want an error that names %s", err, name)
			}
		})
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		n    int
		want string
	}{
		"all":             {100, "one\ntwo\nthree"},
		"from line start": {7, "three"},
		"one long line":   {3, "ree"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := string(tail([]byte("one\ntwo\nthree"), tt.n)); got != tt.want {
				t.Errorf("tail(%d) = %q, want %q", tt.n, got, tt.want)
			}
		})
	}
}

var must = kerneltest.Must
