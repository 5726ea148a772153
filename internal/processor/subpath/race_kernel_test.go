// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"encoding/gob"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

const (
	// raceRounds is how many rounds there are over all contests, if they fit into raceTime.
	raceRounds = 10000
	raceTime   = 20 * time.Second
	// minRounds has each contest, however long it takes, and as many more as it takes until both sides have acted at
	// once in minMeetings: fewer prove nothing. How often they do depends on the other users of the processors.
	minRounds, minMeetings = 160, 20
	// maxContestTime is when a contest in which they do not is given up.
	maxContestTime = 2 * time.Minute
)

// rivalPlaces are what a rival may act on.
type rivalPlaces struct {
	Point       string // of the stale bind
	Source      string // what the subPath names, or the volume that it is in
	Replacement string // what comes in its place
	// Healthy is what the subPath names now, seen through a mount that is read-only, as those are that are bound from
	// it: so they are told from those that the recoverer makes.
	Healthy   string
	Neighbour string // a directory of another pod, with a healthy bind under the name that the point has
	Stale     uint64 // the mount at the point
}

// pointDir is the directory that the point is in.
func (p rivalPlaces) pointDir() string { return filepath.Dir(p.Point) }

// sparePoint is the point in the directory that comes in the place of the parent.
func (p rivalPlaces) sparePoint() string {
	return filepath.Join(p.pointDir()+".new", filepath.Base(p.Point))
}

// rivalOrder is what a rival is told to do, and how long after it hears of it.
type rivalOrder struct {
	Act    string
	Delay  time.Duration
	Places rivalPlaces
}

// rivalResult is what it did.
type rivalResult struct {
	Began, Ended int64 // nanoseconds of the machine's clock
	Bound        int   // how many mounts it made
	Added        []mountKey
	Err          string
}

// rivalAct is what a rival does while a plan is applied. undo takes back what would be in the way of the next round.
type rivalAct struct {
	do   func(p rivalPlaces) (bound int, err error)
	undo func(p rivalPlaces) error
	// removes reports whether it may remove the stale mount itself.
	removes bool
}

var rivalActs = map[string]rivalAct{
	"unmount": {removes: true, do: func(p rivalPlaces) (int, error) { return 0, unmountTop(p.Point) }},
	// Removes the stale mount, so that a healthy one shows that was beneath it.
	"uncover": {removes: true, do: func(p rivalPlaces) (int, error) { return 0, unmountExactly(p) }},
	"remount": {removes: true, do: func(p rivalPlaces) (int, error) {
		if err := unmountTop(p.Point); err != nil {
			return 0, err
		}
		return bindOnPlaces(p)
	}},
	"stack": {do: bindOnPlaces},
	"replace the source": {
		do: func(p rivalPlaces) (int, error) {
			return 0, errors.Join(os.Rename(p.Source, p.Source+".old"), os.Rename(p.Replacement, p.Source))
		},
		undo: func(p rivalPlaces) error {
			return errors.Join(os.Rename(p.Source, p.Replacement), os.Rename(p.Source+".old", p.Source))
		},
	},
	"replace the parent": {
		do: func(p rivalPlaces) (int, error) {
			return 0, errors.Join(os.Rename(p.pointDir(), p.pointDir()+".old"), os.Rename(p.pointDir()+".new", p.pointDir()))
		},
		undo: func(p rivalPlaces) error {
			return errors.Join(os.Rename(p.pointDir(), p.pointDir()+".new"), os.Rename(p.pointDir()+".old", p.pointDir()))
		},
	},
	"put a link for the parent": {
		do: func(p rivalPlaces) (int, error) {
			return 0, errors.Join(os.Rename(p.pointDir(), p.pointDir()+".old"), os.Symlink(p.Neighbour, p.pointDir()))
		},
		undo: func(p rivalPlaces) error {
			return errors.Join(os.Remove(p.pointDir()), os.Rename(p.pointDir()+".old", p.pointDir()))
		},
	},
}

