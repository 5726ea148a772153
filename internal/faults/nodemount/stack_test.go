// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package nodemount

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

var layout = &kubelet.Elsewhere("/k", "/k/pods").Layout

const volumePoint = "/k/pods/u/volumes/kubernetes.io~csi/pvc-1/mount"

// layer is a mount of a stack; it lies on the one before.
type layer = func(m *mountinfo.Mount)

func same(*mountinfo.Mount)     {}
func device(n uint32) layer     { return func(m *mountinfo.Mount) { m.Minor = n } }
func at(point string) layer     { return func(m *mountinfo.Mount) { m.Point = point } }
func options(text string) layer { return func(m *mountinfo.Mount) { m.Options = text } }
func from(source string) layer  { return func(m *mountinfo.Mount) { m.Source = source } }
func root(dir string) layer     { return func(m *mountinfo.Mount) { m.Root = dir } }
func shared(group, from int) layer {
	return func(m *mountinfo.Mount) { m.Shared, m.Master = group, from }
}
func onLayer(parent int, l layer) layer { return func(m *mountinfo.Mount) { l(m); m.Parent = parent } }

func stackOf(point string, layers ...layer) *mountinfo.Table {
	mounts := []mountinfo.Mount{{ID: 1, Major: 8, Root: "/", Point: "/", FSType: "ext4"}}
	for i, l := range layers {
		m := mountinfo.Mount{ID: 10 + i, Parent: 9 + i, Minor: 7, Root: "/", Point: point, FSType: "tmpfs", Source: "s", Options: "rw"}
		if i == 0 {
			m.Parent = 1
		}
		l(&m)
		mounts = append(mounts, m)
	}
	return mountinfo.NewTable(mounts)
}

