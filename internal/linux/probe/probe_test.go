// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

func TestWhatErrorsMean(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]struct{ asked, looked State }{
		sys.ENOTCONN:            {Disconnected, Disconnected},
		sys.ECONNABORTED:        {Disconnected, Disconnected},
		sys.ESHUTDOWN:           {Disconnected, Disconnected},
		sys.ESTALE:              {Stale, Stale},
		sys.EIO:                 {Broken, Broken},
		sys.EACCES:              {Denied, NotProbed},
		sys.EPERM:               {Denied, NotProbed},
		sys.ENOENT:              {Missing, Gone},
		sys.ETIMEDOUT:           {Broken, NotProbed},
		sys.ELOOP:               {Broken, NotProbed},
		mountns.ErrMayBlock:     {Broken, NotProbed},
		mountns.ErrChanged:      {Broken, Gone},
		mount.ErrNotMounted:     {Broken, Gone},
		&mount.ChangedError{}:   {Broken, Gone},
		errors.New("any other"): {Broken, NotProbed},
	} {
		wrapped := fmt.Errorf("ask: %w", err)
		if got := stateOf(wrapped); got != want.asked {
			t.Errorf("asked, %v is %v, want %v", err, got, want.asked)
		}
		if got := stateOfFindError(wrapped); got != want.looked {
			t.Errorf("looked for, %v is %v, want %v", err, got, want.looked)
		}
	}
	if n := errnoOf(fmt.Errorf("ask: %w", sys.ESTALE)); n != sys.ESTALE {
		t.Errorf("number %d", n)
	}
	if n := errnoOf(errors.New("none")); n != 0 {
		t.Errorf("number %d", n)
	}
}

// TestPathsOfAnyBytes sends a path that is no text.
func TestPathsOfAnyBytes(t *testing.T) {
	t.Parallel()
	sent := question{
		Target: 3, Below: []byte("\xff\x00\n"), Namespace: mountns.Namespace{PID: 1, Inode: 2, ID: 3},
		Unique: 1 << 63, Reused: 4, Point: []byte("/\xfe"),
	}
	text, err := json.Marshal(request{Groups: [][]question{{sent}}})
	if err != nil {
		t.Fatal(err)
	}
	var got request
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]question{{sent}}, got.Groups, cmp.Comparer(func(a, b mountns.Namespace) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestMarkMakesNoOtherMount(t *testing.T) {
	t.Parallel()
	a := mount.ID{MountInfoID: 1, Parent: 2, Root: "/vol", Point: "/p"}
	b := a
	if b.Root = "/vol//deleted"; !sameMount(a, b) || !sameMount(b, a) {
		t.Error("the mark makes another mount of it")
	}
	if b.Root = "/other"; sameMount(a, b) {
		t.Error("another root is the same mount")
	}
	a.UniqueID, b.UniqueID = 5, 6
	if b.Root = a.Root; sameMount(a, b) {
		t.Error("another number is the same mount")
	}
}

func TestOwnersTakeTurns(t *testing.T) {
	t.Parallel()
	s := pass{prober: &Prober{}}
	for range 100 {
		s.groups = append(s.groups, &targetGroup{owner: "one"})
	}
	s.groups = append(s.groups, &targetGroup{owner: "two"}, &targetGroup{owner: "three"}, &targetGroup{owner: "two"})
	s.takeTurns()
	var first []string
	for _, g := range s.groups[:5] {
		first = append(first, g.owner)
	}
	if want := []string{"one", "two", "three", "one", "two"}; !slices.Equal(first, want) {
		t.Errorf("order %v, want %v", first, want)
	}
}

// TestEveryOwnerGetsThreads has one owner after the other take all that it may have.
func TestEveryOwnerGetsThreads(t *testing.T) {
	t.Parallel()
	p := &Prober{waitingThreads: map[uint64]waitingThread{}}
	for n := range 1000 {
		owner := fmt.Sprint("owner ", n)
		took := 0
		for {
			if r := p.newRoom().requestForOthers(); (&r).threadLimit(owner) == 0 {
				break
			}
			p.waitingThreads[uint64(len(p.waitingThreads))] = waitingThread{owner: owner}
			took++
		}
		if took < 1 || took > maxWaiters/ownerShare {
			t.Fatalf("%s has %d threads wait, beside %d of others", owner, took, len(p.waitingThreads)-took)
		}
	}
	r := p.newRoom()
	if proven := r.requestForAnswering(); r.remaining > 0 || proven.RoomElse != 1 || proven.threadLimit("") != unboundedRoom {
		t.Errorf("room %+v is left", r)
	}
}

// TestPoolReplacesThoseThatWait has more wait than there may be.
func TestPoolReplacesThoseThatWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPool(func(string) int { return maxWaitingThreads })
		ctx, answer := context.WithCancel(t.Context())
		var (
			mu      sync.Mutex
			overdue int
			begun   int
			all     sync.WaitGroup
		)
		emit := func(any) error {
			mu.Lock()
			defer mu.Unlock()
			overdue++
			return nil
		}
		all.Go(func() {
			for range maxProbingThreads + maxWaitingThreads + 50 {
				p.reserveThread()
				begun++
				all.Go(func() {
					defer p.releaseThread()
					turn := probeTurn{pool: p, emit: emit}
					turn.askQuestion("anything")
					<-ctx.Done()
					turn.finish()
				})
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if begun != maxProbingThreads+maxWaitingThreads || overdue != begun {
			t.Errorf("%d begun, %d overdue", begun, overdue)
		}
		answer()
		all.Wait()
		if p.asking != 0 || p.waiting != 0 {
			t.Errorf("%d ask, %d wait", p.asking, p.waiting)
		}
	})
}

func TestGoneProcessWaitsNoMore(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	close(gone)
	if (waitingThread{pid: 1, thread: 1, gone: gone}).there() {
		t.Error("a process that has ended waits")
	}
	if (waitingThread{pid: 1 << 30, thread: 1, gone: make(chan struct{})}).there() {
		t.Error("a thread that is not there waits")
	}
}

// TestTwoLooksBeforeAVerdict: where there are two looks, a first silence is Silent, and so is a thread that has not waited for long. A prober that
// looks once calls both Hung.
func TestTwoLooksBeforeAVerdict(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		silence     State
		write       bool
		waited      time.Duration
		once, twice State // of a silence
		waits       State // of a thread, with two looks
	}{
		"the first silence":     {"", false, 0, Hung, Silent, Silent},
		"after one too short":   {NotProbed, false, secondLook, Hung, Silent, Silent},
		"the second one":        {Silent, false, secondLook + DefaultDeadline, Hung, Hung, Hung},
		"a later one":           {Hung, false, time.Minute, Hung, Hung, Hung},
		"a write, and no other": {"", true, 0, Frozen, Frozen, Frozen},
	} {
		l, g := lateQuestion{overdue: overdue{Write: tt.write}}, &targetGroup{silence: tt.silence}
		for looks, want := range map[Looks]State{EachPass: tt.once, OneLook: tt.once, TwoLooks: tt.twice} {
			s := &pass{prober: &Prober{Looks: looks}}
			if got := s.stateOfSilence(g, l); got != want {
				t.Errorf("%s, looks %d: %s, want %s", name, looks, got, want)
			}
			if looks == TwoLooks {
				want = tt.waits
			}
			if got := s.stateOfWaiter(waitingThread{since: time.Now().Add(-tt.waited), state: l.silentState()}); got != want {
				t.Errorf("%s, looks %d: a thread that waits is %s, want %s", name, looks, got, want)
			}
		}
		if half := g.hasHalfTime(); half != (tt.silence == NotProbed || tt.silence == Hung) {
			t.Errorf("%s: half the time %v", name, half)
		}
	}
}

