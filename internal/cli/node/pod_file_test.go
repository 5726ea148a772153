// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	podJSON  = `{"apiVersion":"v1","kind":"Pod","metadata":{"uid":"a","namespace":"default","name":"web"},"unknown":1}`
	podYAML  = "apiVersion: v1\nkind: Pod\nmetadata: {uid: b, namespace: default, name: db}\n"
	bareItem = `{"metadata":{"uid":"c","namespace":"default","name":"job"}}`
)

func TestParsePods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want map[string]string // UID to name
	}{
		"Pod in JSON":          {podJSON, map[string]string{"a": "web"}},
		"Pod in YAML":          {podYAML, map[string]string{"b": "db"}},
		"documents":            {"---\n" + podYAML + "---\n---\n" + podJSON, map[string]string{"a": "web", "b": "db"}},
		"PodList":              {`{"apiVersion":"v1","kind":"PodList","items":[` + podJSON + `,` + bareItem + `]}`, map[string]string{"a": "web", "c": "job"}},
		"List":                 {`{"apiVersion":"v1","kind":"List","items":[` + podJSON + `]}`, map[string]string{"a": "web"}},
		"List without pods":    {`{"apiVersion":"v1","kind":"List","items":[]}`, map[string]string{}},
		"List in YAML":         {"apiVersion: v1\nkind: List\nitems:\n- " + podJSON, map[string]string{"a": "web"}},
		"two pods, one UID":    {`{"apiVersion":"v1","kind":"List","items":[` + podJSON + `,` + podJSON + `]}`, map[string]string{}},
		"space before":         {"\n  " + podJSON, map[string]string{"a": "web"}},
		"capitals in its keys": {`{"apiVersion":"v1","kind":"Pod","metadata":{"UID":"no","uid":"a","NAME":"no","name":"web"}}`, map[string]string{"a": "web"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pods, err := parsePods(strings.NewReader(c.text))
			must(t, err)
			got := map[string]string{}
			for uid := range maps.Keys(pods) {
				if pod := pods.PodByUID(uid); pod != nil {
					got[uid] = pod.Name
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
		})
	}
	if pod := (podFile)(nil).PodByUID("a"); pod != nil {
		t.Errorf("no file gives pod %v", pod)
	}
}

func TestBadPodFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"empty":         {" \n\n", "it is empty"},
		"garbage":       {"\x00\xff{{", "document 1"},
		"half a file":   {podJSON[:40], "unexpected end"},
		"more after it": {podJSON + "}", "invalid character"},
		"text":          {"The connection to the server was refused", `it begins with "\"The connection to t": must be a Pod, PodList or List, as "kubectl get pods`},
		"bare list":     {"[" + podJSON + "]", `it begins with "[{\"apiVersion\":\"v1\",": must be a Pod, PodList or List`},
		"wrong kind":    {`{"apiVersion":"v1","kind":"Node"}`, `kind: "Node": must be Pod, PodList or List`},
		"wrong group":   {`{"apiVersion":"apps/v1","kind":"List"}`, `apiVersion: "apps/v1": must be "v1"`},
		"no kind":       {bareItem, `apiVersion: "": must be "v1"`},
		"wrong item":    {`{"apiVersion":"v1","kind":"List","items":[` + podJSON + `,{"kind":"Service"}]}`, `items[1]: kind: "Service": must be Pod`},
		"item no kind":  {`{"apiVersion":"v1","kind":"List","items":[` + bareItem + `]}`, `items[0]: kind: "": must be Pod`},
		"no UID":        {`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"n","name":"p"}}`, `pod "n/p" has no metadata.uid`},
		"wrong field":   {`{"apiVersion":"v1","kind":"Pod","spec":{"containers":1}}`, "containers"},
		"second one":    {podYAML + "---\nkind: [\n", "document 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if pods, err := parsePods(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("pods %v, error %v, want one that speaks of %q", pods, err, c.want)
			}
		})
	}
}

// endlessSpaces never end.
type endlessSpaces struct{ read int }

func (s *endlessSpaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	s.read += len(p)
	return len(p), nil
}

func TestPodFileIsBounded(t *testing.T) {
	t.Parallel()
	s := &endlessSpaces{}
	if _, err := parsePods(s); err == nil || !strings.Contains(err.Error(), "larger than 64 MiB") {
		t.Errorf("error %v, want that it is too large", err)
	}
	if s.read > 2*maxPodFile {
		t.Errorf("%d bytes were read", s.read)
	}
}

func TestReadPods(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pods.json")
	must(t, os.WriteFile(file, []byte(podJSON), 0o600))
	for name, c := range map[string]string{file: "nothing", "-": podJSON} {
		pods, err := readPods(t.Context(), name, strings.NewReader(c))
		if err != nil || !slices.Equal(slices.Collect(maps.Keys(pods)), []string{"a"}) {
			t.Errorf("from %q: %v, %v, want the pod", name, pods, err)
		}
	}
	if _, err := readPods(t.Context(), file+"2", nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "--pods") {
		t.Errorf("no such file: %v, want ENOENT of --pods", err)
	}
	r, w := io.Pipe() // nothing comes
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := readPods(ctx, "-", r); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that it was given up", err)
	}
}

func FuzzParsePods(f *testing.F) {
	f.Add(podJSON)
	f.Add(podYAML)
	f.Add(`{"apiVersion":"v1","kind":"PodList","items":[` + bareItem + `]}`)
	f.Fuzz(func(t *testing.T, text string) {
		pods, err := parsePods(strings.NewReader(text))
		for uid, pod := range pods {
			if err == nil && pod != nil && (uid == "" || string(pod.UID) != uid) {
				t.Errorf("%q gives pod %q as %q", text, pod.UID, uid)
			}
		}
	})
}
