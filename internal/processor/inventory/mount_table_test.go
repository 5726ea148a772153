// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/kubelet"
	table "kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/processor"
)

type noKubelet struct{}

func (noKubelet) Node(context.Context) (*kubelet.Node, error) { return nil, kubelet.ErrNotFound }

func TestMountTableIsComplete(t *testing.T) {
	t.Parallel()
	n, err := kubelet.Local(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	result, err := (&MountTableCollector{Kubelet: n}).Run(t.Context(), processor.Request{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	// Others may mount in the meantime; the root stays what it is.
	first, _, _ := strings.Cut(string(want), "\n")
	got := result.Values["collector.system.mountinfo"]
	if !strings.Contains(got, first+"\n") || len(result.Values) != 1 {
		t.Errorf("the result lacks the line %q:\n%s", first, got)
	}
	if _, err := table.ParseBytes([]byte(got)); err != nil {
		t.Error(err)
	}
	if _, err := (&MountTableCollector{Kubelet: noKubelet{}}).Run(t.Context(), processor.Request{}); !errors.Is(err, kubelet.ErrNotFound) {
		t.Errorf("without a kubelet: %v, want ErrNotFound", err)
	}
}

const podUIDInTable = "29da79e5-386c-4e0d-82c1-215f93ff955d"

// longTable is a table of 20,000 mounts with three that matter, far apart.
func longTable() (text string, matter []string) {
	matter = []string{
		"20001 22 254:1 /a/nginx.log//deleted /var/lib/kubelet/pods/other/volume-subpaths/a/b/0 rw shared:1 - ext4 /dev/vda1 rw\n",
		"20002 22 254:1 /v /var/lib/kubelet/pods/" + podUIDInTable + "/volume-subpaths/c/d/1 rw shared:1 - ext4 /dev/vda1 rw\n",
		"20003 22 0:99 /sub\\040dir/x//deleted /mnt rw - tmpfs tmpfs rw\n",
	}
	var b strings.Builder
	for i := range 20000 {
		if i%7000 == 6999 {
			b.WriteString(matter[i/7000])
		}
		fmt.Fprintf(&b, "%d 22 254:1 /deleted /var/lib/containers/%d//deleted/x rw,relatime shared:1 - ext4 //deleted rw\n", i+30, i)
	}
	b.WriteString(matter[2])
	return b.String(), matter
}

func TestExcerptOfMountTable(t *testing.T) {
	t.Parallel()
	text, matter := longTable()
	c := &MountTableCollector{}
	for name, test := range map[string]struct {
		limit int
		want  []string // in the excerpt
		not   []string
	}{
		"room for some":        {limit: 4096, want: []string{matter[0], matter[2]}},
		"room for the deleted": {limit: 250, want: []string{matter[0], matter[2]}, not: matter[1:2]},
		"room for one":         {limit: 150, want: matter[:1], not: matter[1:]},
		"no room":              {limit: 0, not: matter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := c.Excerpt(processor.Request{}, keyMountTable, text, test.limit)
			if encoded, _ := json.Marshal(got); len(encoded)-2 > test.limit {
				t.Errorf("excerpt takes %d bytes of a status, %d at most", len(encoded)-2, test.limit)
			}
			for _, line := range test.want {
				if !strings.Contains(got, line) {
					t.Errorf("excerpt lacks %q:\n%s", line, got)
				}
			}
			for _, line := range test.not {
				if strings.Contains(got, line) {
					t.Errorf("excerpt has %q", line)
				}
			}
		})
	}
	if got := c.Excerpt(processor.Request{}, keyMountTable, text, 2*len(text)); got != text {
		t.Error("with room for all of it, the excerpt is not all of it")
	}
}

func FuzzMountTableExcerpt(f *testing.F) {
	text, _ := longTable()
	f.Add(text[len(text)-2000:], 500)
	f.Add("\n\n//deleted \n", 3)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		got := (&MountTableCollector{}).Excerpt(processor.Request{}, keyMountTable, text, limit)
		if len(got) > max(0, limit) {
			t.Errorf("%d bytes, %d at most", len(got), limit)
		}
	})
}

// TestPodLines: with a pod, the lines are those of the kubelet's directory of that pod, whatever else names its UID.
func TestPodLines(t *testing.T) {
	t.Parallel()
	n, err := kubelet.Local(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSuffix(n.PodDir(podUIDInTable), podUIDInTable)
	line := func(root, point, source string) string {
		return "30 22 254:1 " + root + " " + point + " rw shared:1 - ext4 " + source + " rw\n"
	}
	own := line("/", dir+podUIDInTable+"/volumes/kubernetes.io~csi/a/mount", "/dev/vda1") +
		line("/x//deleted", dir+podUIDInTable+"/volume-subpaths/c/d/1", "/dev/vda1")
	all := line("/", "/", "/dev/vda1") + own + line("/", dir+podUIDInTable, "/dev/vda1") + line("/", dir+podUIDInTable+"0/volumes/a", "/dev/vda1") +
		line("/pods/"+podUIDInTable+"/x", dir+"7b6b3f0a-52f5-4d3b-9d0f-0a4b7f5b1c22/volumes/b", "server:/"+podUIDInTable)
	got, err := podLines(n, []byte(all), podUIDInTable)
	if err != nil || string(got) != own {
		t.Errorf("%v, got:\n%swant:\n%s", err, got, own)
	}
}
