// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	moby "github.com/moby/sys/mountinfo"
	"github.com/prometheus/procfs"
	mountutils "k8s.io/mount-utils"
)

// nodeText is the mount table of a Kubernetes node with 199 mounts: pods'
// volumes and subPaths, a tenth of them stale, shared memory, overlays with six
// lower directories. 37 kB, as measured on real nodes.
func nodeText() []byte {
	var b bytes.Buffer
	for _, line := range []string{
		"22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw",
		"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro",
		"25 27 0:23 / /dev/shm rw,nosuid,nodev shared:3 - tmpfs tmpfs rw,inode64",
		"31 27 7:0 / /data rw,relatime shared:9 - ext4 /dev/loop0 rw",
	} {
		b.WriteString(line + "\n")
	}
	for id := 100; b.Len() < 37_000; id += 4 {
		uid := fmt.Sprintf("29da79e5-386c-4e0d-82c1-%012x", id)
		pod := "/var/lib/kubelet/pods/" + uid
		mark := ""
		if id%40 == 0 {
			mark = "//deleted"
		}
		fmt.Fprintf(&b, "%d 27 254:0 %s/volumes/kubernetes.io~configmap/conf/..2021_06_02_06_01_21.244319292/nginx.log%s %s/volume-subpaths/conf/app/1 rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro\n", id, pod, mark, pod)
		fmt.Fprintf(&b, "%d 27 0:%d / %s/volumes/kubernetes.io~projected/kube-api-access rw,relatime shared:%d - tmpfs tmpfs rw,size=262144k,inode64\n", id+1, id, pod, id)
		fmt.Fprintf(&b, "%d 27 0:%d / /run/containerd/io.containerd.grpc.v1.cri/sandboxes/%064x/shm rw,nosuid,nodev,noexec,relatime shared:%d - tmpfs shm rw,size=65536k\n", id+2, id+1, id, id+1)
		fmt.Fprintf(&b, "%d 27 0:%d / /run/containerd/io.containerd.runtime.v2.task/k8s.io/%064x/rootfs rw,relatime shared:%d - overlay overlay rw,lowerdir=/l/1:/l/2:/l/3:/l/4:/l/5:/l/6,upperdir=/var/lib/containerd/%d/fs,workdir=/var/lib/containerd/%d/work\n", id+3, id+2, id, id+2, id, id)
	}
	return b.Bytes()
}

// way is one way to get from the text to mounts. It gives how many it found.
type way func() (int, error)

// ways are this package's and that of each of the three that others use. Two of
// those can only read a file: beside them stands this package reading that file.
type ways struct {
	ours, oursFromFile, moby, mountUtils, procfs way
}

// sources is the same text as a buffer, as a file, and as process 1 of a
// stand-in for /proc.
type sources struct {
	text []byte
	file string
	proc procfs.Proc
}

func newSources(b *testing.B) sources {
	b.Helper()
	root := b.TempDir()
	s := sources{text: nodeText(), file: filepath.Join(root, "1", "mountinfo")}
	if err := os.MkdirAll(filepath.Dir(s.file), 0o700); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(s.file, s.text, 0o600); err != nil {
		b.Fatal(err)
	}
	fs, err := procfs.NewFS(root)
	if err != nil {
		b.Fatal(err)
	}
	if s.proc, err = fs.Proc(1); err != nil {
		b.Fatal(err)
	}
	return s
}

// parse turns all of the text into a list that outlives it.
func (s sources) parse() ways {
	return ways{
		ours: func() (int, error) { m, err := ParseBytes(s.text); return len(m), err },
		oursFromFile: func() (int, error) {
			text, err := os.ReadFile(s.file)
			if err != nil {
				return 0, err
			}
			m, err := ParseBytes(text)
			return len(m), err
		},
		moby: func() (int, error) {
			m, err := moby.GetMountsFromReader(bytes.NewReader(s.text), nil)
			return len(m), err
		},
		mountUtils: func() (int, error) { m, err := mountutils.ParseMountInfo(s.file); return len(m), err },
		procfs:     func() (int, error) { m, err := s.proc.MountInfo(); return len(m), err },
	}
}

// BenchmarkOthers reports the time of this package for the text of a node, and how many times as long the others take:
// x-NAME. All ways are measured by turns in one run, so that other load on the machine meets all of them.
func BenchmarkOthers(b *testing.B) {
	s := newSources(b)
	s.parse().compare(b, bytes.Count(s.text, []byte{'\n'}))
}

// compare reports the ratios. Every way is to find as many mounts as there are lines.
func (w ways) compare(b *testing.B, lines int) {
	all := map[string]way{
		"kubediag": w.ours, "kubediag-from-file": w.oursFromFile,
		"moby": w.moby, "mount-utils": w.mountUtils, "procfs": w.procfs,
	}
	took := map[string][]float64{}
	for range b.N {
		for range 25 {
			for name, find := range all {
				took[name] = append(took[name], average(b, find, lines))
			}
		}
	}
	for name, find := range all {
		slices.Sort(took[name])
		b.ReportMetric(took[name][len(took[name])/2]/float64(lines), "ns/line-"+name)
		b.ReportMetric(testing.AllocsPerRun(10, func() { _, _ = find() }), "allocs-"+name)
	}
	median := func(name string) float64 { return took[name][len(took[name])/2] }
	b.ReportMetric(median("moby")/median("kubediag"), "x-moby")
	b.ReportMetric(median("mount-utils")/median("kubediag-from-file"), "x-mount-utils")
	b.ReportMetric(median("procfs")/median("kubediag-from-file"), "x-procfs")
	b.ReportMetric(0, "ns/op") // says nothing here
}

// average is how many nanoseconds one of a few calls takes.
func average(b *testing.B, find way, want int) float64 {
	const calls = 20
	start := time.Now()
	for range calls {
		if n, err := find(); err != nil || n != want {
			b.Fatal(n, err)
		}
	}
	return float64(time.Since(start).Nanoseconds()) / calls
}

// BenchmarkKubediag is every way in that this package has.
func BenchmarkKubediag(b *testing.B) {
	text := nodeText()
	lines := float64(bytes.Count(text, []byte{'\n'}))
	for name, find := range map[string]way{
		"parse": func() (int, error) { m, err := ParseBytes(text); return len(m), err },
		"numbers": func() (n int, err error) {
			for line := range Lines(text) {
				if _, _, major, _, _ := line.Numbers(); major == 7 {
					n++
				}
			}
			return n, nil
		},
		"below": func() (n int, err error) {
			for line := range Lines(text) {
				if below, _ := line.Below("/var/lib/kubelet/pods"); below {
					n++
				}
			}
			return n, nil
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if n, err := find(); err != nil || n == 0 {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/lines, "ns/line")
		})
	}
}