// unmountTop takes it for success where nothing is mounted any more, or nothing is there to be mounted on.
func unmountTop(point string) error {
	if err := systest.UnmountPath(point, true); !errors.Is(err, sys.EINVAL) && !errors.Is(err, sys.ENOENT) {
		return err
	}
	return nil
}

// unmountExactly removes the stale mount and no other: nothing can be mounted on a root that is unlinked.
func unmountExactly(p rivalPlaces) error {
	fd, err := sys.Lookup(p.Point)
	if err != nil {
		return err
	}
	defer fd.Close()
	st, err := fd.Stat(numberKind())
	if err != nil || st.MountID != p.Stale {
		return err
	}
	if err := sys.OnThread(func() error { return sys.DetachMount(fd) }); !errors.Is(err, sys.EINVAL) {
		return err
	}
	return nil
}

// bindOnPlaces makes what it mounts on, as the kubelet does. It does nothing where the kernel refuses because the root
// beneath is unlinked, or where what it has made is gone again.
func bindOnPlaces(p rivalPlaces) (bound int, err error) {
	if source, err := os.Stat(p.Healthy); err == nil && source.IsDir() {
		_ = os.Mkdir(p.Point, 0o755) // it may be there
	} else if f, err := os.OpenFile(p.Point, os.O_CREATE|os.O_EXCL, 0o644); err == nil {
		f.Close()
	}
	switch err := mount.Bind(p.Healthy, p.Point); {
	case errors.Is(err, sys.ENOENT):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return 1, nil
}

// playRival does what it is told over a socket.
func playRival(args []string, ready func(string)) error {
	conn, err := net.Dial("unix", args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	ready("")
	in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
	for {
		var o rivalOrder
		if in.Decode(&o) != nil {
			return nil // the test is over
		}
		if err := out.Encode(performOrder(o)); err != nil {
			return err
		}
	}
}

func performOrder(o rivalOrder) rivalResult {
	before, err := mountKeys()
	if err != nil {
		return rivalResult{Err: err.Error()}
	}
	for start := time.Now(); time.Since(start) < o.Delay; {
	}
	d := rivalResult{Began: time.Now().UnixNano()}
	d.Bound, err = rivalActs[o.Act].do(o.Places)
	d.Ended = time.Now().UnixNano()
	after, tableErr := mountKeys()
	if err := errors.Join(err, tableErr); err != nil {
		d.Err = err.Error()
	}
	d.Added = without(after, before)
	d.Added = slices.DeleteFunc(d.Added, func(k mountKey) bool {
		m, err := k.load()
		return err != nil || !m.ReadOnly
	})
	return d
}

// raceContest is one kind of race.
type raceContest struct {
	act   string
	stale func(t *testing.T, r *raceScene) // makes the stale bind of a round
	index int                              // of the subPath in container app
	// outcomes are those that there must be, with the rival first, with the recoverer first, and in between.
	outcomes []string
}

const (
	unmounted = "unmounted"
	gone      = "was gone already"
	another   = "was gone already; another mount is there now and is left alone"
	refused   = "refused"
	busy      = "busy"
	linked    = "a link is in the way"
	unplanned = "not planned"
)

var raceContests = []raceContest{
	{"unmount", bindDeleted, 0, []string{unmounted, gone}},
	{"unmount", bindMoved, 1, []string{unmounted, gone}},
	{"uncover", deletedOnHealthy, 0, []string{unmounted, another}},
	{"remount", bindDeleted, 0, []string{unmounted, another}},
	{"remount", bindMoved, 1, []string{unmounted, another}},
	{"stack", bindDeleted, 0, []string{unmounted}},
	{"stack", bindMoved, 1, []string{unmounted, refused}},
	{"replace the source", bindDeleted, 0, []string{unmounted, refused}},
	{"replace the source", bindMoved, 1, []string{unmounted, refused}},
	{"replace the parent", bindDeleted, 0, []string{unmounted, another}},
	{"replace the parent", bindMoved, 1, []string{unmounted, another}},
	{"put a link for the parent", bindDeleted, 0, []string{unmounted, linked}},
	{"put a link for the parent", bindMoved, 1, []string{unmounted, linked}},
}

// raceScene is where a contest takes place.
type raceScene struct {
	*repairScene
	places rivalPlaces
	in     *gob.Decoder
	out    *gob.Encoder
	usual  time.Duration // of applying a plan
	tally  raceCounts
}

// raceCounts is what came of the rounds of a contest.
type raceCounts struct {
	outcomes map[string]int
	rounds   int
	met      int // in how many both sides acted at the same time
	put      int // in how many there was a new bind in the place of the stale one afterwards
}

// newRaceScene makes a ring with a rival in a process of its own, in the same mount namespace.
func newRaceScene(t *testing.T, c raceContest) *raceScene {
	t.Helper()
	r := &raceScene{repairScene: newRepairScene(t), tally: raceCounts{outcomes: map[string]int{}}}
	r.ask(0, "empty", "sub")
	must(t, systest.UnmountPath(r.point, false))
	r.preparePlaces(t, c)
	conn := startRival(t)
	r.in, r.out = gob.NewDecoder(conn), gob.NewEncoder(conn)
	return r
}

// startRival starts a rival, which connects to us.
func startRival(t *testing.T) *net.UnixConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "rival") // a socket's path must be short
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "socket")})
	must(t, err)
	defer l.Close()
	kerneltest.StartWith(t, nil, "rival", l.Addr().String())
	conn, err := l.AcceptUnix()
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// preparePlaces makes everything that the rival may use, each with a healthy mount where there is one to be.
func (r *raceScene) preparePlaces(t *testing.T, c raceContest) {
	t.Helper()
	neighbour := kubelettest.NewPod()
	neighbour.UID = "neighbour"
	volume, view := []string{"configmap", "empty"}[c.index], filepath.Join(r.Root, "view")
	r.places.Point = r.Point(r.pod, volume, "app", c.index)
	if c.index == 0 {
		r.places.Source = r.Volume(r.pod, kubelettest.ConfigMap, "configmap")
		r.bindReadOnly(t, r.places.Source, view)
		r.places.Healthy = filepath.Join(view, "..data", "key")
		r.places.Replacement = r.Volume(r.pod, kubelettest.ConfigMap, "without")
		r.Update(r.pod, kubelettest.ConfigMap, "without", map[string]string{"other": ""})
	} else {
		r.places.Source = filepath.Join(r.Volume(r.pod, kubelettest.EmptyDir, "empty"), "sub")
		r.places.Replacement = r.places.Source + ".away"
		must(t, os.Mkdir(r.places.Source, 0o755))
		r.bindReadOnly(t, filepath.Dir(r.places.Source), view)
		r.places.Healthy = filepath.Join(view, filepath.Base(r.places.Source))
	}
	theirs := r.Point(neighbour, volume, "app", c.index)
	r.places.Neighbour = filepath.Dir(theirs)
	r.Stack(r.places.Healthy, theirs)
	r.Stack(r.places.Healthy, r.places.sparePoint())
}

