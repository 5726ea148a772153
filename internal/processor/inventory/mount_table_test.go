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
	request := processor.Request{Values: map[string]string{detailKey: `{"metadata":{"uid":"` + podUIDInTable + `"}}`}}
	c := &MountTableCollector{}
	for name, test := range map[string]struct {
		request processor.Request
		limit   int
		want    []string // in the excerpt
		not     []string
	}{
		"room for some":         {request: request, limit: 4096, want: matter},
		"room for the pod's":    {request: request, limit: 150, want: matter[1:2], not: matter[2:]},
		"the pod is not known":  {limit: 250, want: []string{matter[0], matter[2]}},
		"what is known is junk": {request: processor.Request{Values: map[string]string{detailKey: "[]"}}, limit: 250, want: matter[:1]},
		"no room":               {request: request, limit: 0, not: matter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := c.Excerpt(test.request, KeyMountTable, text, test.limit)
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
	if got := c.Excerpt(request, KeyMountTable, text, 2*len(text)); got != text {
		t.Error("with room for all of it, the excerpt is not all of it")
	}
}

func FuzzMountTableExcerpt(f *testing.F) {
	text, _ := longTable()
	f.Add(text[len(text)-2000:], podUIDInTable, 500)
	f.Add("\n\n//deleted \n", "", 3)
	f.Fuzz(func(t *testing.T, text, uid string, limit int) {
		detail, _ := json.Marshal(map[string]any{"metadata": map[string]string{"uid": uid}})
		got := (&MountTableCollector{}).Excerpt(processor.Request{Values: map[string]string{detailKey: string(detail)}}, KeyMountTable, text, limit)
		if len(got) > max(0, limit) {
			t.Errorf("%d bytes, %d at most", len(got), limit)
		}
	})
}
