// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

const (
	maxLinks = 40   // how many symbolic links the kernel follows in one path
	maxSteps = 1024 // how many components of paths are looked up for one
	tries    = 3    // how often an entry that vanishes is looked up
)

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
	fd, err := beneath(v.dir, name)
	if !errors.Is(err, sys.EXDEV) {
		return fd, err
	}
	resolved, err := v.resolve(name)
	if err != nil {
		return nil, err
	}
	return beneath(v.dir, resolved)
}

// beneath is sys.LookupBeneath; tests play a kernel that does not have it.
var beneath = sys.LookupBeneath

// resolve replaces all links in name. EXDEV: one leads out of the volume.
func (v volume) resolve(name string) (string, error) {
	steps := 0
	for range maxLinks {
		next, err := v.replaceLink(name, &steps)
		if err != nil || next == "" {
			return name, err
		}
		name = next
	}
	return "", sys.ELOOP
}

// replaceLink puts the target of the first link in name in its place, and gives nothing where there is none.
func (v volume) replaceLink(name string, steps *int) (string, error) {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		if *steps++; *steps > maxSteps {
			return "", sys.ELOOP
		}
		before := strings.Join(parts[:i], "/")
		target, err := v.readLink(before, part)
		if errors.Is(err, sys.EINVAL) { // no link
			continue
		}
		if err == nil {
			target, err = v.within(target)
		}
		if err != nil {
			return "", err
		}
		if strings.HasPrefix(target, "/") {
			before = ""
		}
		return "./" + before + "/" + target + "/" + strings.Join(parts[i+1:], "/"), nil
	}
	return "", nil
}

// within gives the target of a link as the kubelet means it: one that is absolute is given relative to the volume, with
// a slash before it.
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

// readLink reads the link called name in a directory of the volume. EINVAL: it is none.
func (v volume) readLink(dir, name string) (string, error) {
	at, err := beneath(v.dir, "./"+dir)
	if err != nil {
		return "", err
	}
	defer at.Close()
	if name == "" || name == "." || name == ".." {
		return "", sys.EINVAL
	}
	return linkAt(at, name)
}

// linkAt reads the link called name in the directory at, through the process' own /proc.
func linkAt(at *sys.FD, name string) (string, error) {
	return sys.ReadlinkProc(sys.ThreadProc("fd/" + at.String() + "/" + name))
}

// lookupLinked opens a path of the namespace, and follows the links in it. resolved has none. Links on file systems that
// may hang are not read.
func lookupLinked(name string) (fd *sys.FD, resolved string, err error) {
	done, rest := "/", name
	if !path.IsAbs(name) {
		return nil, "", sys.EINVAL
	}
	for range maxLinks {
		fd, err = mountns.Lookup(0, path.Join(done, rest))
		if !errors.Is(err, sys.ELOOP) {
			return fd, path.Join(done, rest), err
		}
		if done, rest, err = followFirst(done, rest); err != nil {
			return nil, "", err
		}
	}
	return nil, "", sys.ELOOP
}

// followFirst goes down rest from done, which has no link in it, until the first link, and follows that.
func followFirst(done, rest string) (string, string, error) {
	for rest != "" {
		var step string
		step, rest, _ = strings.Cut(rest, "/")
		next := path.Join(done, step)
		if next == done || step == ".." {
			done = next
			continue
		}
		target, err := hostLink(done, step)
		switch {
		case errors.Is(err, sys.EINVAL): // no link
			done = next
		case err != nil:
			return "", "", err
		case path.IsAbs(target):
			return "/", target + "/" + rest, nil
		default:
			return done, target + "/" + rest, nil
		}
	}
	return done, rest, nil
}

// hostLink reads the link called name in dir, a path without links.
func hostLink(dir, name string) (string, error) {
	at, err := mountns.Lookup(0, dir)
	if err != nil {
		return "", err
	}
	defer at.Close()
	if kind, err := typeOf(at); err != nil || mountns.MayHang(kind) {
		return "", mountns.ErrMayBlock
	}
	return linkAt(at, name)
}
