// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
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
			if err := p.listEntries(pods); err != nil {
				t.Fatal(err)
			}
			awaitTick(t, root, p.allEntries[0])
			if err := c.then(dir); err != nil {
				t.Fatal(err)
			}
			if err := p.allEntries[0].removeFrom(t.Context(), pods, "pod"); p.allEntries[0].Path != "volumes/b" || !errors.Is(err, c.want) {
				t.Errorf("remove %q: %v, want %v", p.allEntries[0].Path, err, c.want)
			}
		})
	}
}

// awaitTick waits until the file system gives a later time than that of the entry: its clock is a coarse one.
func awaitTick(t *testing.T, root string, e Entry) {
	t.Helper()
	clock := filepath.Join(root, "clock")
	for {
		if err := os.WriteFile(clock, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(clock); err != nil || info.ModTime().After(e.facts.Changed) {
			return
		}
	}
}

// linkParent moves the directory above away, and puts a link to it in its place.
func linkParent(dir string) error {
	above := filepath.Dir(dir)
	return errors.Join(os.Rename(above, above+".old"), os.Symlink(above+".old", above))
}

// TestRemovesTheVeryKey: the same of the kubelet's copies of keys, and of its links to them.
func TestRemovesTheVeryKey(t *testing.T) {
	t.Parallel()
	const dir = "volumes/kubernetes.io~secret/cfg"
	const times = dir + "/..2026_11_25_21_33_17.1234567890"
	key, link := times+"/key", dir+"/key"
	for name, c := range map[string]struct {
		rel  string
		then func(name string) error
		want error
	}{
		"the same file":          {key, func(string) error { return nil }, nil},
		"the same link":          {link, func(string) error { return nil }, nil},
		"file gone":              {key, os.Remove, sys.ENOENT},
		"link gone":              {link, os.Remove, sys.ENOENT},
		"another file":           {key, func(name string) error { return replaceBy(name, os.WriteFile(name+".new", []byte("first"), 0o600)) }, ErrNotRemovable},
		"another link":           {link, func(name string) error { return replaceBy(name, os.Symlink("..data/key", name+".new")) }, ErrNotRemovable},
		"written":                {key, func(name string) error { return os.WriteFile(name, []byte("other"), 0o600) }, ErrNotRemovable},
		"file with another name": {key, func(name string) error { return os.Link(name, name+".link") }, ErrNotRemovable},
		"link with another name": {link, func(name string) error { return os.Link(name, name+".link") }, ErrNotRemovable},
		"a link for a file":      {key, func(name string) error { return replaceBy(name, os.Symlink("/etc/passwd", name+".new")) }, sys.ELOOP},
		"a file for a link":      {link, func(name string) error { return replaceBy(name, os.WriteFile(name+".new", nil, 0o600)) }, sys.ELOOP},
		"a directory for a link": {link, func(name string) error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o700)) }, sys.ELOOP},
		"a link above a file":    {key, linkParent, sys.ELOOP},
		"a link above a link":    {link, linkParent, sys.ELOOP},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			if err := errors.Join(os.MkdirAll(filepath.Join(root, "pod", times), 0o755), os.WriteFile(filepath.Join(root, "pod", key), []byte("first"), 0o600),
				os.Symlink("..data/key", filepath.Join(root, "pod", link))); err != nil {
				t.Fatal(err)
			}
			pods, err := sys.Lookup(root)
			if err != nil {
				t.Fatal(err)
			}
			defer pods.Close()
			p := &Pod{Place: Place{UID: "pod", Path: root + "/pod"}}
			if err := p.listEntries(pods); err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(p.allEntries, func(e Entry) bool { return e.Path == c.rel })
			awaitTick(t, root, p.allEntries[at])
			if err := c.then(filepath.Join(root, "pod", c.rel)); err != nil {
				t.Fatal(err)
			}
			if err := p.allEntries[at].removeFrom(t.Context(), pods, "pod"); !errors.Is(err, c.want) {
				t.Errorf("remove: %v, want %v", err, c.want)
			}
			if _, err := os.Lstat(filepath.Join(root, "pod", c.rel)); (c.want == nil || errors.Is(c.want, sys.ENOENT)) != errors.Is(err, os.ErrNotExist) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// replaceBy renames the new entry to name once it is made.
func replaceBy(name string, made error) error {
	return errors.Join(made, os.Rename(name+".new", name))
}
