// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package probe_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// askOne asks about one target and logs the answer.
func askOne(t *testing.T, p *probe.Prober, target probe.Target) probe.Answer {
	t.Helper()
	before := tableText(t, target.Point)
	answers, err := p.Ask(t.Context(), []probe.Target{target})
	must(t, err)
	if len(answers) != 1 {
		t.Fatalf("%d answers", len(answers))
	}
	if after := tableText(t, target.Point); before != after {
		t.Errorf("the table was\n%sand is\n%s", before, after)
	}
	t.Logf("%+v", answers[0])
	return answers[0]
}

// hasEvidence reports whether a sentence of evidence contains the text.
func hasEvidence(a probe.Answer, text string) bool {
	return slices.ContainsFunc(a.Evidence, func(s string) bool { return strings.Contains(s, text) })
}

// withSubtype is the type of a file system as the kernel gives it: one that has
// statmount without sources (6.8 to 6.12) leaves out the subtype as well.
func withSubtype(fsType string) string {
	if sys.HasStatmount.Probe() == nil && sys.HasStatmountSource.Probe() != nil {
		fsType, _, _ = strings.Cut(fsType, ".")
	}
	return fsType
}

// TestStates asks every kind of server that answers in the end, and every kind
// that does not.
func TestStates(t *testing.T) {
	t.Parallel()
	for manners, want := range map[string]struct {
		state probe.State
		errno sys.Errno
		says  string
	}{
		"":           {state: probe.Alive},
		"errno 116":  {probe.Stale, sys.ESTALE, "stat of the mount's root: stale"},
		"errno 13":   {probe.Denied, sys.EACCES, "stat of the mount's root: permission denied"},
		"errno 5":    {probe.Broken, sys.EIO, "stat of the mount's root: input/output error"},
		"errno 112":  {probe.Broken, 112, "stat of the mount's root: host is down"},
		"errno 107":  {probe.Disconnected, sys.ENOTCONN, "stat of the mount's root: transport endpoint is not connected"},
		"errno 2":    {probe.Missing, sys.ENOENT, "stat of the mount's root: no such file or directory"},
		"wrong":      {probe.Broken, sys.EIO, "stat of the mount's root: input/output error"},
		"evicted":    {probe.Disconnected, sys.ESHUTDOWN, "of the mount's root: cannot send after transport endpoint shutdown"},
		"late 300ms": {state: probe.Alive},
		"late 1m":    {state: probe.Hung, says: "stat of the mount's root: no answer within"},
		"hang":       {state: probe.Hung, says: "1 request waits unanswered"},
	} {
		t.Run(manners, func(t *testing.T) {
			t.Parallel()
			s := mountFUSE(t, manners)
			p := &probe.Prober{Deadline: deadline}
			began := time.Now()
			a := askOne(t, p, probe.Target{Point: s.dirs[0], Bind: true})
			if took := time.Since(began); took > 2*deadline+kerneltest.Patience(20*time.Second) {
				t.Errorf("took %v", took)
			}
			if a.State != want.state || a.Errno != want.errno || want.says != "" && !hasEvidence(a, want.says) {
				t.Errorf("want %+v", want)
			}
			bindable := probe.Yes
			if want.state == probe.Hung {
				bindable = probe.Unknown
			}
			if a.Bindable != bindable || a.FSType != withSubtype("fuse.kubediag") || a.Deleted || a.ID.Point != s.dirs[0] {
				t.Errorf("bindable %q, type %q, deleted %v, %v", a.Bindable, a.FSType, a.Deleted, a.ID)
			}
			if manners == "wrong" { // the kernel wants to know nothing of it any more
				if again := askOne(t, p, probe.Target{Point: s.dirs[0], ID: a.ID}); again.State != probe.Broken || again.Errno != sys.EIO {
					t.Errorf("want the same again")
				}
				other := a.ID
				other.MountInfoID++
				if again := askOne(t, p, probe.Target{Point: s.dirs[0], ID: other}); again.State != probe.Gone {
					t.Errorf("want it to be another")
				}
			}
			if fresh := a.Stat.Fresh; fresh != (a.State == probe.Alive) || !a.Stat.Dir || a.Stat.Inode != 1 {
				t.Errorf("stat %+v", a.Stat)
			}
		})
	}
}

