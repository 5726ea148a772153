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
		sys.EACCES:              {Denied, Unasked},
		sys.EPERM:               {Denied, Unasked},
		sys.ENOENT:              {Missing, Vanished},
		sys.ETIMEDOUT:           {Broken, Unasked},
		sys.ELOOP:               {Broken, Unasked},
		mountns.ErrMayBlock:     {Broken, Unasked},
		mountns.ErrChanged:      {Broken, Vanished},
		mount.ErrNotMounted:     {Broken, Vanished},
		&mount.ChangedError{}:   {Broken, Vanished},
		errors.New("any other"): {Broken, Unasked},
	} {
		wrapped := fmt.Errorf("ask: %w", err)
		if got := stateOf(wrapped); got != want.asked {
			t.Errorf("asked, %v is %v, want %v", err, got, want.asked)
		}
		if got := unfound(wrapped); got != want.looked {
			t.Errorf("looked for, %v is %v, want %v", err, got, want.looked)
		}
	}
	if n := errno(fmt.Errorf("ask: %w", sys.ESTALE)); n != sys.ESTALE {
		t.Errorf("number %d", n)
	}
	if n := errno(errors.New("none")); n != 0 {
		t.Errorf("number %d", n)
	}
}

// TestPathsOfAnyBytes sends a path that is no text.
func TestPathsOfAnyBytes(t *testing.T) {
	t.Parallel()
	sent := question{Target: 3, Below: []byte("\xff\x00\n"), Namespace: mountns.Namespace{PID: 1, Inode: 2, ID: 3}}
	sent.setMount(mount.ID{UniqueID: 1 << 63, MountInfoID: 4, Point: "/\xfe"})
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
	if b.Root = "/vol//deleted"; !same(a, b) || !same(b, a) {
		t.Error("the mark makes another mount of it")
	}
	if b.Root = "/other"; same(a, b) {
		t.Error("another root is the same mount")
	}
	a.UniqueID, b.UniqueID = 5, 6
	if b.Root = a.Root; same(a, b) {
		t.Error("another number is the same mount")
	}
}

func TestOwnersTakeTurns(t *testing.T) {
	t.Parallel()
	s := pass{Prober: &Prober{}}
	for range 100 {
		s.groups = append(s.groups, &group{owner: "one"})
	}
	s.groups = append(s.groups, &group{owner: "two"}, &group{owner: "three"}, &group{owner: "two"})
	s.order()
	var first []string
	for _, g := range s.groups[:5] {
		first = append(first, g.owner)
	}
	if want := []string{"one", "two", "three", "one", "two"}; !slices.Equal(first, want) {
		t.Errorf("order %v, want %v", first, want)
	}
}

// TestRoomIsLeftForEverybody has one owner after the other take all that it may have.
func TestRoomIsLeftForEverybody(t *testing.T) {
	t.Parallel()
	p := &Prober{waiting: map[uint64]waiter{}}
	for n := range 1000 {
		owner := fmt.Sprint("owner ", n)
		took := 0
		for {
			if r := p.newRoom().others(); (&r).room(owner) == 0 {
				break
			}
			p.waiting[uint64(len(p.waiting))] = waiter{owner: owner}
			took++
		}
		if took < 1 || took > maxWaiters/shares {
			t.Fatalf("%s has %d threads wait, beside %d of others", owner, took, len(p.waiting)-took)
		}
	}
	r := p.newRoom()
	if proven := r.proven(); r.left > 0 || proven.RoomElse != 1 || proven.room("") != unbounded {
		t.Errorf("room %+v is left", r)
	}
}

// TestPoolReplacesThoseThatWait has more wait than there may be.
func TestPoolReplacesThoseThatWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPool(func(string) int { return maxWaiting })
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
			for range maxAsking + maxWaiting + 50 {
				p.reserveThread()
				begun++
				all.Go(func() {
					defer p.give()
					turn := turn{pool: p, emit: emit}
					turn.ask("anything")
					<-ctx.Done()
					turn.end()
				})
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if begun != maxAsking+maxWaiting || overdue != begun {
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
	if (waiter{pid: 1, thread: 1, gone: gone}).there() {
		t.Error("a process that has ended waits")
	}
	if (waiter{pid: 1 << 30, thread: 1, gone: make(chan struct{})}).there() {
		t.Error("a thread that is not there waits")
	}
}

// Lost is the processes that have threads of an earlier pass which did not
// answer, for tests that wait until nothing about those changes any more.
func (p *Prober) Lost() []int {
	pids := map[int]bool{}
	for _, w := range p.waiting {
		pids[w.pid] = true
	}
	return slices.Sorted(maps.Keys(pids))
}
