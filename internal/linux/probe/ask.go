// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// asker asks about one target, in the process that can be lost.
type asker struct {
	*question
	*worker
	turn   *turn
	answer Answer
	dir    bool // the mount's root is a directory
}

const theRoot = "the mount's root"

// run finds the answer. The error is errStranded, or one that the answer contains.
func (a *asker) run() error {
	began := time.Now()
	a.turn.lookUp("lookup of the mount")
	fd, err := a.open()
	if err != nil {
		a.turn.end()
		a.answer.State, a.answer.Errno = unfound(err), errno(err)
		a.note(describeError("lookup of the mount", err))
		return err
	}
	defer fd.Close()
	a.remember(fd)
	at, there := fd, a.ask(fd, theRoot) || len(a.Below) == 0
	a.lookAgain(fd)
	if len(a.Below) > 0 {
		at, there = a.below(fd)
		defer at.Close()
	}
	a.turn.end()
	a.answer.Took = time.Since(began)
	if a.Bind && there {
		return a.bind(at)
	}
	return nil
}

// remember takes down what the kernel remembers of the mount's root.
func (a *asker) remember(fd *sys.FD) {
	st, err := fd.Stat(sys.StatType | sys.StatNlink | sys.StatIno)
	a.dir = st.IsDir()
	if err == nil && len(a.Below) == 0 {
		a.answer.Stat = Stat{Major: st.Major, Minor: st.Minor, Inode: st.Ino, Nlink: st.Nlink, Dir: st.IsDir()}
		a.turn.remember(a.answer.Stat)
	}
}

// lookAgain notes what the kernel has found out about the mount's root while that was asked. A client of NFS is told that
// a directory has no links any more first, and that the server does not know it with the next call.
func (a *asker) lookAgain(fd *sys.FD) {
	if _, err := fd.Stat(sys.StatIno); a.answer.State == Alive && givenUp(err) {
		a.refused("after asking", err)
	}
}

// open opens the mount's root, after making sure that it is the one meant.
func (a *asker) open() (fd *sys.FD, err error) {
	look := mountns.LookupForeign
	if a.Own {
		look = func(point string) (*sys.FD, error) { return mountns.Lookup(0, point) }
	}
	if errors.Is(sys.HasCachedLookup.Probe(), errors.ErrUnsupported) {
		// It would read the mount table for every question. The one who started
		// this process has just done that.
		look = sys.Lookup
	}
	err = a.inside(func() (err error) {
		fd, err = look(string(a.Point))
		return err
	})
	if err == nil {
		err = a.verifyMount(fd)
	}
	if err != nil {
		fd.Close()
		return nil, err
	}
	return fd, nil
}

// verifyMount makes sure that fd lies on the mount that was found. If the kernel
// does not say (before 5.8), the caller finds out afterwards.
func (a *asker) verifyMount(fd *sys.FD) error {
	mask, want := uint32(sys.StatUniqueID), a.Unique
	if a.Unique == 0 {
		mask, want = sys.StatMountID, uint64(a.Reused)
	}
	st, err := fd.Stat(mask)
	switch {
	case givenUp(err):
		if number, errNumber := fd.FDMountID(); errNumber == nil && number != a.Reused {
			return mount.ErrChanged
		}
		return err
	case err != nil:
		return err
	case st.Has(mask) && st.MountID != want:
		return mount.ErrChanged
	case st.RootKnown && !st.MountRoot:
		return mount.ErrNotMounted
	}
	return nil
}

// ask asks fd, which has a name for people, and reports whether it is there.
func (a *asker) ask(fd *sys.FD, what string) (there bool) {
	asked := "stat of " + what
	a.turn.ask(asked)
	st, err := fd.StatForceSync(sys.StatType | sys.StatNlink | sys.StatIno)
	absent := errors.Is(err, sys.ENOENT)
	if err != nil {
		a.refused(asked, err)
	} else {
		a.answer.State = Alive
		a.answer.Stat = Stat{Major: st.Major, Minor: st.Minor, Inode: st.Ino, Nlink: st.Nlink, Dir: st.IsDir(), Fresh: true}
	}
	if err != nil && !absent {
		return true
	}
	if !absent && !a.fileSystem(fd, "statfs of "+what) {
		return true
	}
	return a.entries(fd, what, absent) || !absent
}

