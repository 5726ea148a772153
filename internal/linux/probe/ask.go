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

// targetProbe asks about one target, in the process that can be lost.
type targetProbe struct {
	question  *question
	worker    *worker
	turn      *probeTurn
	answer    Answer
	rootIsDir bool // the mount's root is a directory
}

const rootName = "the mount's root"

// probeTarget finds the answer. The error is errStranded, or an error that the answer contains.
func (p *targetProbe) probeTarget() error {
	began := time.Now()
	p.turn.askQuestion("lookup of the mount")
	fd, err := p.openMount()
	if err != nil {
		p.turn.finish()
		p.answer.State, p.answer.Errno = stateOfFindError(err), errnoOf(err)
		p.addEvidence(describeError("lookup of the mount", err))
		return err
	}
	defer fd.Close()
	st, err := fd.Stat(sys.StatType | sys.StatNlink | sys.StatIno) // from the cache of the kernel
	p.rootIsDir = st.IsDir()
	if err == nil && len(p.question.Below) == 0 {
		p.answer.Stat = Stat{Major: st.Major, Minor: st.Minor, Inode: st.Ino, Nlink: st.Nlink, Dir: st.IsDir()}
		p.turn.reachMount(p.answer.Stat)
	}
	at, there := fd, p.askStat(fd, rootName) || len(p.question.Below) == 0
	// The question may have changed the cache. A server of NFS first reports that a directory has no links any more, and
	// only with the next call that it does not know the directory.
	if _, err := fd.Stat(sys.StatIno); p.answer.State == Alive && clientGaveUp(err) {
		p.noteDecidingError("after asking", err)
	}
	// A file system of the kernel's own that has answered may still not take writes. An error shows nothing about the file
	// system: who may write is not the question.
	if p.answer.State == Alive && p.question.Local && !p.answer.ReadOnly && p.rootIsDir {
		p.turn.askWrite("a write to the mount's root, which changes nothing")
		_ = fd.AskWrite()
		p.turn.endWrite()
	}
	if len(p.question.Below) > 0 {
		at, there = p.askBelow(fd)
		defer at.Close()
	}
	p.turn.finish()
	p.answer.Took = time.Since(began)
	if p.question.Bind && there {
		return p.tryBind(at)
	}
	return nil
}

// openMount opens the mount's root, after making sure that it is the one meant. If the kernel does not say on which mount
// an open file lies (before 5.8), the caller finds out afterwards.
func (p *targetProbe) openMount() (fd *sys.FD, err error) {
	look := mountns.LookupForeign
	if p.question.Own {
		look = func(point string) (*sys.FD, error) { return mountns.Lookup(0, point) }
	}
	if errors.Is(sys.HasCachedLookup.Probe(), errors.ErrUnsupported) {
		// It would read the mount table for every question. The parent of this process has just read it.
		look = sys.Lookup
	}
	err = p.question.inNamespace(func() (err error) {
		fd, err = look(string(p.question.Point))
		return err
	})
	if err != nil {
		return nil, err
	}
	mask, want := uint32(sys.StatUniqueID), p.question.Unique
	if p.question.Unique == 0 {
		mask, want = sys.StatMountID, uint64(p.question.Reused)
	}
	stat, err := fd.Stat(mask)
	switch {
	case clientGaveUp(err):
		if number, errNumber := fd.FDMountID(); errNumber == nil && number != p.question.Reused {
			err = mount.ErrChanged
		}
	case err != nil:
	case stat.Has(mask) && stat.MountID != want:
		err = mount.ErrChanged
	case stat.RootKnown && !stat.MountRoot:
		err = mount.ErrNotMounted
	}
	if err != nil {
		fd.Close()
		return nil, err
	}
	return fd, nil
}