// bindReadOnly makes a directory visible at another place, read-only.
func (r *raceScene) bindReadOnly(t *testing.T, of, at string) {
	t.Helper()
	must(t, os.Mkdir(at, 0o755))
	must(t, mount.Bind(of, at))
	must(t, mount.SetPropagation(at, mount.Private, false))
	must(t, systest.RemountBindReadOnly(at))
}

// bindDeleted binds a file and deletes it.
func bindDeleted(t *testing.T, r *raceScene) { r.putStale(t, r.places.Point) }

// deletedOnHealthy has a healthy mount beneath.
func deletedOnHealthy(t *testing.T, r *raceScene) {
	r.Stack(r.places.Healthy, r.places.Point)
	bindDeleted(t, r)
}

// bindMoved binds a directory, moves it away and makes another of the same name: nothing is marked deleted, and the
// kernel lets others mount on it.
func bindMoved(t *testing.T, r *raceScene) {
	if err := os.Remove(r.places.Replacement); !errors.Is(err, os.ErrNotExist) {
		must(t, err)
	}
	r.Stack(r.places.Source, r.places.Point)
	must(t, os.Rename(r.places.Source, r.places.Replacement))
	must(t, os.Mkdir(r.places.Source, 0o755))
	must(t, systest.UnmountPath(r.places.sparePoint(), true))
	must(t, mount.Bind(r.places.Healthy, r.places.sparePoint()))
}

