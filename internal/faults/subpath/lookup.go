// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// maxLookups is how often an entry that vanishes is looked up.
const maxLookups = 3

// statName looks name up in the volume. It looks again where an entry vanishes, as the kubelet replaces a
// volume's content while it is in use.
func (v openedVolume) statName(name string) (st sys.Stat, err error) {
	for range maxLookups {
		st, err = v.statOnce(name)
		if !errors.Is(err, sys.ENOENT) {
			break
		}
	}
	return st, err
}

func (v openedVolume) statOnce(name string) (sys.Stat, error) {
	fd, err := v.openName(name)
	if err != nil {
		return sys.Stat{}, err
	}
	defer fd.Close()
	return fd.Stat(sys.StatIno | sys.StatType)
}

// openName opens name in the volume. Links are followed as the kubelet follows them, which reads absolute ones as paths
// of its own: those that lead into the volume. One that leads out of it, or over another mount, gives EXDEV.
func (v openedVolume) openName(name string) (*sys.FD, error) {
	fd, err := sys.LookupBeneath(v.dir, name)
	if errors.Is(err, sys.EXDEV) {
		fd, _, err = v.openByComponents(name)
	}
	return fd, err
}

// openByComponents is lookup one component after the other. resolved is the path from the volume without links.
func (v openedVolume) openByComponents(name string) (fd *sys.FD, resolved string, err error) {
	return sys.Walk{Root: v.dir, Beneath: true, OneMount: true, Target: v.linkTarget}.Resolve(name)
}

// linkTarget returns the target of a link as the kubelet means it: one that is absolute is given from the volume.
func (v openedVolume) linkTarget(target string) (string, error) {
	if !path.IsAbs(target) {
		return target, nil
	}
	for _, own := range []string{v.path, v.specPath} {
		if own != "" && mountinfo.Within(path.Clean(own), target) {
			return "/" + strings.TrimPrefix(target, path.Clean(own)), nil
		}
	}
	return "", sys.EXDEV
}