// TestOneLook: a file system that did not answer is not asked again in the same look, though it would answer by then. All others are asked.
func TestOneLook(t *testing.T) {
	t.Parallel()
	s, other := mountFUSE(t, ""), mountFUSE(t, "")
	point := bindNew(t, filepath.Join(s.dirs[0], "dir"))
	s.signalServer("STOP")
	p := &probe.Prober{Deadline: deadline, Looks: probe.OneLook}
	first := askOne(t, p, probe.Target{Point: s.dirs[0], Bind: true})
	s.signalServer("CONT")
	again := askPoints(t, p, s.dirs[0], point, other.dirs[0])
	if got, want := statesOf(again), []probe.State{probe.Hung, probe.Hung, probe.Alive}; first.State != probe.Hung || !slices.Equal(got, want) {
		t.Errorf("first %s, then %v, want %v", first.State, got, want)
	}
	if !slices.Equal(again[0].Evidence, first.Evidence) || !hasEvidence(again[1], "not asked: the same file system does not answer at "+strconv.Quote(s.dirs[0])) {
		t.Errorf("evidence %q, and of another mount %q", again[0].Evidence, again[1].Evidence)
	}
	if a := askOne(t, slowProber(), probe.Target{Point: s.dirs[0], Bind: true}); a.State != probe.Alive {
		t.Errorf("another look: %s", a.State)
	}
}

// TestLostServers asks mounts whose server was killed, stopped or cut off.
func TestLostServers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		happen func(s *fileServer)
		state  probe.State
		errno  sys.Errno
	}{
		"killed":  {func(s *fileServer) { s.Kill() }, probe.Disconnected, sys.ENOTCONN},
		"aborted": {func(s *fileServer) { s.abortConnection(t, 0) }, probe.Disconnected, sys.ENOTCONN},
		"stopped": {func(s *fileServer) { s.signalServer("STOP") }, probe.Hung, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mountFUSE(t, "")
			point := bindNew(t, filepath.Join(s.dirs[0], "dir"))
			test.happen(s)
			a := askOne(t, &probe.Prober{Deadline: deadline}, probe.Target{Point: point, Bind: true})
			if a.State != test.state || a.Errno != test.errno {
				t.Errorf("want %v, %v", test.state, test.errno)
			}
			// The kernel's cached inode of the directory is known all the same.
			if a.Stat.Inode != 2 || a.Stat.Fresh {
				t.Errorf("stat %+v", a.Stat)
			}
		})
	}
}

// TestDeletedAndMoved asks mounts that are alive and cannot be bound any more.
func TestDeletedAndMoved(t *testing.T) {
	t.Parallel()
	t.Run("every source", func(t *testing.T) {
		kerneltest.EachSource(t, func(t *testing.T, s *kerneltest.Source) {
			if s.FSType == "fuse" {
				return // its server lets no directory be opened
			}
			s.Happen(t)
			a := askOne(t, slowProber(), probe.Target{Point: s.Point, Bind: true})
			want := probe.Yes
			if s.Deleted {
				want = probe.No
			}
			if a.State != probe.Alive || a.Deleted != s.Deleted || a.Stat.Nlink != s.Nlink || a.Stat.Dir != s.Dir {
				t.Errorf("want deleted %v, link count %d, directory %v", s.Deleted, s.Nlink, s.Dir)
			}
			if a.Bindable != want && s.FSType != "cgroup2" {
				t.Errorf("bindable %q, want %q", a.Bindable, want)
			}
			refused := hasEvidence(a, "a trial bind was refused: no such file or directory")
			if s.Deleted != hasEvidence(a, "the kernel's mark: deleted") || refused != (a.Bindable == probe.No) {
				t.Errorf("evidence %q", a.Evidence)
			}
		})
	})
	t.Run("parent is another directory by now", func(t *testing.T) {
		dir := mountFUSE(t, "moving").dirs[0]
		point := bindNew(t, filepath.Join(dir, "dir", "sub"))
		_, err := os.Stat(filepath.Join(dir, "dir"))
		must(t, err)
		a := askOne(t, slowProber(), probe.Target{Point: point, Bind: true})
		if a.State != probe.Alive || a.Deleted || a.Bindable != probe.No {
			t.Errorf("want alive, without the mark, and not to be bound")
		}
	})
}

