// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountstate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/linux/mountinfo"
)

const tokenPlace, emptyPlace = "/k/pods/u/volumes/kubernetes.io~projected/token", "/k/pods/u/volumes/kubernetes.io~empty-dir/tmp"

// containerTables are the tables of the kubelet and of a container with a token, an emptyDir, /etc/hosts and a path of the node. More are added to
// the latter.
func containerTables(more ...mountinfo.Mount) (host, own *mountinfo.Table) {
	host = mountinfo.NewTable([]mountinfo.Mount{
		{ID: 1, Major: 8, Minor: 1, Root: "/", Point: "/"}, {ID: 2, Parent: 1, Minor: 20, Root: "/", Point: tokenPlace}, {ID: 3, Parent: 1, Minor: 21, Root: "/", Point: "/run"},
	})
	all := append([]mountinfo.Mount{
		{ID: 50, Minor: 40, Root: "/", Point: "/", FSType: "overlay"},
		{ID: 51, Parent: 50, Major: 8, Minor: 1, Root: "/k/pods/u/etc-hosts", Point: "/etc/hosts"},
	}, more...)
	return host, mountinfo.NewTable(all)
}

// Mounts of the container that are right.
var (
	ownToken = mountinfo.Mount{ID: 52, Parent: 50, Minor: 20, Root: "/", Point: "/var/run/token"}
	ownEmpty = mountinfo.Mount{ID: 53, Parent: 50, Major: 8, Minor: 1, Root: emptyPlace, Point: "/tmp"}
	ownRun   = mountinfo.Mount{ID: 54, Parent: 50, Minor: 21, Root: "/sock", Point: "/run/sock"}
)

func containerRecords() []ContainerMount {
	all := []ContainerMount{
		{From: "/k/pods/u/etc-hosts", Point: "/etc/hosts"}, {From: tokenPlace, Point: "/var/run/token"}, {From: emptyPlace, Point: "/tmp"},
		{From: "/var/run/sock", Point: "/run/sock"},
	}
	for i := range all {
		all[i].Container, all[i].ID = "app", "id"
	}
	return all
}