// askStat asks fd, which has a name for people, and reports whether it is there.
func (p *targetProbe) askStat(fd *sys.FD, what string) (there bool) {
	asked := "stat of " + what
	p.turn.askQuestion(asked)
	st, err := fd.StatForceSync(sys.StatType | sys.StatNlink | sys.StatIno)
	absent := errors.Is(err, sys.ENOENT)
	if err != nil {
		p.noteDecidingError(asked, err)
	} else {
		p.answer.State = Alive
		p.answer.Stat = Stat{Major: st.Major, Minor: st.Minor, Inode: st.Ino, Nlink: st.Nlink, Dir: st.IsDir(), Fresh: true}
	}
	if err != nil && !absent {
		return true
	}
	if !absent {
		asked = "statfs of " + what
		p.turn.askQuestion(asked)
		p.answer.ReadOnly, err = fd.FileSystemReadOnly()
		if err != nil && !p.ignorableError(asked, err) {
			return true
		}
	}
	return p.readEntries(fd, what, absent) || !absent
}

// readEntries opens a directory, and reads some of its entries if that leaves no trace.
// It also reads them if only this explains ENOENT of stat: that the server has
// evicted the client. decided is whether it failed.
func (p *targetProbe) readEntries(fd *sys.FD, what string, absent bool) (decided bool) {
	if st, err := fd.Stat(sys.StatType); err != nil || !st.IsDir() {
		return false
	}
	asked := "opening of " + what
	p.turn.askQuestion(asked)
	dir, err := fd.OpenEntries()
	if err == nil {
		defer dir.Close()
		if absent || p.question.Local {
			asked = "entries of " + what
			p.turn.askQuestion(asked)
			err = dir.ReadSomeEntries()
		}
	}
	return err != nil && !p.ignorableError(asked, err)
}

// ignorableError reports whether an error after an answer to stat takes nothing away
// from it: a directory that was deleted has no entries any more, and a server
// may let others than us read it, or may not know the question. Otherwise the
// error decides.
func (p *targetProbe) ignorableError(asked string, err error) bool {
	if isAnyError(err, sys.ENOENT, sys.ENOSYS) || stateOf(err) == Denied {
		p.addEvidence(describeError(asked, err))
		return true
	}
	p.noteDecidingError(asked, err)
	return false
}

// noteDecidingError notes the error that decides.
func (p *targetProbe) noteDecidingError(asked string, err error) {
	p.answer.State, p.answer.Errno = stateOf(err), errnoOf(err)
	p.addEvidence(describeError(asked, err))
}

// askBelow looks up the path beneath fd, if fd answered, and asks the file there.
func (p *targetProbe) askBelow(fd *sys.FD) (at *sys.FD, there bool) {
	if p.answer.State != Alive {
		return nil, false
	}
	what := fmt.Sprintf("%q beneath it", p.question.Below)
	asked := "lookup of " + what
	p.answer.Stat = Stat{}
	p.turn.askQuestion(asked)
	at, err := sys.LookupBeneath(fd, string(p.question.Below))
	if err == nil {
		return at, p.askStat(at, what)
	}
	p.noteDecidingError(asked, err)
	switch {
	case errors.Is(err, sys.EXDEV):
		p.addEvidence("it leads out of the mount")
		p.answer.State = Missing
	case isAnyError(err, sys.ENOTDIR, sys.ELOOP, sys.EINVAL, sys.ENAMETOOLONG):
		p.answer.State = Missing
	}
	return nil, false
}

// tryBind tests whether the file of fd can be bound elsewhere. It sends no request to a file system.
func (p *targetProbe) tryBind(fd *sys.FD) error {
	if p.worker.scratchError != nil {
		p.addEvidence(describeError("a place for a trial bind", p.worker.scratchError))
		return nil
	}
	dir := p.rootIsDir
	if len(p.question.Below) > 0 {
		dir = p.answer.Stat.Dir
	}
	var tree *sys.FD
	err := p.question.inNamespace(func() (err error) { tree, err = sys.CloneTree(fd); return err })
	if err == nil {
		defer tree.Close()
		err = p.worker.scratch.TryAttach(tree, dir)
	}
	switch {
	case err == nil:
		p.answer.Bindable = Yes
	case errors.Is(err, sys.ENOENT):
		p.answer.Bindable = No
		p.addEvidence(describeError("a trial bind was refused", err))
	default:
		p.addEvidence(describeError("no trial bind could be made", err))
	}
	return err
}

func (p *targetProbe) addEvidence(sentence string) {
	p.answer.Evidence = append(p.answer.Evidence, sentence)
}
