// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

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

// BenchmarkParse turns the same text into values with this package and with
// the three that others use. The ratio between the lines is what counts.
func BenchmarkParse(b *testing.B) {
	text := nodeText()
	str := string(text)
	lines := float64(bytes.Count(text, []byte{'\n'}))
	file := filepath.Join(b.TempDir(), "mountinfo")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		b.Fatal(err)
	}
	for name, parse := range map[string]func() (int, error){
		"kubediag": func() (int, error) { m, err := ParseString(str); return len(m), err },
		"kubediag scanner": func() (n int, err error) {
			s := NewScanner(str)
			for s.Scan() {
				n++
			}
			return n, s.Err()
		},
		"kubediag bytes": func() (int, error) { m, err := ParseBytes(text); return len(m), err },
		"kubediag reader": func() (int, error) {
			m, err := Parse(bytes.NewReader(text))
			return len(m), err
		},
		"moby": func() (int, error) {
			m, err := moby.GetMountsFromReader(bytes.NewReader(text), nil)
			return len(m), err
		},
		"k8s.io mount-utils": func() (int, error) { m, err := mountutils.ParseMountInfo(file); return len(m), err },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if n, err := parse(); err != nil || n != int(lines) {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/lines, "ns/line")
		})
	}
	b.Run("prometheus procfs", func(b *testing.B) { benchProcfs(b, text, lines) })
}

// benchProcfs reads through a stand-in for /proc, as the library has no other way in.
func benchProcfs(b *testing.B, text []byte, lines float64) {
	root := b.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "1"), 0o700); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "1", "mountinfo"), text, 0o600); err != nil {
		b.Fatal(err)
	}
	fs, err := procfs.NewFS(root)
	if err != nil {
		b.Fatal(err)
	}
	proc, err := fs.Proc(1)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if m, err := proc.MountInfo(); err != nil || len(m) != int(lines) {
			b.Fatal(len(m), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/lines, "ns/line")
}

// BenchmarkFilter finds the marked mounts, and those of one device, in the same
// text. moby's filter is the only one that the others offer.
func BenchmarkFilter(b *testing.B) {
	text := nodeText()
	lines := float64(bytes.Count(text, []byte{'\n'}))
	for name, find := range map[string]func() (int, error){
		"deleted kubediag": func() (n int, err error) {
			err = EachDeleted(text, func(Line) bool { n++; return true })
			return n, err
		},
		"deleted moby": func() (int, error) {
			m, err := moby.GetMountsFromReader(bytes.NewReader(text), func(m *moby.Info) (skip, stop bool) {
				_, ok := Deleted(m.Root)
				return !ok, false
			})
			return len(m), err
		},
		"device kubediag": func() (n int, err error) {
			err = EachDevice(text, 7, 0, func(Line) bool { n++; return true })
			return n, err
		},
		"device moby": func() (int, error) {
			m, err := moby.GetMountsFromReader(bytes.NewReader(text), func(m *moby.Info) (skip, stop bool) {
				return m.Major != 7 || m.Minor != 0, false
			})
			return len(m), err
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
