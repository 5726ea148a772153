// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Apply removes what an action names, after it has checked again that the whole plan of the pod still holds. gone: it
// is gone already. ErrNotRemovable: it is not, or no longer, what may be removed, and nothing was touched. Kind and
// File alone say what is removed.
func (i *Inspector) Apply(ctx context.Context, action fault.Action) (gone bool, err error) {
	inspection, rel, err := i.inspectionFor(ctx, action)
	if err != nil {
		return false, err
	}
	entry, err := inspection.confirmEntry(ctx, action)
	if err != nil {
		// The kubelet removes empty directories of volumes, too.
		if there, lookErr := inspection.pathExists(ctx, rel); lookErr == nil && !there {
			return true, nil
		}
		return false, err
	}
	err = inspection.withPodsDirectory(ctx, func(pods *sys.FD) error { return entry.removeFrom(ctx, pods, inspection.uid) })
	switch {
	case errors.Is(err, sys.ENOENT):
		return true, nil
	case errors.Is(err, sys.ENOTEMPTY), errors.Is(err, sys.EEXIST), errors.Is(err, sys.EBUSY), errors.Is(err, sys.ENOTDIR),
		errors.Is(err, sys.EISDIR), errors.Is(err, sys.EXDEV), errors.Is(err, sys.ELOOP):
		err = fmt.Errorf("%w: %w", ErrNotRemovable, err)
	}
	if err != nil {
		return false, fmt.Errorf("remove %q: %w", action.File.Path, err)
	}
	return false, nil
}

// inspectionFor reads which pod and which path in its directory an action is about.
func (i *Inspector) inspectionFor(ctx context.Context, action fault.Action) (found *inspection, rel string, err error) {
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, "", err
	}
	if action.File == nil || path.Clean(action.File.Path) != action.File.Path {
		return nil, "", fmt.Errorf("%w: the action on %q names no entry of a directory", ErrNotRemovable, action.Target)
	}
	below, ok := strings.CutPrefix(action.File.Path, node.PodsDir()+"/")
	if !ok {
		return nil, "", fmt.Errorf("%w: %q is not below %q", ErrNotRemovable, action.File.Path, node.PodsDir())
	}
	uid, rel, _ := strings.Cut(below, "/")
	if rel == "" {
		rel = "."
	}
	return &inspection{inspector: i, node: node, uid: uid, removalStarted: true}, rel, nil
}

// confirmEntry inspects the pod again, and returns the entry of the action.
func (n *inspection) confirmEntry(ctx context.Context, action fault.Action) (Entry, error) {
	survey, err := n.surveyPods(ctx)
	if err != nil {
		return Entry{}, err
	}
	if len(survey.Pods) == 0 {
		return Entry{}, fmt.Errorf("%w: %q: the API server or the container runtime knows the pod", ErrNotRemovable, action.File.Path)
	}
	p := survey.Pods[0]
	if !slices.ContainsFunc(p.Actions, func(now fault.Action) bool { return now.Kind == action.Kind && *now.File == *action.File }) {
		why := slices.Concat(p.Unproven, p.Refusals)
		if len(why) == 0 {
			why = []string{"it is another than it was, or no such thing is removed"}
		}
		return Entry{}, fmt.Errorf("%w: %q: %s", ErrNotRemovable, action.File.Path, strings.Join(why, "; "))
	}
	at := slices.IndexFunc(p.allEntries, func(e Entry) bool { return e.fileReference(p.Path) == *action.File })
	return p.allEntries[at], nil
}

// pathExists reports whether the path of a pod's directory is there.
func (n *inspection) pathExists(ctx context.Context, rel string) (there bool, err error) {
	err = n.withPodsDirectory(ctx, func(pods *sys.FD) error {
		dir, name, err := openParent(pods, n.uid, rel)
		if err != nil {
			return err
		}
		defer dir.Close()
		_, err = dir.StatAt(name, sys.StatType)
		return err
	})
	if errors.Is(err, sys.ENOENT) {
		return false, nil
	}
	// Something in the way is there.
	if errors.Is(err, sys.EXDEV) || errors.Is(err, sys.ELOOP) || errors.Is(err, sys.ENOTDIR) {
		return true, nil
	}
	return err == nil, err
}