// TestAskingForgetsNothing asks a file system whose directories have become others, one of which is mounted elsewhere.
// A read of its entries would make the kernel forget that directory, and mark the mount.
func TestAskingForgetsNothing(t *testing.T) {
	t.Parallel()
	s := mountFUSE(t, "moving")
	point := bindNew(t, filepath.Join(s.dirs[0], "dir"))
	p := slowProber()
	if a := askOne(t, p, probe.Target{Point: s.dirs[0], Bind: true}); a.State != probe.Alive {
		t.Errorf("it is not alive")
	}
	if a := askOne(t, p, probe.Target{Point: point, Bind: true}); a.State != probe.Alive || a.Deleted || a.Bindable != probe.Yes {
		t.Errorf("the mount was changed by asking")
	}
	_, err := os.ReadDir(s.dirs[0])
	must(t, err)
	if a := askOne(t, p, probe.Target{Point: point, Bind: true}); !a.Deleted || a.Bindable != probe.No {
		t.Errorf("the test shows nothing: a look at the directory changes nothing either")
	}
}

// TestBelow asks for paths beneath a mount, some of which lead out of it.
func TestBelow(t *testing.T) {
	t.Parallel()
	s := mountFUSE(t, "")
	must(t, sys.NewMount("none", filepath.Join(s.dirs[0], "dir"), "tmpfs", ""))
	t.Cleanup(func() { systest.UnmountPath(filepath.Join(s.dirs[0], "dir"), true) })
	other := mountFUSE(t, "").dirs[0]
	for below, want := range map[string]struct {
		point string
		state probe.State
		errno sys.Errno
		inode uint64
	}{
		"file":          {s.dirs[0], probe.Alive, 0, nodeFile},
		"./file":        {s.dirs[0], probe.Alive, 0, nodeFile},
		"dir":           {s.dirs[0], probe.Missing, sys.EXDEV, 0},
		"out":           {s.dirs[0], probe.Missing, sys.EXDEV, 0},
		"up":            {s.dirs[0], probe.Missing, sys.EXDEV, 0},
		"..":            {s.dirs[0], probe.Missing, sys.EXDEV, 0},
		"dir/../..":     {other, probe.Missing, sys.EXDEV, 0},
		"/etc":          {s.dirs[0], probe.Missing, sys.EXDEV, 0},
		"nothing":       {s.dirs[0], probe.Missing, sys.ENOENT, 0},
		"file/below":    {s.dirs[0], probe.Missing, sys.ENOTDIR, 0},
		"inside":        {other, probe.Alive, 0, nodeDir},
		"a\x00b":        {s.dirs[0], probe.Missing, sys.EINVAL, 0},
		"\xff not text": {s.dirs[0], probe.Missing, sys.ENOENT, 0},
	} {
		t.Run(fmt.Sprintf("%q", below), func(t *testing.T) {
			a := askOne(t, slowProber(), probe.Target{Point: want.point, Below: below, Bind: true})
			if a.State != want.state || a.Errno != want.errno || a.Stat.Inode != want.inode {
				t.Errorf("want %+v", want)
			}
			if bindable := a.Bindable == probe.Yes; bindable != (want.state == probe.Alive) {
				t.Errorf("bindable %q", a.Bindable)
			}
		})
	}
}

// TestNothingIsLookedUpBelowTheDead asks for a path beneath a dead mount.
func TestNothingIsLookedUpBelowTheDead(t *testing.T) {
	t.Parallel()
	s := mountFUSE(t, "")
	_ = bindNew(t, filepath.Join(s.dirs[0], "dir"))
	s.Kill()
	a := askOne(t, slowProber(), probe.Target{Point: s.dirs[0], Below: "dir", Bind: true})
	if a.State != probe.Disconnected || a.Bindable != probe.Unknown || hasEvidence(a, "lookup") || a.Stat != (probe.Stat{}) {
		t.Errorf("want disconnected, and nothing about what is beneath")
	}
}

