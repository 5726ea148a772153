// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package states brings volumes on a real Ceph file system into every state in which a pod cannot use them, or seems to
// and does not: one builder for each, in the directories of a kubelet. It is for tests alone, which run as root in a
// mount namespace of their own. Each state was seen on real nodes or derived from how the kernel looks up names; what
// the kernel says of each was measured and is in the table.
package states

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/ceph"
)

// The content of the volume's records.
const (
	Driver           = "cephfs.csi.ceph.com"
	PersistentVolume = "pvc-1"
	Node             = "my-node"
)

// Contents of the file Data in the volume.
const (
	Data  = "data"
	Old   = "old\n"   // when a pod first got the volume
	Fresh = "fresh\n" // after Restage, or of what has taken the volume's place
)

// Place is where a CSI volume of a pod is staged and published on a node. In it, Target is a bind of the folder Below of
// what is mounted at Staging.
type Place struct {
	Root    string // of the kubelet
	PodUID  string
	Handle  string // of the volume
	Staging string // where the driver mounts the volume for the node
	Target  string // where the kubelet keeps it for the pod
	Below   string // the volume's folder, below Staging

	// Client serves what is mounted at Staging. It is nil until Stage.
	Client *ceph.Client
	// Bound is called when Target has been bound and nothing has happened to it yet: it is time to start containers.
	Bound func()

	cluster *ceph.Cluster
	folder  string // in the file system, what is at Staging
	other   string // where another client has mounted folder
}

var places atomic.Int64

// New makes the directories and records of a volume below the root of a kubelet, and its folder, with Data in it, in a
// part of the file system that no other place sees. Nothing is mounted below root yet. Later mounts there go with the
// test.
func New(t testing.TB, c *ceph.Cluster, root, podUID, below string) *Place {
	t.Helper()
	p := &Place{Root: root, PodUID: podUID, Below: below, cluster: c}
	p.folder = "/place-" + filepath.Base(c.Dir()) + "-" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(int(places.Add(1)))
	p.Handle = "0001-0004-ceph" + p.folder[1:]
	sum := sha256.Sum256([]byte(p.Handle))
	p.Staging = filepath.Join(root, "plugins/kubernetes.io/csi", Driver, hex.EncodeToString(sum[:]), "globalmount")
	p.Target = filepath.Join(root, "pods", podUID, "volumes/kubernetes.io~csi", PersistentVolume, "mount")
	record := map[string]string{"driverName": Driver, "volumeHandle": p.Handle}
	writeRecord(t, p.Staging, record)
	record["specVolID"], record["nodeName"], record["volumeLifecycleMode"] = PersistentVolume, Node, "Persistent"
	writeRecord(t, p.Target, record)
	scratch := t.TempDir()
	other := mount(t, c, scratch, ceph.MountOptions{})
	t.Cleanup(func() { closeClient(t, other) })
	p.other = filepath.Join(scratch, p.folder)
	p.write(t, below, Old)
	return p
}

// writeRecord makes a mount point and the kubelet's record beside it.
func writeRecord(t testing.TB, point string, record map[string]string) {
	t.Helper()
	text, err := json.Marshal(record)
	must(t, err)
	must(t, os.MkdirAll(point, 0o750))
	must(t, os.WriteFile(filepath.Join(filepath.Dir(point), "vol_data.json"), text, 0o600))
}

// Mount does what driver and kubelet do for a pod: it mounts the file system at Staging and binds the volume's folder at
// Target.
func (p *Place) Mount(t testing.TB) {
	t.Helper()
	p.Stage(t)
	p.bind(t)
}

// Stage mounts the file system at Staging. A mount that is there already, dead or alive, is taken away first; binds of
// it elsewhere stay as they are.
func (p *Place) Stage(t testing.TB) {
	t.Helper()
	if p.Client != nil {
		must(t, p.Client.Restart(t.Context()))
		return
	}
	p.Client = mount(t, p.cluster, p.Staging, ceph.MountOptions{Root: p.folder, Options: []string{"nonempty"}})
	t.Cleanup(func() { closeClient(t, p.Client) })
}

// Restage does what makes a volume whole for those who mount it from then on: if ceph-fuse is no longer of use, the
// driver restarts it, and the volume's folder is there, with Fresh in it.
func (p *Place) Restage(t testing.TB) {
	t.Helper()
	if p.Client == nil || !p.Client.Serves() {
		p.Stage(t) // before the folder is written to: the MDS would wait for a dead client
	}
	p.write(t, p.Below, Fresh)
}

// bind binds the volume's folder, as it is seen at Staging, at Target. It goes with the test.
func (p *Place) bind(t testing.TB) {
	t.Helper()
	must(t, unix.Mount(filepath.Join(p.Staging, p.Below), p.Target, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		for unix.Unmount(p.Target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
			continue // there may be several
		}
	})
	if p.Bound != nil {
		p.Bound()
	}
}

// write makes a folder through another client, with Data in it.
func (p *Place) write(t testing.TB, folder, content string) {
	t.Helper()
	dir := filepath.Join(p.other, folder)
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, Data), []byte(content), 0o644))
}

// Line is Target's visible mount in /proc/self/mountinfo. Reading it asks no file system.
func (p *Place) Line(t testing.TB) string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	found := ""
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && unescape.Replace(f[4]) == p.Target {
			found = line
		}
	}
	if found == "" {
		t.Fatalf("nothing is mounted at %q", p.Target)
	}
	return found
}

// unescape undoes what the kernel does to a path in the table.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// Marked reports whether the kernel marks the root of Target's mount as deleted.
func (p *Place) Marked(t testing.TB) bool {
	t.Helper()
	return strings.HasSuffix(strings.Fields(p.Line(t))[3], "//deleted")
}

// Bindable reports whether Target can be bound elsewhere, as it is for a container that starts.
func (p *Place) Bindable(t testing.TB) bool {
	t.Helper()
	scratch := t.TempDir()
	err := unix.Mount(p.Target, scratch, "", unix.MS_BIND, "")
	if err == nil {
		must(t, unix.Unmount(scratch, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	return err == nil
}

// names returns how many names Target's folder has: none once it was removed.
func (p *Place) names(t testing.TB) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(p.Target, &st))
	return uint64(st.Nlink) //nolint:unconvert // it has another width on other machines
}

func mount(t testing.TB, c *ceph.Cluster, target string, o ceph.MountOptions) *ceph.Client {
	t.Helper()
	m, err := c.Mount(t.Context(), target, o)
	must(t, err)
	return m
}

// closeClient loses what the client has not yet written, which takes a tenth of the time of waiting for it.
func closeClient(t testing.TB, m *ceph.Client) {
	t.Helper()
	must(t, m.Kill())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // that of the test has ended
	defer cancel()
	must(t, m.Close(ctx))
}

// patience is how long a state may take to come about.
const patience = 20 * time.Second

var must = kerneltest.Must
