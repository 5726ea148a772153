// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
)

// PointsAt tells whether the message points at a subPath of that container, and at which, in words. Paths of subPath
// binds in it decide, where it has any: one of them must be of this container of this pod. Else it is enough that the
// message is worded like those about subPaths.
func (h Hint) PointsAt(pod *corev1.Pod, container string) (what string, ok bool) {
	named := targets(h.Text)
	if len(named) == 0 {
		return "a subPath", slices.Equal(h.Codes, []fault.Code{fault.StaleSubPath})
	}
	if !slices.Contains(h.Codes, fault.StaleSubPath) && !slices.Contains(h.Codes, fault.MissingBindSource) {
		return "", false
	}
	for _, w := range Wants(pod) {
		for _, t := range named {
			ours := t.podUID == string(pod.UID) && t.container == container && w.Container == container && t.index == strconv.Itoa(w.Index)
			if ours && (t.volume == w.Volume.Name || renamed(w.Volume)) {
				return fmt.Sprintf("the bind of volumeMounts[%d]", w.Index), true
			}
		}
	}
	return "", false
}

// target is the path of a subPath bind in a text.
type target struct {
	podUID, volume, container, index string
}

// maxTargets bounds how many paths are read from one text.
const maxTargets = 64

// targets finds the paths of subPath binds in a text, however it is quoted: UID/volume-subpaths/VOLUME/CONTAINER/INDEX.
// Names of volumes and containers have only letters, digits, hyphens and dots in them.
func targets(text string) (found []target) {
	for len(found) < maxTargets {
		before, after, ok := strings.Cut(text, "/volume-subpaths/")
		if !ok {
			return found
		}
		text = after
		t := target{podUID: before[strings.LastIndexByte(before, '/')+1:]}
		var last string
		t.volume, last, _ = strings.Cut(after, "/")
		t.container, last, _ = strings.Cut(last, "/")
		t.index = last[:len(last)-len(strings.TrimLeft(last, "0123456789"))]
		found = append(found, t)
	}
	return found
}