// TestRivals has another process do something to a stale bind before, while and after a plan is made and applied, in
// every way that a kubelet, a container or an attacker may. After every round the whole mount table is compared.
func TestRivals(t *testing.T) {
	rounds, met, last := 0, 0, time.Now().Add(raceTime)
	for i, c := range raceContests {
		name := c.act
		if c.index == 1 {
			name += ", not marked deleted"
		}
		t.Run(name, func(t *testing.T) {
			r := newRaceScene(t, c)
			container := kerneltest.Start(t, "hold")
			before := tableOf(t, container.PID)
			r.measurePlan(t, c)
			begin := time.Now()
			end := begin.Add(time.Until(last) / time.Duration(len(raceContests)-i)) // what earlier ones did not need is left
			more := func(n int) bool {
				return n < minRounds || r.tally.met < minMeetings && time.Since(begin) < maxContestTime ||
					n < raceRounds/len(raceContests)+1 && time.Now().Before(end)
			}
			for n := 0; more(n); n++ {
				if r.round(t, c, n); t.Failed() {
					t.Fatalf("in round %d", n)
				}
			}
			if diff := cmp.Diff(before, tableOf(t, container.PID)); diff != "" {
				t.Errorf("the container's mounts changed:\n%s", diff)
			}
			t.Logf("%d rounds, in %d both at once, %v, in %d a new bind is there", r.tally.rounds, r.tally.met,
				r.tally.outcomes, r.tally.put)
			for _, o := range c.outcomes {
				if r.tally.outcomes[o] == 0 {
					t.Errorf("%q never came out", o)
				}
			}
			if r.tally.met < minMeetings {
				t.Errorf("both sides acted at once in %d of %d rounds: too few to prove anything", r.tally.met, r.tally.rounds)
			}
			rounds, met = rounds+r.tally.rounds, met+r.tally.met
		})
	}
	t.Logf("%d rounds, in %d both at once", rounds, met)
}

// measurePlan learns how long it takes to apply an undisturbed plan.
func (r *raceScene) measurePlan(t *testing.T, c raceContest) {
	t.Helper()
	r.usual = time.Second
	for range 10 {
		c.stale(t, r)
		p := r.plan(t)
		start := time.Now()
		r.apply(t, p)
		r.usual = min(r.usual, time.Since(start))
		r.clean(t)
	}
}

// clean unmounts what a round has left at the point.
func (r *raceScene) clean(t *testing.T) {
	t.Helper()
	for {
		err := systest.UnmountPath(r.places.Point, true)
		if errors.Is(err, sys.EINVAL) || errors.Is(err, sys.ENOENT) {
			return
		}
		must(t, err)
	}
}