// fileSystem asks about the file system as a whole.
func (a *asker) fileSystem(fd *sys.FD, asked string) (ok bool) {
	a.turn.ask(asked)
	readOnly, err := fd.FileSystemReadOnly()
	a.answer.ReadOnly = readOnly
	return err == nil || a.harmless(asked, err)
}

// entries opens a directory, and reads some of its entries if that leaves no trace.
// It also reads them if only this explains ENOENT of stat: that the server has
// evicted the client. decided is whether it failed.
func (a *asker) entries(fd *sys.FD, what string, absent bool) (decided bool) {
	if st, err := fd.Stat(sys.StatType); err != nil || !st.IsDir() {
		return false
	}
	asked := "opening of " + what
	a.turn.ask(asked)
	dir, err := fd.OpenEntries()
	if err == nil {
		defer dir.Close()
		if absent || a.Local {
			asked = "entries of " + what
			a.turn.ask(asked)
			err = dir.ReadSomeEntries()
		}
	}
	return err != nil && !a.harmless(asked, err)
}

// harmless reports whether an error after an answer to stat takes nothing away
// from it: a directory that was deleted has no entries any more, and a server
// may let others than us read it, or may not know the question. Otherwise the
// error decides.
func (a *asker) harmless(asked string, err error) bool {
	if isAny(err, sys.ENOENT, sys.ENOSYS) || stateOf(err) == Denied {
		a.note(describeError(asked, err))
		return true
	}
	a.refused(asked, err)
	return false
}

// refused notes the error that decides.
func (a *asker) refused(asked string, err error) {
	a.answer.State, a.answer.Errno = stateOf(err), errno(err)
	a.note(describeError(asked, err))
}

// below looks up the path beneath fd, if that answered, and asks what is there.
func (a *asker) below(fd *sys.FD) (at *sys.FD, there bool) {
	if a.answer.State != Alive {
		return nil, false
	}
	what := fmt.Sprintf("%q beneath it", a.Below)
	asked := "lookup of " + what
	a.answer.Stat = Stat{}
	a.turn.ask(asked)
	at, err := sys.LookupBeneath(fd, string(a.Below))
	if err == nil {
		return at, a.ask(at, what)
	}
	a.refused(asked, err)
	switch {
	case errors.Is(err, sys.EXDEV):
		a.note("it leads out of the mount")
		a.answer.State = Missing
	case isAny(err, sys.ENOTDIR, sys.ELOOP, sys.EINVAL, sys.ENAMETOOLONG):
		a.answer.State = Missing
	}
	return nil, false
}

// bind tries out whether what fd lies on can be bound elsewhere. No file system
// is asked for that.
func (a *asker) bind(fd *sys.FD) error {
	if a.noScratch != nil {
		a.note(describeError("a place for a trial bind", a.noScratch))
		return nil
	}
	dir := a.dir
	if len(a.Below) > 0 {
		dir = a.answer.Stat.Dir
	}
	var tree *sys.FD
	err := a.inside(func() (err error) { tree, err = sys.CloneTree(fd); return err })
	if err == nil {
		defer tree.Close()
		err = a.scratch.TryAttach(tree, dir)
	}
	switch {
	case err == nil:
		a.answer.Bindable = Yes
	case errors.Is(err, sys.ENOENT):
		a.answer.Bindable = No
		a.note(describeError("a trial bind was refused", err))
	default:
		a.note(describeError("no trial bind could be made", err))
	}
	return err
}

func (a *asker) note(sentence string) { a.answer.Evidence = append(a.answer.Evidence, sentence) }