// TestContainerLinks has a container with one mount that is not as the runtime has made it, a row each, and the links that are not right. Another
// look has to find them so again.
func TestContainerLinks(t *testing.T) {
	t.Parallel()
	moved, hosts, deleted, above := ownToken, ownToken, ownEmpty, mountinfo.Mount{ID: 60, Parent: 50, Minor: 90, Root: "/", Point: "/var/run"}
	moved.Point, hosts.Point, deleted.Root = "/run/token", "/host"+tokenPlace, emptyPlace+"//deleted"
	gone := ownToken
	gone.Root = "/..data//deleted"
	at := func(m mountinfo.Mount, id, parent int, minor uint32) mountinfo.Mount {
		m.ID, m.Parent, m.Major, m.Minor, m.Root = id, parent, 0, minor, "/"
		return m
	}
	for name, row := range map[string]struct {
		own  []mountinfo.Mount
		want map[string]string
	}{
		"all is there":                         {[]mountinfo.Mount{ownToken, ownEmpty, ownRun}, nil},
		"the image has a link":                 {[]mountinfo.Mount{moved, ownEmpty, ownRun}, nil},
		"the directory was deleted":            {[]mountinfo.Mount{ownToken, deleted, ownRun}, map[string]string{"/tmp": strings.Replace(reasonDeletedIn, "%q", `"`+emptyPlace+`"`, 1)}},
		"the mount of a volume was deleted":    {[]mountinfo.Mount{gone, ownEmpty, ownRun}, nil}, // that is for another look
		"a path of the node is elsewhere":      {[]mountinfo.Mount{ownToken, ownEmpty}, nil},
		"a volume is with the node's root":     {[]mountinfo.Mount{hosts, ownEmpty, ownRun}, map[string]string{"/var/run/token": reasonNotInside}},
		"a volume is missing":                  {[]mountinfo.Mount{ownEmpty, ownRun}, map[string]string{"/var/run/token": reasonNotInside}},
		"an older file system":                 {[]mountinfo.Mount{at(ownToken, 52, 50, 7), ownEmpty, ownRun}, map[string]string{"/var/run/token": strings.Replace(reasonOtherInside, "%q", `"`+tokenPlace+`"`, 1)}},
		"another mount on it":                  {[]mountinfo.Mount{ownToken, at(ownToken, 60, 52, 90), ownEmpty, ownRun}, map[string]string{"/var/run/token": reasonUnderInside}},
		"another mount above it":               {[]mountinfo.Mount{ownToken, above, ownEmpty, ownRun}, map[string]string{"/var/run/token": reasonUnderInside}},
		"another mount above that of the node": {[]mountinfo.Mount{ownToken, ownEmpty, ownRun, at(ownRun, 60, 54, 90), {ID: 61, Parent: 50, Minor: 91, Root: "/", Point: "/run"}}, map[string]string{"/run/sock": reasonUnderInside}},
		"of its volume, for another mount":     {[]mountinfo.Mount{at(ownToken, 52, 50, 20), ownRun}, map[string]string{"/tmp": reasonNotInside}},
	} {
		host, own := containerTables(row.own...)
		records := containerRecords()
		if !CompareContainer(host, own, "/k/pods/u", records) {
			t.Errorf("%s: not the container's table", name)
		}
		f := Facts{Mounts: Observe(layout(), host)}
		f.Pods, f.Links = Desired(layout(), []PodSource{{UID: "u", Places: placesOf("kubernetes.io~empty-dir/tmp"), Mounts: records}}, now)
		if row.want == nil {
			row.want = map[string]string{}
		}
		asked := map[string]string{}
		for place := range row.want {
			asked[place] = "?"
		}
		if diff := cmp.Diff(asked, wrongLinks(f)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for i := range f.Links {
			f.Links[i].Runs = "process 7"
		}
		sum, got := f.Survey(layout()), map[string]string{}
		for _, p := range sum.Unknown.Places {
			if got[p.Point] = strings.TrimSuffix(p.Reason, " (process 7)"); p.Container != "app" {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if diff := cmp.Diff(row.want, got); diff != "" || sum.Coverage.Containers != 1 {
			t.Errorf("%s, %d containers (-want +got):\n%s", name, sum.Coverage.Containers, diff)
		}
	}
}

// TestOtherTablesOfContainers: the table of a process that has gone to another root or namespace says nothing about the container's mounts.
func TestOtherTablesOfContainers(t *testing.T) {
	t.Parallel()
	host, _ := containerTables()
	chrooted := mountinfo.NewTable([]mountinfo.Mount{{ID: 50, Major: 8, Minor: 1, Root: "/", Point: "/"}, {ID: 51, Parent: 50, Minor: 21, Root: "/", Point: "/run"}})
	for name, own := range map[string]*mountinfo.Table{"the node's": host, "of the root of the node": chrooted, "empty": mountinfo.NewTable(nil)} {
		if CompareContainer(host, own, "/k/pods/u", containerRecords()) {
			t.Errorf("%s: taken for the container's", name)
		}
	}
}

// TestContainersNameVolumes: the runtime's record of a container names a volume whose directory has gone, also that of a claim. The
// mount in such a container is said with its volume alone.
func TestContainersNameVolumes(t *testing.T) {
	t.Parallel()
	host, own := containerTables(ownToken, ownEmpty)
	claim := rowPod(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}, nil, corev1.VolumeMount{Name: "v", MountPath: "/v"})
	for name, pod := range map[string]*corev1.Pod{"no spec": nil, "a claim": claim} {
		records := append(containerRecords(), ContainerMount{Container: "app", ID: "id", From: "/k/pods/u/volumes/kubernetes.io~csi/pvc-1/mount", Point: "/v"})
		CompareContainer(host, own, "/k/pods/u", records)
		f := Facts{Mounts: Observe(layout(), host)}
		f.Pods, f.Links = Desired(layout(), []PodSource{{UID: "u", Spec: pod, Places: placesOf("kubernetes.io~empty-dir/tmp", "kubernetes.io~projected/token"), Mounts: records}}, now)
		if diff := cmp.Diff(map[string]string{"volumes/kubernetes.io~csi/pvc-1/mount": "?"}, wrongLinks(f)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestMountOfTheNodeInAContainer: a container has the file system that the node has at a path, if something is mounted at exactly that path.
func TestMountOfTheNodeInAContainer(t *testing.T) {
	t.Parallel()
	mount := func(id, parent int, minor uint32, root, point, fsType string) mountinfo.Mount {
		return mountinfo.Mount{ID: id, Parent: parent, Minor: minor, Root: root, Point: point, FSType: fsType}
	}
	disk, share := mount(1, 0, 1, "/", "/", "ext4"), mount(2, 1, 2, "/", "/srv/data", "nfs4")
	for name, c := range map[string]struct {
		host, own []mountinfo.Mount
		reason    string
	}{
		"the same":                    {[]mountinfo.Mount{disk, share}, []mountinfo.Mount{mount(11, 10, 2, "/", "/data", "nfs4")}, ""},
		"mounted after the start":     {[]mountinfo.Mount{disk, share}, []mountinfo.Mount{mount(11, 10, 1, "/srv/data", "/data", "ext4")}, strings.Replace(reasonOtherInside, "%q", `"/srv/data"`, 1)},
		"it has followed":             {[]mountinfo.Mount{disk, share}, []mountinfo.Mount{mount(11, 10, 1, "/srv/data", "/data", "ext4"), mount(12, 11, 2, "/", "/data", "nfs4")}, ""},
		"covered in the container":    {[]mountinfo.Mount{disk, share}, []mountinfo.Mount{mount(11, 10, 2, "/", "/data", "nfs4"), mount(12, 11, 9, "/", "/data", "tmpfs")}, reasonUnderInside},
		"no mount of the node":        {[]mountinfo.Mount{disk}, []mountinfo.Mount{mount(11, 10, 9, "/", "/data", "tmpfs")}, ""},
		"the image has a link":        {[]mountinfo.Mount{disk, share}, nil, ""},
		"an automounter":              {[]mountinfo.Mount{disk, mount(2, 1, 3, "/", "/srv/data", "autofs"), mount(3, 2, 2, "/", "/srv/data", "nfs4")}, []mountinfo.Mount{mount(11, 10, 3, "/", "/data", "autofs")}, ""},
		"hidden from the node, too":   {[]mountinfo.Mount{disk, share, mount(3, 1, 4, "/", "/srv", "tmpfs")}, []mountinfo.Mount{mount(11, 10, 4, "/data", "/data", "tmpfs")}, ""},
		"the root directory, as ever": {[]mountinfo.Mount{disk}, []mountinfo.Mount{mount(11, 10, 1, "/", "/data", "ext4")}, ""},
	} {
		from := "/srv/data"
		if name == "the root directory, as ever" {
			from = "/"
		}
		records := []ContainerMount{{Container: "app", ID: "id", From: "/k/pods/u/etc-hosts", Point: "/etc/hosts"}, {Container: "app", ID: "id", From: from, Point: "/data"}}
		own := append([]mountinfo.Mount{mount(10, 0, 90, "/", "/", "overlay"), mount(20, 10, 1, "/k/pods/u/etc-hosts", "/etc/hosts", "ext4")}, c.own...)
		host := mountinfo.NewTable(c.host)
		if !CompareContainer(host, mountinfo.NewTable(own), "/k/pods/u", records) {
			t.Errorf("%s: not the container's table", name)
		}
		f := Facts{Mounts: Observe(layout(), host)}
		f.Pods, f.Links = Desired(layout(), []PodSource{{UID: "u", Mounts: records}}, now)
		for i, v := range f.Evaluate(layout()) {
			if v.Asks {
				f.Links[i].Runs = "it runs"
			}
		}
		got := ""
		for _, reason := range wrongLinks(f) {
			got += strings.TrimSuffix(reason, " (it runs)")
		}
		if got != c.reason {
			t.Errorf("%s: %q, want %q", name, got, c.reason)
		}
		if CompareContainer(host, host, "/k/pods/u", []ContainerMount{{From: "/srv/data", Point: "/srv/data"}}) {
			t.Errorf("%s: the node's own table is taken for the container's", name)
		}
	}
}

// TestContainerOfLink: the runtime follows the symbolic link of a driver, so that the container has the mount that it leads to.
func TestContainerOfLink(t *testing.T) {
	t.Parallel()
	const place = "/k/pods/u/volumes/kubernetes.io~csi/v/mount"
	for minor, want := range map[uint32]bool{21: true, 22: false} {
		host, own := containerTables(mountinfo.Mount{ID: 55, Parent: 50, Minor: minor, Root: "/fs", Point: "/data"})
		records := append(containerRecords(), ContainerMount{Container: "app", ID: "id", From: place, Link: "/run/fs", Point: "/data"})
		if !CompareContainer(host, own, "/k/pods/u", records) {
			t.Fatal("not the container's table")
		}
		if at := records[len(records)-1]; (at.Has == at.Wants) != want || at.Wants != (Directory{"0:21", "/fs"}) {
			t.Errorf("device 0:%d: %+v", minor, at)
		}
	}
}
