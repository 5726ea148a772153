// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Walk resolves a path: by openat2 if the kernel has it, a seccomp filter allows it and
// neither function is set, and one component after the other otherwise. It opens with
// O_PATH, which runs no driver. Links of /proc that are no paths ("/proc/123/root") give
// ELOOP. It waits for the file systems on the way.
//
// Without openat2 it goes on from descriptors alone, up as well as down, so that no rename
// leads it elsewhere. A path through more than 256 directories gives ENAMETOOLONG there.
type Walk struct {
	// Root is where the path begins. Absolute links and ".." do not leave it. nil: the
	// root directory of the calling thread, and the path is absolute (EINVAL).
	Root *FD
	// NoLinks refuses symbolic links: ELOOP.
	NoLinks bool
	// Beneath refuses paths and links that lead out of Root, absolute ones among them.
	// OneMount refuses another mount than that of Root. Both give EXDEV.
	Beneath, OneMount bool
	// Check is called with each directory, link and file, from Root on, before any other request. name is its path from
	// Root, without links on the way. An error ends the walk.
	Check func(name string, at *FD) error
	// Target returns the path that the target of a link stands for; an absolute one begins
	// at Root. An error ends the walk. nil: the target itself.
	Target func(target string) (string, error)
}

const (
	maxLinks      = 40   // symbolic links in one path, as in the kernel
	maxDepth      = 256  // directories, each of which takes a descriptor
	maxComponents = 4096 // of a path and of all links in it
)

// Open opens the file at a path. The caller closes it.
func (w Walk) Open(name string) (*FD, error) {
	if w.Check == nil && w.Target == nil {
		dir, resolve := unix.AT_FDCWD, uint64(unix.RESOLVE_NO_MAGICLINKS)
		switch {
		case w.Root != nil:
			dir = w.Root.number
		case !strings.HasPrefix(name, "/"):
			return nil, unix.EINVAL
		}
		if w.NoLinks {
			resolve |= unix.RESOLVE_NO_SYMLINKS
		}
		if w.OneMount {
			resolve |= unix.RESOLVE_NO_XDEV
		}
		if w.Beneath {
			resolve |= unix.RESOLVE_BENEATH
		} else if w.Root != nil {
			resolve |= unix.RESOLVE_IN_ROOT
		}
		fd, err := openat2(dir, name, resolve)
		// Without openat2 (before 5.6) this is ENOSYS. Seccomp filters that are older answer EPERM for it, which opening
		// with O_PATH itself never does.
		if err != unix.ENOSYS && err != unix.EPERM && err != unix.EAGAIN {
			return fd, err
		}
	}
	fd, _, err := w.Resolve(name)
	return fd, err
}

// Resolve is Open one component after the other. resolved is the path from Root without
// links; after an error, the path with those links replaced that were followed until then.
func (w Walk) Resolve(name string) (fd *FD, resolved string, err error) {
	s := walkState{Walk: w}
	if err := s.begin(name); err != nil {
		return nil, name, err
	}
	defer s.truncate(0)
	for rest := name; rest != ""; {
		step, left := ".", strings.TrimLeft(rest, "/") // slashes are a component ".", too
		if left == rest {
			step, left = rest, ""
			if i := strings.IndexByte(rest, '/'); i >= 0 {
				step, left = rest[:i], rest[i:]
			}
		}
		after, err := s.step(step, left)
		if err != nil {
			return nil, path.Join(s.name(), step, left), err
		}
		rest = after
	}
	last := len(s.dirs) - 1
	fd, resolved = s.dirs[last], s.name()
	s.dirs = s.dirs[:last]
	return fd, resolved, nil
}

// walkState is how far a walk has come: the directories from the root on, the last of
// which may be another file, and the names of all but the first.
type walkState struct {
	Walk
	dirs       []*FD
	names      []string
	file       bool // the last of dirs is no directory
	mount      int  // that of the root, if only one is allowed
	links      int
	components int
}

