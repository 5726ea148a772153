// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/render"
)

func TestBackendsFollowFromFeatures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lacks   []*sys.Feature
		want    map[string]string
		refuses []*sys.Feature
	}{
		"by nobody": {nil, map[string]string{
			"mount namespaces": "unknown", "mount identity": "kernel", "unmount": "kernel", "live swap": "unknown",
		}, []*sys.Feature{sys.HasNamespaceWalk, sys.HasMoveBeneath}},
		"all there": {nil, map[string]string{
			"mount namespaces": "kernel", "mount identity": "kernel", "unmount": "kernel", "live swap": "kernel",
		}, nil},
		"nothing there": {sys.Features(), map[string]string{
			"mount namespaces": "procfs", "mount identity": "mountinfo", "unmount": "mountinfo", "live swap": "none",
		}, nil},
		"no walk, as without CAP_SYS_ADMIN": {[]*sys.Feature{sys.HasNamespaceWalk}, map[string]string{
			"mount namespaces": "procfs", "mount identity": "kernel", "unmount": "kernel", "live swap": "kernel",
		}, nil},
		"6.8": {[]*sys.Feature{sys.HasNamespaceID, sys.HasNamespaceWalk}, map[string]string{
			"mount namespaces": "procfs", "mount identity": "kernel", "unmount": "kernel", "live swap": "kernel",
		}, nil},
		"6.1": {[]*sys.Feature{sys.HasNamespaceID, sys.HasNamespaceWalk, sys.HasStatmount, sys.HasUniqueMountID, sys.HasMoveBeneath}, map[string]string{
			"mount namespaces": "procfs", "mount identity": "mountinfo", "unmount": "mountinfo", "live swap": "propagation",
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := map[string]string{}
			for _, b := range chosenBackends(func(f *sys.Feature) error {
				switch {
				case slices.Contains(c.lacks, f):
					return errors.ErrUnsupported
				case slices.Contains(c.refuses, f):
					return sys.EPERM
				}
				return nil
			}) {
				got[b.Purpose] = b.Backend
				if b.Means == "" {
					t.Errorf("%s is not explained", b.Purpose)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("back ends (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFeaturesOfThisKernel(t *testing.T) {
	t.Parallel()
	out, err := verbtest.Run(t, NewFeaturesCommand(), "-o", "json")
	must(t, err)
	var r featureReport
	must(t, json.Unmarshal([]byte(out), &r))
	if r.SchemaVersion != 1 || r.Kernel != sys.Release() || r.OldestKernel != sys.OldestKernel || len(r.Features) != len(sys.Features()) || len(r.Backends) != 4 {
		t.Fatalf("report %+v", r)
	}
	for i, f := range sys.Features() {
		want := "yes"
		if err := f.Probe(); errors.Is(err, errors.ErrUnsupported) {
			want = "no"
		} else if err != nil {
			want = "failed"
		}
		a := r.Features[i]
		if a.Name != f.Name || a.MinimumKernel != f.Kernel || a.Answer != want || a.Without != f.Without || a.Without == "" || (a.Error != "") != (want == "failed") {
			t.Errorf("answer %+v, want %q for %s", a, want, f.Name)
		}
	}
}

func TestFeaturesAsText(t *testing.T) {
	t.Parallel()
	r := featureReport{
		Kernel: "6.1.0", OldestKernel: "5.10",
		Features: []featureAnswer{{Name: "openat2", Answer: "yes", MinimumKernel: "5.6"}, {Name: "statmount", Answer: "no", MinimumKernel: "7.0", Without: "text is read"},
			{Name: "walk", Answer: "failed", MinimumKernel: "6.12", Error: "probe walk: not\x1bpermitted"}},
		Backends: []chosenBackend{{"unmount", "kernel", "by id"}},
	}
	want := `Linux 6.1.0; kubediag is tested on 5.10 and later

FEATURE    HERE    SINCE KERNEL
openat2    yes     5.6
statmount  no      7.0
walk       failed  6.12
without statmount: text is read
walk: probe walk: not\x1bpermitted

FOR      BACK END  WHICH MEANS
unmount  kernel    by id
`
	if diff := cmp.Diff(want, r.writeText(terminal.Screen{})); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if err := render.Write(brokenPipe{}, verb.Text, r, r.writeText); !errors.Is(err, errBroken) {
		t.Errorf("error %v, want that of the pipe", err)
	}
}