// Lost is the processes that have threads of an earlier pass which did not
// TestSilenceIsOfOneFileSystem: the answer of a pass before serves a later one while requests wait, and not for long. It serves no other file
// system that has the number of the silent one by now.
func TestSilenceIsOfOneFileSystem(t *testing.T) {
	t.Parallel()
	silent, other := mount.ID{UniqueID: 7, Point: "/a"}, mount.ID{UniqueID: 8, Point: "/a"}
	for name, tt := range map[string]struct {
		mount           mount.ID
		state           State
		ago             time.Duration
		waits           bool
		before, trusted bool
	}{
		"a first silence":         {silent, Silent, secondLook / 2, false, true, true},
		"a second look is due":    {silent, Silent, secondLook, true, true, false},
		"another mount, silent":   {other, Silent, secondLook / 2, true, false, false},
		"the same mount":          {silent, Hung, time.Second, true, true, true},
		"no request waits":        {silent, Hung, time.Second, false, true, false},
		"some time ago":           {silent, Hung, trustSilence, true, true, false},
		"without a verdict":       {silent, NotProbed, time.Second, true, true, false},
		"another mount":           {other, Hung, time.Second, true, false, false},
		"too long ago, forgotten": {silent, Hung, rememberSilence + time.Second, true, false, false},
	} {
		p := &Prober{silences: map[uint64]silence{1: {Answer{State: tt.state, ID: silent}, time.Now().Add(-tt.ago)}}}
		p.forgetSilences()
		s := &pass{prober: p, answers: answerSet{{ID: tt.mount}}}
		g := &targetGroup{device: 1, requestsWait: tt.waits, questions: []question{{Target: 0}}}
		s.noteSilence(g)
		a, known := s.knownSilence(g, false)
		if before := g.silence != ""; before != tt.before || known != tt.trusted || known && a.State != tt.state {
			t.Errorf("%s: silent before %v, trusted %v %+v", name, before, known, a)
		}
	}
	p := &Prober{silences: map[uint64]silence{}}
	for i := range uint64(maxSilences + 1) {
		p.silences[i] = silence{at: time.Now()}
	}
	if p.forgetSilences(); len(p.silences) > maxSilences {
		t.Errorf("%d file systems are remembered", len(p.silences))
	}
}

// answer, for tests that wait until nothing about those changes any more.
func (p *Prober) Lost() []int {
	pids := map[int]bool{}
	for _, w := range p.waitingThreads {
		pids[w.pid] = true
	}
	return slices.Sorted(maps.Keys(pids))
}

// SecondLook is how long after a first silence the second look is due.
const SecondLook = secondLook
