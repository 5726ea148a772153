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

// tries is how often an entry that vanishes is looked up.
const tries = 3

// stat looks at what name means in the volume. It looks again where an entry vanishes, as the kubelet replaces a
// volume's content while it is in use.
func (v volume) stat(name string) (st sys.Stat, err error) {
	for range tries {
		st, err = v.statOnce(name)
		if !errors.Is(err, sys.ENOENT) {
			break
		}
	}
	return st, err
}

func (v volume) statOnce(name string) (sys.Stat, error) {
	fd, err := v.lookup(name)
	if err != nil {
		return sys.Stat{}, err
	}
	defer fd.Close()
	return fd.Stat(sys.StatIno | sys.StatType)
}

// lookup opens name in the volume. Links are followed as the kubelet follows them, which reads absolute ones as paths of
// its own: those that lead into the volume. One that leads out of it, or over another mount, gives EXDEV.
func (v volume) lookup(name string) (*sys.FD, error) {
	fd, err := sys.LookupBeneath(v.dir, name)
	if errors.Is(err, sys.EXDEV) {
		fd, _, err = v.resolve(name)
	}
	return fd, err
}

// resolve is lookup one component after the other. resolved is the path from the volume without links.
func (v volume) resolve(name string) (fd *sys.FD, resolved string, err error) {
	return sys.Walk{Root: v.dir, Beneath: true, OneMount: true, Target: v.within}.Resolve(name)
}

// within returns the target of a link as the kubelet means it: one that is absolute is given from the volume.
func (v volume) within(target string) (string, error) {
	if !path.IsAbs(target) {
		return target, nil
	}
	for _, own := range []string{v.path, v.asked} {
		if own != "" && mountinfo.Within(path.Clean(own), target) {
			return "/" + strings.TrimPrefix(target, path.Clean(own)), nil
		}
	}
	return "", sys.EXDEV
}
