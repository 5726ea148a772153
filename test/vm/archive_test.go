// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build vm

package vm

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// goneLimit is far more than the answer of a mirror on this machine takes.
const goneLimit = 2 * time.Minute

// TestKernelPackageIsGone: the mirror's list names a package that the mirror has no more, or never finishes sending.
func TestKernelPackageIsGone(t *testing.T) {
	const image = "linux-image-5.10.0-99-cloud-amd64"
	for name, c := range map[string]struct {
		hangs bool
		limit time.Duration
		want  string
	}{
		"not found": {limit: goneLimit, want: "404"},
		"hangs":     {hangs: true, limit: 2 * time.Second, want: "killed"},
	} {
		t.Run(name, func(t *testing.T) {
			end := make(chan struct{})
			mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case path.Base(r.URL.Path) == "Packages":
					for pkg, depends := range map[string]string{image: "", "linux-image-cloud-amd64": "Depends: " + image + "\n"} {
						fmt.Fprintf(w, "Package: %s\nVersion: 1\nArchitecture: amd64\nMaintainer: none\nDescription: none\nFilename: ./%[1]s.deb\n"+
							"Size: 9999\nSHA256: %064d\n%s\n", pkg, 0, depends)
					}
				case c.hangs && strings.HasSuffix(r.URL.Path, ".deb"):
					<-end
				default:
					http.NotFound(w, r)
				}
			}))
			t.Cleanup(mirror.Close)
			t.Cleanup(func() { close(end) })
			t.Setenv("no_proxy", "127.0.0.1")
			a, err := viewOf(t.Context(), t.TempDir(), []byte("deb [trusted=yes] "+mirror.URL+" ./\n"))
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), c.limit)
			defer cancel()
			began, dir := time.Now(), t.TempDir()
			err = unpackKernel(ctx, a, "5.10", dir)
			if err == nil || !strings.Contains(err.Error(), c.want) || !c.hangs && !strings.Contains(err.Error(), image) {
				t.Errorf("error %v, want one that names the package and says %q", err, c.want)
			}
			t.Logf("after %s: %v", time.Since(began), err)
			if left, _ := filepath.Glob(filepath.Join(dir, "release")); len(left) > 0 {
				t.Errorf("it looks whole: %q", left)
			}
		})
	}
}
