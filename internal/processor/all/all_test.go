// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package all

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/builtin"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
)

func TestEveryNameHasItsProcessor(t *testing.T) {
	t.Parallel()
	r, err := New(Deps{Kubelet: &kubelet.Finder{}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(builtin.Names(), r.Names()); diff != "" {
		t.Errorf("names of package builtin, and names of the registry (-builtin +registry):\n%s", diff)
	}
}

func TestRuntimeIsThatOfTheKubelet(t *testing.T) {
	t.Parallel()
	d := Deps{Kubelet: &kubelet.Finder{Proc: t.TempDir()}}
	_, err := (&cri.Client{Socket: d.socket}).Records(t.Context(), "pod", "app")
	if !errors.Is(err, cri.ErrUnavailable) || !errors.Is(err, kubelet.ErrNotFound) {
		t.Errorf("without a kubelet: %v, want that it is not found", err)
	}
	d.Kubelet = &kubelet.Node{}
	if _, err := d.socket(t.Context()); !errors.Is(err, kubelet.ErrNoRuntime) {
		t.Errorf("without a kubelet process: %v, want ErrNoRuntime", err)
	}
}
