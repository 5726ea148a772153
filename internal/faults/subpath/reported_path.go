// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

const (
	// maxReport bounds a message in which a path is looked for, maxPath a path, in bytes.
	maxReport = 8 << 10
	maxPath   = 4095
)

var (
	// reportReasons are the reasons to wait whose message the kubelet itself writes, before a runtime has a say.
	reportReasons = []string{"CreateContainerConfigError", "ContainerCreating", "PodInitializing"}
	// pathReport is a whole message of the kubelet about one path, and reportOfKind one about the kind of the entry there. Few containers wait
	// for a path, so they are compiled at their first use.
	reportPrefix = `^(?:Error: )?(?:Mount[A-Za-z.]+ (?:initialization )?failed for volume "[^"]{1,253}" ?: )?`
	pathReport   = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(reportPrefix + `(?:path "([^"]+)" does not exist|(?:l?stat|open) (.+): no such file or directory)$`)
	})
	reportOfKind = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(reportPrefix + `hostPath type check failed: (.+) is not a (directory|file|socket file|character device|block device)$`)
	})
	reportedKind = map[string]pathKind{
		"directory": directoryKind, "file": fileKind, "socket file": socketKind, "character device": characterDevice, "block device": blockDevice,
	}
)

// ClaimPaths reads where the PersistentVolumes of type hostPath or local lie that claims of a pod are bound to, by their names. A claim
// that cannot be read has none.
type ClaimPaths func(ctx context.Context, pod *corev1.Pod) map[string]string

// readClaims reads the paths of the pod's claims if a container mounts one, and waits for a path that is not otherwise the pod's own.
func (p *podSources) readClaims(ctx context.Context, read ClaimPaths, containers []string) {
	if read == nil || !slices.ContainsFunc(containers, func(name string) bool {
		c := containerSources{podSources: *p, name: name}
		c.status, _ = podinfo.ContainerStatus(p.pod, name)
		waits, _, ok := c.reportedPath()
		_, _, _, own := c.ownPath(waits)
		return ok && !own && slices.ContainsFunc(podinfo.VolumesOf(p.pod, name), podinfo.FromClaim)
	}) {
		return
	}
	p.claims = read(ctx, p.pod)
}

// reportedPaths looks up the path that the kubelet itself gives as the reason why the container waits. The message chooses a
// path only among those that are the pod's own: one of its hostPaths, a path in the pod's directory, or that of the
// PersistentVolume of a claim. The lookup alone proves the fault. before is what was found already.
func (c containerSources) reportedPaths(before []fault.Finding) []fault.Finding {
	name, kind, ok := c.reportedPath()
	if !ok {
		return nil
	}
	name, volume, whose, ok := c.ownPath(name)
	if !ok || slices.ContainsFunc(before, func(f fault.Finding) bool { return volume != "" && f.Volume == volume }) {
		return nil
	}
	switch at, err := c.paths.statReported(name); {
	case errors.Is(err, sys.ENOENT), errors.Is(err, sys.ENOTDIR):
		return []fault.Finding{c.hostPathFinding(fault.MissingBindSource, volume, "", fmt.Sprintf("nothing is at %q, which the kubelet looks for", name), whose)}
	case err == nil && kind.matches != nil && !kind.matches(at):
		return []fault.Finding{c.hostPathFinding(fault.SourceTypeMismatch, volume, "",
			fmt.Sprintf("%q is a %s, and the kubelet takes a %s only", name, describeKind(at), kind.noun), whose)}
	}
	return nil
}

// reportedPath is the path in the kubelet's reason why the container waits, and the kind of file that it demands there, if it says so. The path is
// absolute. It is not the root, has no "..", and no control character.
func (c containerSources) reportedPath() (name string, kind pathKind, ok bool) {
	w := c.status.State.Waiting
	if w == nil || !slices.Contains(reportReasons, w.Reason) || len(w.Message) > maxReport {
		return "", pathKind{}, false
	}
	if m := reportOfKind().FindStringSubmatch(w.Message); m != nil {
		name, kind = m[1], reportedKind[m[2]]
	} else if m := pathReport().FindStringSubmatch(w.Message); m != nil {
		name = m[1] + m[2]
	}
	name = strings.TrimSuffix(name, "/")
	ok = path.IsAbs(name) && path.Clean(name) == name && len(name) <= maxPath && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
	return name, kind, ok
}

// ownPath reports whether a path is the pod's own, where it lies for this kubelet, of which volume it is if that is known,
// and how that is known, in words.
func (c containerSources) ownPath(name string) (own, volume, whose string, ok bool) {
	volumes := podinfo.VolumesOf(c.pod, c.name)
	for _, v := range volumes {
		if v.HostPath != nil && path.Clean(v.HostPath.Path) == name {
			return name, v.Name, fmt.Sprintf("it is the path of volume %q", v.Name), true
		}
	}
	uid := string(c.pod.UID)
	if _, rest, below := strings.Cut(name, "/pods/"+uid+"/"); below { // however the kubelet spells its root
		own = path.Join(c.node.PodDir(uid), rest)
		v, _ := c.node.ParseVolume(own)
		return own, v.Name, "it is in the directory of the pod", true
	}
	claims := slices.DeleteFunc(volumes, func(v corev1.Volume) bool { return !podinfo.FromClaim(v) })
	for _, pv := range slices.Sorted(maps.Keys(c.claims)) {
		if len(claims) == 0 || !mountinfo.Within(path.Clean(c.claims[pv]), name) {
			continue
		}
		if len(claims) == 1 {
			volume = claims[0].Name
		}
		return name, volume, fmt.Sprintf("it is in PersistentVolume %q, which lies at %q, and a claim of the pod is bound to that", pv, c.claims[pv]), true
	}
	return "", "", "", false
}
