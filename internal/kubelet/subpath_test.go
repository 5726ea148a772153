// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const testPodUID = "29da79e5-386c-4e0d-82c1-215f93ff955d"

func node(root string) *Node { return &Node{Layout: Layout{Root: root, podsDir: root + "/pods"}} }

func TestParseSubPath(t *testing.T) {
	t.Parallel()
	n := node(DefaultRoot)
	dir := DefaultRoot + "/pods/" + testPodUID
	for name, c := range map[string]struct {
		point string
		want  SubPath
		ok    bool
	}{
		"index 1":         {dir + "/volume-subpaths/conf/app/1", SubPath{testPodUID, "conf", "app", 1}, true},
		"index 10":        {dir + "/volume-subpaths/conf/app/10", SubPath{testPodUID, "conf", "app", 10}, true},
		"dots in names":   {dir + "/volume-subpaths/..conf/a.b/0", SubPath{testPodUID, "..conf", "a.b", 0}, true},
		"leading zero":    {point: dir + "/volume-subpaths/conf/app/01"},
		"sign":            {point: dir + "/volume-subpaths/conf/app/+1"},
		"negative":        {point: dir + "/volume-subpaths/conf/app/-1"},
		"no number":       {point: dir + "/volume-subpaths/conf/app/-a"},
		"huge":            {point: dir + "/volume-subpaths/conf/app/99999999999999999999"},
		"below":           {point: dir + "/volume-subpaths/conf/app/1/x"},
		"trailing slash":  {point: dir + "/volume-subpaths/conf/app/1/"},
		"double slash":    {point: dir + "/volume-subpaths//conf/app/1"},
		"climbs":          {point: dir + "/volume-subpaths/../app/1"},
		"volume":          {point: dir + "/volumes/kubernetes.io~configmap/conf/1"},
		"root":            {point: "/"},
		"root itself":     {point: DefaultRoot},
		"empty":           {point: ""},
		"option":          {point: "-a"},
		"mark":            {point: "//deleted"},
		"longer root":     {point: DefaultRoot + "2/pods/" + testPodUID + "/volume-subpaths/conf/app/1"},
		"relative":        {point: dir[1:] + "/volume-subpaths/conf/app/1"},
		"other directory": {point: DefaultRoot + "/plugins/" + testPodUID + "/volume-subpaths/conf/app/1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := n.ParseSubPath(c.point)
			if ok != c.ok || got != c.want {
				t.Errorf("parsed to %+v, %v, want %+v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}

func TestNamesThatAreNoPath(t *testing.T) {
	t.Parallel()
	n := node(DefaultRoot)
	good := SubPath{testPodUID, "conf", "app", 0}
	for name, change := range map[string]func(*SubPath){
		"empty pod":          func(s *SubPath) { s.PodUID = "" },
		"pod climbs":         func(s *SubPath) { s.PodUID = ".." },
		"volume has slash":   func(s *SubPath) { s.Volume = "../../other" },
		"container has zero": func(s *SubPath) { s.Container = "a\x00" },
		"container is dot":   func(s *SubPath) { s.Container = "." },
		"negative index":     func(s *SubPath) { s.Index = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := good
			change(&s)
			if point := n.SubPathPoint(s); point != "" {
				t.Errorf("point = %q, want none", point)
			}
		})
	}
	got := map[string]string{
		"configmap": n.VolumeDir(testPodUID, "kubernetes.io/configmap", "conf"),
		"climbs":    n.VolumeDir(testPodUID, "kubernetes.io/configmap", ".."),
	}
	want := map[string]string{"configmap": DefaultRoot + "/pods/" + testPodUID + "/volumes/kubernetes.io~configmap/conf", "climbs": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseSubPath(f *testing.F) {
	n := node(DefaultRoot)
	f.Add(DefaultRoot + "/pods/" + testPodUID + "/volume-subpaths/conf/app/1")
	f.Add(DefaultRoot + "/pods/" + testPodUID + "/volume-subpaths/conf/app/01")
	f.Add(DefaultRoot + "/pods/../volume-subpaths/conf/app/1")
	f.Add("//deleted")
	f.Fuzz(func(t *testing.T, point string) {
		s, ok := n.ParseSubPath(point)
		if ok && n.SubPathPoint(s) != point {
			t.Errorf("%q was parsed to %+v, whose path is %q", point, s, n.SubPathPoint(s))
		}
	})
}
