// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
)

// TestRemovesTheVeryEntry: between the look and the removal another may take its place, or a link lead elsewhere.
func TestRemovesTheVeryEntry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then func(dir string) error
		want error
	}{
		"the same":    {func(string) error { return nil }, nil},
		"gone":        {os.Remove, sys.ENOENT},
		"another":     {func(dir string) error { return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700)) }, ErrNotRemovable},
		"filled":      {func(dir string) error { return os.Mkdir(dir+"/x", 0o700) }, ErrNotRemovable},
		"a link":      {func(dir string) error { return errors.Join(os.Remove(dir), os.Symlink("..", dir)) }, sys.ELOOP},
		"parent link": {linkParent, sys.ELOOP},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			dir := filepath.Join(root, "pod/volumes/b")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			pods, err := sys.Lookup(root)
			if err != nil {
				t.Fatal(err)
			}
			defer pods.Close()
			p := &Pod{Place: Place{UID: "pod", Path: root + "/pod"}}
			if err := (&inspection{Inspector: &Inspector{}}).listEntries(p, pods); err != nil {
				t.Fatal(err)
			}
			if err := c.then(dir); err != nil {
				t.Fatal(err)
			}
			if err := p.allEntries[0].removeFrom(t.Context(), pods, "pod"); p.allEntries[0].Path != "volumes/b" || !errors.Is(err, c.want) {
				t.Errorf("remove %q: %v, want %v", p.allEntries[0].Path, err, c.want)
			}
		})
	}
}

// linkParent moves the directory above away, and puts a link to it in its place.
func linkParent(dir string) error {
	above := filepath.Dir(dir)
	return errors.Join(os.Rename(above, above+".old"), os.Symlink(above+".old", above))
}
