// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package reap

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// CgroupRoots lists where the hierarchies of cgroups are mounted, of both versions.
func CgroupRoots() ([]string, error) {
	return cgroupMounts(func(*mountinfo.Info) bool { return true })
}

func cgroupMounts(wanted func(m *mountinfo.Info) bool) ([]string, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2" || !wanted(m), false
	})
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	var roots []string
	for _, m := range mounts {
		roots = append(roots, m.Mountpoint)
	}
	return roots, nil
}

// freezer is how a version of cgroups says that a cgroup was frozen, and how it is thawed.
type freezer struct{ asked, yes, file, thaw string }

var (
	freezer1 = freezer{"freezer.self_freezing", "1", "freezer.state", "THAWED"}
	freezer2 = freezer{"cgroup.freeze", "1", "cgroup.freeze", "0"}
)

// thaw thaws the cgroups that a process is in, and those above them. A runtime freezes the processes of a container as it kills
// them. If it was killed itself meanwhile, they end only when they are thawed: in version 1 at once, and no signal ends them before.
// A cgroup that cannot be thawed shows in its processes, which live on.
func thaw(pid int) {
	for _, thread := range Threads(pid) {
		thawThread(thread)
	}
}

// thawThread thaws the cgroups of a thread, by its directory in /proc.
func thawThread(proc string) {
	text, _ := os.ReadFile(filepath.Join(proc, "cgroup")) // it may have ended
	for line := range strings.Lines(string(text)) {
		controllers, path, _ := strings.Cut(strings.TrimSpace(line[strings.IndexByte(line, ':')+1:]), ":")
		switch {
		case controllers == "":
			freezer2.thawUp(path, func(m *mountinfo.Info) bool { return m.FSType == "cgroup2" })
		case slices.Contains(strings.Split(controllers, ","), "freezer"):
			freezer1.thawUp(path, func(m *mountinfo.Info) bool {
				return m.FSType == "cgroup" && slices.Contains(strings.Split(m.VFSOptions, ","), "freezer")
			})
		}
	}
}

// thawUp thaws a cgroup and those above it, where its hierarchy is mounted whole.
func (f freezer) thawUp(path string, hierarchy func(m *mountinfo.Info) bool) {
	roots, _ := cgroupMounts(func(m *mountinfo.Info) bool { return m.Root == "/" && hierarchy(m) })
	for _, root := range roots {
		for at := filepath.Clean(path); len(at) > 1; at = filepath.Dir(at) {
			asked, _ := os.ReadFile(filepath.Join(root, at, f.asked))
			if string(bytes.TrimSpace(asked)) == f.yes {
				_ = os.WriteFile(filepath.Join(root, at, f.file), []byte(f.thaw), 0)
			}
		}
	}
}