// round is one race. In one of eight the rival is done before the recoverer applies its plan, in one it begins
// afterwards, in one it may be there while the plan is made.
func (r *raceScene) round(t *testing.T, c raceContest, i int) {
	c.stale(t, r)
	st, err := mount.Inspect(r.places.Point)
	must(t, err)
	m := r.newRound(t, c, st)
	r.places.Stale = m.staleKey.ID
	o := rivalOrder{Act: c.act, Places: r.places}
	var b bout
	switch i % 8 {
	case 0:
		p := r.planOne(t)
		b.deed = r.send(t, o).receive(t)
		b.apply(t, r.repairScene, p)
	case 1:
		b.apply(t, r.repairScene, r.planOne(t))
		b.deed = r.send(t, o).receive(t)
	case 2:
		o.Delay = r.someTime()
		r.send(t, o)
		b.planAndApply(t, r)
		b.deed = r.receive(t)
	default:
		p := r.planOne(t)
		o.Delay = r.someTime()
		r.send(t, o)
		for start, wait := time.Now(), r.someTime(); time.Since(start) < wait; {
		}
		b.apply(t, r.repairScene, p)
		b.deed = r.receive(t)
	}
	if rivalActs[c.act].undo != nil {
		must(t, rivalActs[c.act].undo(r.places))
	}
	m.bout = b
	m.checkRound(t, r)
	r.clean(t)
}

// someTime is at most what applying a plan takes.
func (r *raceScene) someTime() time.Duration { return rand.N(r.usual) }

// planOne makes a plan without any disturbance.
func (r *raceScene) planOne(t *testing.T) repair.Part {
	t.Helper()
	p := r.plan(t)
	if len(p.Actions) != 1 || numberOf(p.Actions[0].Mount) != r.places.Stale {
		t.Fatalf("plan %q, want the stale bind at %q alone", processortest.Targets(p), r.places.Point)
	}
	return p
}

func (r *raceScene) send(t *testing.T, o rivalOrder) *raceScene {
	t.Helper()
	must(t, r.out.Encode(o))
	return r
}

func (r *raceScene) receive(t *testing.T) (d rivalResult) {
	t.Helper()
	must(t, r.in.Decode(&d))
	if d.Err != "" {
		t.Fatalf("the rival failed: %s", d.Err)
	}
	return d
}

// bout is what both sides did in a round.
type bout struct {
	deed         rivalResult
	outcome      string
	began, ended int64
}

// planAndApply makes a plan of whatever is there at that moment.
func (b *bout) planAndApply(t *testing.T, r *raceScene) {
	t.Helper()
	b.began = time.Now().UnixNano()
	plan, err := r.healer.Plan(t.Context(), r.request)
	b.ended = time.Now().UnixNano()
	switch {
	case err != nil && !errors.Is(err, sys.ELOOP):
		t.Errorf("plan: %v", err)
	case err != nil || len(plan.Actions) == 0:
		b.outcome = unplanned
	case len(plan.Actions) > 1 || numberOf(plan.Actions[0].Mount) != r.places.Stale:
		t.Errorf("plan %q, want nothing but the stale bind at %q", processortest.Targets(plan), r.places.Point)
	default:
		began := b.began
		b.apply(t, r.repairScene, plan)
		b.began = began
	}
}

func (b *bout) apply(t *testing.T, w *repairScene, p repair.Part) {
	t.Helper()
	b.began = time.Now().UnixNano()
	done, err := w.healer.Apply(t.Context(), w.request, p.Actions[0])
	b.ended = time.Now().UnixNano()
	switch {
	case err == nil:
		b.outcome = done.Message
	case errors.Is(err, mount.ErrBusy):
		b.outcome = busy
	case errors.Is(err, sys.ELOOP):
		b.outcome = linked
	case errors.Is(err, mount.ErrChanged), errors.Is(err, subpath.ErrNotStale):
		b.outcome = refused
	default:
		t.Errorf("apply: %v", err)
	}
}

// putStale binds a file at point, whatever is there, and deletes it.
func (w *repairScene) putStale(t *testing.T, point string) {
	t.Helper()
	source := filepath.Join(w.Root, "lost")
	must(t, os.WriteFile(source, nil, 0o644))
	w.Stack(source, point)
	must(t, os.Remove(source))
}