// TestStacks has places with several mounts. The number of mounts of one thing, and of those that may go, follows from the
// table.
func TestStacks(t *testing.T) {
	t.Parallel()
	const differs = "it differs from the mount beneath it in device, directory, options or propagation"
	const spread = "an unmount would spread to the other mounts of its peer group, and could take the last one away, too"
	type result struct {
		Layers, Alike, Surplus int
		Kept                   string
	}
	for name, c := range map[string]struct {
		point  string
		layers []layer
		want   *result // nil: no fault
	}{
		"one":                              {volumePoint, []layer{same}, nil},
		"two":                              {volumePoint, []layer{same, same}, nil},
		"three":                            {volumePoint, []layer{same, same, same}, &result{3, 3, 2, ""}},
		"at the kubelet's root":            {"/k", []layer{same, same, same, same}, &result{4, 4, 3, ""}},
		"elsewhere":                        {"/srv", []layer{same, same, same, same}, nil},
		"on another one":                   {volumePoint, []layer{from("x"), same, same, same}, &result{4, 3, 2, differs}},
		"below another one":                {volumePoint, []layer{same, same, same, from("x")}, nil},
		"file systems of their own":        {volumePoint, []layer{same, device(8), device(9)}, &result{3, 3, 0, differs}},
		"other options on top":             {volumePoint, []layer{same, same, same, options("ro")}, &result{4, 4, 0, differs}},
		"other options further down":       {volumePoint, []layer{same, options("ro"), same, same}, &result{4, 4, 1, differs}},
		"other directories":                {volumePoint, []layer{same, root("/a"), same, root("/b")}, nil},
		"a deleted directory":              {volumePoint, []layer{root("/a//deleted"), root("/a//deleted"), root("/a//deleted")}, &result{3, 3, 0, "its directory was deleted"}},
		"shared and private":               {volumePoint, []layer{same, same, shared(4, 0)}, &result{3, 3, 0, differs}},
		"shared, each alone":               {volumePoint, []layer{shared(4, 0), shared(5, 0), shared(6, 0)}, &result{3, 3, 2, ""}},
		"of one peer group":                {volumePoint, []layer{shared(4, 0), shared(4, 0), shared(4, 0)}, &result{3, 3, 0, spread}},
		"on some of one peer group":        {volumePoint, []layer{shared(4, 0), shared(4, 0), shared(5, 0), shared(6, 0)}, &result{4, 4, 1, spread}},
		"slaves of others":                 {volumePoint, []layer{shared(0, 4), shared(0, 5), shared(0, 5)}, &result{3, 3, 1, differs}},
		"a mount on the top":               {volumePoint, []layer{same, same, same, at(volumePoint + "/x")}, &result{3, 3, 0, "another mount lies on one of them"}},
		"a mount on the one beneath":       {volumePoint, []layer{same, same, same, onLayer(11, at(volumePoint+"/x"))}, &result{3, 3, 0, "another mount lies on one of them"}},
		"hidden by a mount above":          {volumePoint, []layer{same, same, same, onLayer(1, at("/k/pods/u"))}, &result{3, 3, 0, "another mount hides the place: no path leads to it until that goes"}},
		"inside a volume of the pod's own": {volumePoint + "/build", []layer{same, same, same}, &result{3, 3, 0, `a workload has mounted it inside volume "pvc-1" of its pod`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := observe(layout, mountns.Namespace{Inode: 3}, stackOf(c.point, c.layers...))
			var got *result
			if len(e.Stacks) > 0 {
				s := e.Stacks[0]
				got = &result{s.Layers, s.Alike, s.Surplus, s.Kept}
				if s.Point != c.point || len(s.surplus) != s.Surplus || len(e.Stacks) > 1 {
					t.Errorf("%+v", e.Stacks)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestStacksOfATableThatIsNoTree has mounts that lie on each other in a circle, as only a forged table has.
func TestStacksOfATableThatIsNoTree(t *testing.T) {
	t.Parallel()
	table := stackOf(volumePoint, onLayer(12, same), same, same, onLayer(11, same))
	if e := observe(layout, mountns.Namespace{}, table); len(e.Stacks) != 1 || e.Stacks[0].Layers != len(table.Mounts()) {
		t.Errorf("%+v", e.Stacks)
	}
}

// TestFaultsOfStacks has the faults follow from the evidence, also from evidence that was written down.
func TestFaultsOfStacks(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"}}
	podOf := func(uid string) *corev1.Pod {
		if uid == "u" {
			return pod
		}
		return nil
	}
	e := observe(layout, mountns.Namespace{Inode: 3}, stackOf(volumePoint, same, same, same))
	e.Stacks[0].Driver, e.Mounts, e.Most = "d.example.com", 89_999, 100_000
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var again Evidence
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	found := e.Judge(layout, podOf).Findings
	if diff := cmp.Diff(found, again.Judge(layout, podOf).Findings); diff != "" {
		t.Error(diff)
	}
	if len(found) != 1 {
		t.Fatalf("%d faults: %+v", len(found), found)
	}
	f := found[0]
	if f.Pod.Name != "web" || f.Volume != "pvc-1" || f.Holder != `CSI driver "d.example.com"` || f.Details.Repair != fault.Unmount || f.Details.Layers != 3 {
		t.Errorf("%+v", f)
	}
	if key, unknown := f.Key(), e.Judge(layout, nil).Findings[0].Key(); key != unknown || key.Place != volumePoint {
		t.Errorf("key %+v, without the pod's spec %+v", key, unknown)
	}
	e.Mounts++
	found = e.Judge(layout, podOf).Findings
	if len(found) != 2 || found[1].Details.Place != fault.PlaceMountLimit || found[1].Details.Repair != "" || len(found[1].Evidence) != 2 {
		t.Errorf("near the limit: %+v", found)
	}
	if e.Most = 0; len(e.Judge(layout, podOf).Findings) != 1 {
		t.Error("a limit that is not known was reached")
	}
}

// TestManyStacks leaves out the smallest, and says so.
func TestManyStacks(t *testing.T) {
	t.Parallel()
	mounts := []mountinfo.Mount{{ID: 1, Point: "/", Root: "/"}}
	for place := range maxStacks + 2 {
		parent := 1
		for range minAlike + place%2 {
			id := len(mounts) + 1
			mounts = append(mounts, mountinfo.Mount{ID: id, Parent: parent, Point: fmt.Sprint("/k/plugins/d/", place), Root: "/", FSType: "tmpfs"})
			parent = id
		}
	}
	e := observe(layout, mountns.Namespace{}, mountinfo.NewTable(mounts))
	sum := e.Judge(layout, nil)
	if len(sum.Findings) != maxStacks || e.More != 2 || len(sum.Unknown.Gaps) != 1 || e.Stacks[0].Layers != minAlike+1 {
		t.Errorf("%d faults, %d left out, %+v", len(sum.Findings), e.More, sum.Unknown)
	}
}
