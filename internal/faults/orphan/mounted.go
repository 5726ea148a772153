// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// usesByPod are the mounts that show the directories of some pods to be in use.
type usesByPod map[string]*podUse // by UID of the pods, all of which are in it

// podUse is the first mounts that were found of one pod, and how many there are.
type podUse struct {
	examples []PodMount
	total    int
}

func (u usesByPod) addMount(uid string, m *mountns.Mount, why string) {
	of := u[uid]
	if of == nil {
		return
	}
	if of.total++; len(of.examples) < maxRecordedReasons {
		of.examples = append(of.examples, PodMount{m.Namespace.Inode, m.Point, m.Root, m.FSType, why})
	}
}

// findMounts finds, in every mount namespace of the machine, the mounts that show the directories of these pods to be
// in use. A path means something else in each namespace; so a mount is placed by the directory of the file system that
// it covers, or that it shows, and hidden mounts count as others do. Nothing is kept of all other mounts.
func (n *inspection) findMounts(uids []string) (usesByPod, mountns.Survey, error) {
	found := usesByPod{}
	for _, uid := range uids {
		found[uid] = &podUse{}
	}
	above := parentMounts{}
	room := maxParents
	survey, err := n.node.Pass().EachMount(func(b *mountns.MountBrief) bool {
		return b.Major == n.podsDirectory.major && b.Minor == n.podsDirectory.minor
	}, func(m *mountns.Mount) {
		root, _ := mountinfo.Deleted(m.Root)
		uid := firstComponent(n.podsDirectory.root, root)
		found.addMount(uid, m, "it shows what is in the directory of the pod")
		if found[uid] != nil || mountinfo.Within(root, n.podsDirectory.root) { // a pod's directory can be reached by way of it
			if room -= len(m.Root) + len(m.Point); room > 0 {
				at := m.Namespace.Key()
				if above[at] == nil {
					above[at] = map[int]*mountns.Mount{}
				}
				above[at][m.ID] = m
			}
		}
	})
	if room <= 0 {
		survey.Skipped = append(survey.Skipped, fmt.Sprintf("what is mounted on mounts that show %q, beyond the first", n.podsDirectory.root))
	}
	if err == nil && len(above) > 0 {
		var again mountns.Survey
		again, err = n.node.Pass().EachMount(func(b *mountns.MountBrief) bool {
			in := above[b.Namespace.Key()]
			return in != nil && in[b.Parent] != nil
		}, func(m *mountns.Mount) {
			parent := above[m.Namespace.Key()][m.Parent]
			if parent != nil && mountinfo.Within(parent.Point, m.Point) {
				root, _ := mountinfo.Deleted(parent.Root)
				uid := firstComponent(n.podsDirectory.root, pathInMount(parent.Point, root, m.Point)) // the parent shows the file system there
				found.addMount(uid, m, "it is mounted in the directory of the pod")
			}
		})
		if len(survey.Skipped) == 0 {
			survey.Skipped = again.Skipped
		}
	}
	if err != nil {
		return nil, survey, err
	}
	// The kubelet's own table, by its paths: what the other way found is found again.
	for _, m := range n.table.Mounts() {
		of := found[firstComponent(n.node.PodsDir(), m.Point)]
		if of != nil && !slices.ContainsFunc(of.examples, func(f PodMount) bool { return f.Point == m.Point }) {
			found.addMount(firstComponent(n.node.PodsDir(), m.Point), &mountns.Mount{Mount: m, Namespace: n.host},
				"the kubelet's mount namespace has it in the directory of the pod")
		}
	}
	for _, of := range found {
		slices.SortStableFunc(of.examples, func(a, b PodMount) int { return cmp.Compare(a.Namespace, b.Namespace) })
	}
	return found, survey, nil
}

// maxParents bounds the room for the texts of parents, in bytes.
const maxParents = 16 << 20

// parentMounts are the mounts on which something may be mounted in the directory of a pod, by namespace and number.
type parentMounts map[mountns.Key]map[int]*mountns.Mount

// firstComponent is the first name of a path below dir; empty if it is not below.
func firstComponent(dir, name string) string {
	below, _ := mountinfo.Below(dir, name)
	uid, _, _ := strings.Cut(below, "/")
	return uid
}