// openParent opens the directory that has an entry of a pod's directory in it, step by step, and gives the entry's
// name.
func openParent(pods *sys.FD, uid, rel string) (dir *sys.FD, name string, err error) {
	if dir, err = pods.Dup(); err != nil || rel == "." {
		return dir, uid, err
	}
	parts := append([]string{uid}, strings.Split(rel, "/")...)
	for _, part := range parts[:len(parts)-1] {
		next, err := sys.OpenEntry(dir, part)
		dir.Close()
		if err != nil {
			return nil, "", err
		}
		dir = next
	}
	return dir, parts[len(parts)-1], nil
}

// removeFrom removes the entry if it still is the one that was looked at.
func (e Entry) removeFrom(ctx context.Context, pods *sys.FD, uid string) error {
	dir, name, err := openParent(pods, uid, e.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	st, err := e.statIn(dir, name)
	if err != nil {
		return err
	}
	if st.Ino != e.facts.Inode || !st.Changed.Equal(e.facts.Changed) {
		return fmt.Errorf("%w: it has changed", ErrNotRemovable)
	}
	if e.Kind == Directory {
		return calls.From(ctx).Did("unlinkat", uid+"/"+e.Path+" AT_REMOVEDIR", sys.RemoveDirAt(dir, name))
	}
	return calls.From(ctx).Did("unlinkat", uid+"/"+e.Path, sys.RemoveFileAt(dir, name))
}

// statIn inspects the entry that is called name in dir now. A link is never opened.
func (e Entry) statIn(dir *sys.FD, name string) (sys.Stat, error) {
	if e.Kind == KeyLink {
		return statLink(dir, name)
	}
	fd, err := sys.OpenEntry(dir, name)
	if err != nil {
		return sys.Stat{}, err
	}
	defer fd.Close()
	return fd.Stat(sys.StatType | sys.StatIno | sys.StatChanged)
}

// EntryExists reports whether the file of an action is there, or another one at its path.
func (i *Inspector) EntryExists(ctx context.Context, action fault.Action) (bool, error) {
	inspection, rel, err := i.inspectionFor(ctx, action)
	if err != nil {
		return false, err
	}
	return inspection.pathExists(ctx, rel)
}

// PodUID is the UID of the pod that an action is about.
func (i *Inspector) PodUID(ctx context.Context, action fault.Action) (string, error) {
	inspection, _, err := i.inspectionFor(ctx, action)
	if err != nil {
		return "", err
	}
	return inspection.uid, nil
}

// GoneDirectories returns which of these pods have no directory.
func (i *Inspector) GoneDirectories(ctx context.Context, uids []string) (map[string]bool, error) {
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, err
	}
	gone := map[string]bool{}
	err = (&inspection{inspector: i, node: node}).withPodsDirectory(ctx, func(pods *sys.FD) error {
		for _, uid := range uids {
			if _, err := pods.StatAt(uid, sys.StatType); errors.Is(err, sys.ENOENT) {
				gone[uid] = true
			}
		}
		return nil
	})
	return gone, err
}

// LeftVolumes lists the volumes and subPaths that are left in the directory of a pod, whichever pod that is.
func (i *Inspector) LeftVolumes(ctx context.Context, uid string) (left []string, err error) {
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return nil, err
	}
	inspection, p := &inspection{inspector: i, node: node, uid: uid}, &Pod{Place: Place{UID: uid, Path: node.PodDir(uid)}}
	if err := inspection.withPodsDirectory(ctx, func(pods *sys.FD) error { return p.listEntries(pods) }); err != nil {
		return nil, err
	}
	for _, e := range p.allEntries {
		if mustBeRemoved(e.Path) {
			left = append(left, e.Path)
		}
	}
	return left, nil
}