// TestSecondLook: a server that is stopped, and a server that has taken up the request and keeps it, are silent at the first look, and so for a while at no
// cost. They hang if they do not answer then either, and are healthy if they do.
func TestSecondLook(t *testing.T) {
	t.Parallel()
	stuck, stopped := mountFUSE(t, "hang"), mountFUSE(t, "")
	points := []string{stuck.dirs[0], stopped.dirs[0]}
	stopped.signalServer("STOP")
	r := &subprocess.Runner{}
	p := &probe.Prober{Deadline: deadline, Runner: r, Looks: probe.TwoLooks}
	ask := func(want ...probe.State) []probe.Answer {
		t.Helper()
		answers := askPoints(t, p, points...)
		if got := statesOf(answers); !slices.Equal(got, want) {
			t.Errorf("states %v, want %v: %+v", got, want, answers)
		}
		return answers
	}
	ask(probe.Silent, probe.Silent)
	began := time.Now()
	ask(probe.Silent, probe.Silent)
	if took := time.Since(began); took > deadline/4 {
		t.Errorf("took %v: a second look that follows at once waits for nothing", took)
	}
	var hung []probe.Answer
	kerneltest.Await(t, "the second look", func() bool {
		hung = askPoints(t, p, points...)
		return !slices.Contains(statesOf(hung), probe.Silent)
	})
	if got := statesOf(hung); !slices.Equal(got, []probe.State{probe.Hung, probe.Hung}) || time.Since(began) < probe.SecondLook/2 {
		t.Errorf("states %v after %v: %+v", got, time.Since(began), hung)
	}
	if !hasEvidence(hung[0], "still waits, and no other one is sent") || !hasEvidence(hung[1], "ago it did not answer, either") {
		t.Errorf("evidence %q and %q", hung[0].Evidence, hung[1].Evidence)
	}
	stopped.signalServer("CONT")
	stuck.abortConnection(t, 0)
	awaitNoProcess(t, r)
	ask(probe.Disconnected, probe.Alive)
	stopped.signalServer("STOP")
	ask(probe.Disconnected, probe.Silent)
	stopped.signalServer("CONT")
}

// TestTwice: the second look comes where one is needed. A server that answers by then is alive, and one that does not answer hangs.
func TestTwice(t *testing.T) {
	t.Parallel()
	slow, stopped, fine := mountFUSE(t, ""), mountFUSE(t, ""), mountFUSE(t, "")
	p := &probe.Prober{Deadline: deadline, Looks: probe.TwoLooks}
	slow.signalServer("STOP")
	stopped.signalServer("STOP")
	points := []string{slow.dirs[0], fine.dirs[0], stopped.dirs[0]}
	if got, want := statesOf(askPoints(t, p, points...)), []probe.State{probe.Silent, probe.Alive, probe.Silent}; !slices.Equal(got, want) {
		t.Fatalf("states %v, want %v", got, want)
	}
	slow.signalServer("CONT")
	var targets []probe.Target
	for _, point := range points {
		targets = append(targets, probe.Target{Point: point})
	}
	answers, err := probe.Twice{Prober: p}.Ask(t.Context(), targets)
	must(t, err)
	if got, want := statesOf(answers), []probe.State{probe.Alive, probe.Alive, probe.Hung}; !slices.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
	for i, a := range answers {
		if a.Target != i {
			t.Errorf("answer %d is of target %d", i, a.Target)
		}
	}
	slow.signalServer("STOP")
	ctx, cancel := context.WithTimeout(t.Context(), deadline+probe.SecondLook/2)
	defer cancel()
	answers, err = probe.Twice{Prober: p}.Ask(ctx, targets[:2])
	if !errors.Is(err, context.DeadlineExceeded) || len(answers) != 2 || answers[0].State != probe.Silent || answers[1].State != probe.Alive {
		t.Errorf("the caller has no time for a second look: %v, answers %+v", err, answers)
	}
	slow.signalServer("CONT")
	stopped.signalServer("CONT")
	kerneltest.Await(t, "nothing to wait", func() bool { return slow.countWaiting(t, 0)+stopped.countWaiting(t, 0) == 0 })
}
