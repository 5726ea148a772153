// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"fmt"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// planRemoval says what is removed of a pod's directory, and in which order, or why nothing is. If volumes or subPaths
// are left it is these; then a kubelet removes the rest. A directory in which none is left, and which stays all the
// same, is removed itself, as long as nothing but directories is in it.
func (p *Pod) planRemoval(looked *mountns.Survey) {
	rest := len(p.Volumes) == 0 && !p.SubPaths
	for _, e := range p.allEntries {
		switch e.Kind {
		case MountPoint:
			p.addRefusal(fault.InUse, fmt.Sprintf("%q stays: %s", e.Path, e.Reason))
		case Other:
			p.addRefusal(fault.HasData, fmt.Sprintf("%q stays: %s", e.Path, e.Reason))
		case Record:
			if e.facts.NeededReason != "" {
				reason := fault.AwaitsDriver
				if e.facts.Record == nil { // no driver can be called with it
					reason = fault.InUse
				}
				p.addRefusal(reason, fmt.Sprintf("%q stays: %s", e.Path, e.facts.NeededReason))
			}
		case KubeletFile:
			if rest {
				p.addRefusal(fault.InUse, fmt.Sprintf("no volume is left in it, and the kubelet's own file %q is for the kubelet to remove", e.Path))
			}
		}
	}
	if !p.Orphaned || len(p.Refusals) > 0 {
		return
	}
	proof := fmt.Sprintf("neither the API server nor the container runtime knows a pod of that UID, and none of %d mounts in %d mount "+
		"namespaces lies in its directory or shows it", looked.Mounts, looked.Namespaces)
	serves := []fault.Key{p.Finding().Key()}
	for _, e := range p.allEntries {
		if rest || mustBeRemoved(e.Path) {
			action := e.removalAction(p, proof)
			action.For = serves
			p.Actions = append(p.Actions, action)
		}
	}
}

// mustBeRemoved reports whether an entry has to go for the kubelet to remove the rest: the directories of volumes, and
// that of the subPaths.
func mustBeRemoved(rel string) bool {
	parts := strings.Split(rel, "/")
	return parts[0] == volumesDir && len(parts) > 2 || parts[0] == subPathsDir
}

func (e Entry) removalAction(p *Pod, proof string) fault.Action {
	ref := e.fileReference(p.Path)
	action := fault.Action{Kind: fault.RemoveFile, Target: ref.Path, File: &ref, Lossless: true}
	switch {
	case e.Kind == Record && e.facts.Record == nil:
		action.Safety = proof + "; it is where the kubelet has its record of this volume, and nothing is mounted on its directory"
		action.Loss = "nothing: the file is empty"
	case e.Kind == Record:
		action.Safety = proof + "; it is the kubelet's record of this volume, and nothing is mounted on its directory"
		action.Loss = fmt.Sprintf("nothing: it says that this was volume handle %q of driver %q", e.facts.Record.Handle, e.facts.Record.Driver)
	case e.Kind == SubPath:
		action.Safety, action.Loss = proof+"; it is the file that the kubelet had bound a subPath on", "nothing: the file is empty"
	case e.Kind == KeyFile:
		action.Safety = proof + "; it is the kubelet's copy of a key, in a volume that containers cannot write to"
		action.Loss = "nothing: the ConfigMap, Secret or pod that it was copied from is not touched"
	case e.Kind == KeyLink:
		action.Safety, action.Loss = proof+"; it is the kubelet's link to its copy of a key", "nothing: a link has no content"
	default:
		action.Kind = fault.RemoveDirectory
		action.Safety, action.Loss = proof+"; the kernel removes no directory that has something in it", "nothing: the directory is empty"
	}
	return action
}

// fileReference names an entry so that one which has taken its place since is not taken for it.
func (e Entry) fileReference(dir string) fault.File {
	ref := fault.File{Path: path.Join(dir, e.Path), Inode: e.facts.Inode}
	if !e.facts.Made.IsZero() {
		ref.Made = e.facts.Made.UnixNano()
	}
	return ref
}