// begin opens the root.
func (s *walkState) begin(name string) error {
	dir, at := unix.AT_FDCWD, "/"
	switch {
	case name == "":
		return unix.ENOENT
	case len(name) >= unix.PathMax:
		return unix.ENAMETOOLONG
	case s.Beneath && strings.HasPrefix(name, "/"):
		return unix.EXDEV
	case s.Root != nil:
		dir, at = s.Root.number, "."
	case !strings.HasPrefix(name, "/"):
		return unix.EINVAL
	}
	top, err := openat(dir, at, pathFlags|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	s.dirs = []*FD{top}
	if s.OneMount {
		s.mount, err = top.mountID()
	}
	if err == nil && s.Check != nil {
		err = s.Check("/", top)
	}
	if err != nil {
		s.truncate(0)
	}
	return err
}

func (s *walkState) last() *FD { return s.dirs[len(s.dirs)-1] }

func (s *walkState) name() string { return "/" + strings.Join(s.names, "/") }

// truncate goes up until so many directories are left.
func (s *walkState) truncate(to int) {
	if to == len(s.dirs) {
		return
	}
	for _, fd := range s.dirs[to:] {
		fd.Close()
	}
	s.dirs = slices.Delete(s.dirs, to, len(s.dirs))
	s.names, s.file = s.names[:max(0, to-1)], false
}

// step goes on by one component, and returns the rest of the path.
func (s *walkState) step(name, rest string) (string, error) {
	if s.components++; s.components > maxComponents {
		return rest, unix.ELOOP
	}
	if s.file {
		return rest, unix.ENOTDIR
	}
	switch name {
	case ".":
		return rest, nil
	case "..":
		if s.Beneath && len(s.dirs) == 1 {
			return rest, unix.EXDEV
		}
		s.truncate(max(1, len(s.dirs)-1))
		return rest, nil
	}
	next, err := openat(s.last().number, name, pathFlags)
	if err != nil {
		return rest, err
	}
	stat, err := s.examine(name, next)
	if err == nil && stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		defer next.Close()
		return s.follow(next, stat, rest)
	}
	if err == nil && len(s.dirs) == maxDepth {
		err = unix.ENAMETOOLONG
	}
	if err != nil {
		next.Close()
		return rest, err
	}
	s.dirs, s.names, s.file = append(s.dirs, next), append(s.names, name), !stat.IsDir()
	return rest, nil
}

// examine makes sure that a file of the last directory may get requests, and returns its type.
func (s *walkState) examine(name string, fd *FD) (Stat, error) {
	if s.OneMount {
		mount, err := fd.mountID()
		if err == nil && mount != s.mount {
			err = unix.EXDEV
		}
		if err != nil {
			return Stat{}, err
		}
	}
	if s.Check != nil {
		if err := s.Check(path.Join(s.name(), name), fd); err != nil {
			return Stat{}, err
		}
	}
	return fd.Stat(StatType)
}

// follow puts the target of a link in the last directory in front of the rest of the path. All links of procfs may lead elsewhere than
// their text, but for those in its root, such as /proc/self: they are refused.
func (s *walkState) follow(link *FD, st Stat, rest string) (string, error) {
	if s.links++; s.NoLinks || s.links > maxLinks {
		return rest, unix.ELOOP
	}
	const procRootInode = 1
	if st.Major == 0 { // procfs has no block device
		fs, err := link.statfs()
		if err == nil && fs.Type == unix.PROC_SUPER_MAGIC {
			var dir Stat
			dir, err = s.last().Stat(StatIno)
			if err == nil && (dir.Ino != procRootInode || dir.Major != st.Major || dir.Minor != st.Minor) {
				err = unix.ELOOP
			}
		}
		if err != nil {
			return rest, err
		}
	}
	target, err := link.ReadlinkAt("")
	if err == nil && s.Target != nil {
		target, err = s.Target(target)
	}
	if err != nil {
		return rest, err
	}
	if strings.HasPrefix(target, "/") {
		if s.Beneath && s.Target == nil {
			return rest, unix.EXDEV
		}
		s.truncate(1)
	}
	return target + rest, nil
}

// ReadlinkAt reads the symbolic link called name in directory f, or f itself if name is empty, and follows nothing.
func (f *FD) ReadlinkAt(name string) (string, error) {
	var buf [unix.PathMax]byte
	n, err := retryInterrupted(func() (int, error) { return unix.Readlinkat(f.number, name, buf[:]) })
	switch {
	case err != nil:
		return "", err
	case n == len(buf):
		return "", unix.ENAMETOOLONG
	}
	return string(buf[:n]), nil
}

// OpenRoot opens a directory with O_PATH, as the kernel finds it: links of /proc are
// followed, too ("/proc/123/root"). It waits for the file systems on the way.
func OpenRoot(name string) (*FD, error) {
	return openat(unix.AT_FDCWD, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
}
