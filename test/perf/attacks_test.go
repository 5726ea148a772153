// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/fakenode"
)

var attackTime = flag.Duration("attacks", time.Hour, "how long the attacks last; for a twelfth of that before, the node is left in peace")

const (
	floodMounts, floodSpaces = 90_000, 2
	hungVolumes              = 32 // of one pod
	forgers                  = 4
	forgedAt                 = "/data-0" // where a container has its first volume
	updatedPods, quietPods   = 40, 10    // with a ConfigMap each
	updateGap                = 200 * time.Millisecond
	slower                   = 10 // times that of the node in peace, at most
	probeEvery               = 20 * time.Second
)

// BenchmarkAttacks measures how long a node that is attacked takes to replace a stale bind, to see that a volume has died, and
// to have all its mounts replaced once it is back, against the same node in peace right before. ConfigMaps change and volumes die all the time. The attacks go on side by side:
// a flood of mounts, one of descriptors, volumes of one pod that hang, a flood of unlinks beside a subPath, and user namespaces
// that forge the deaths of volumes. A tenant with pods on the node, the largest objects, an agent of another node that was taken over, and
// strangers at the receiver of alerts do what they may do, while the pods of other namespaces are healed. Nothing may be repaired but what
// was broken, and agent and manager are to go on, within their memory.
//
// There is no cluster: agent and manager are the real programs, with an API server and a kubelet's directories, and no limit but that
// of their garbage collectors. They count as started again when they have ended, or when their health is asked for in vain three times
// in a row, as the kubelet asks.
func BenchmarkAttacks(b *testing.B) {
	b.Setenv("GOMEMLIMIT", strconv.Itoa(kerneltest.AgentMemory/10*9))
	n := &attackedNode{coast: newCoast(b, "Observe")}
	n.updated = rota{volumes: n.AddPods(b, "updated", updatedPods, fakenode.Layout{Volumes: 1, Binds: 1}), gap: updateGap, patience: repairDeadline}
	n.town = newTown(b, n.coast)
	for _, program := range []*fakenode.Agent{n.agent, n.town.manager} {
		must(b, beNicer(program.Process.Pid, ofPrograms))
	}
	quiet := n.AddPods(b, "quiet", quietPods, fakenode.Layout{Volumes: 1, Binds: 1})
	scratch := n.AddFolder(b, "scratch")
	n.agent.Await(b, "the sentinel to watch all binds", func(m map[string]float64) bool {
		return m["kubediag_sentinel_binds"] == updatedPods+quietPods+1+townBinds && m["kubediag_sentinel_unwatched_binds"] == 0
	})
	n.restarts = []func() int{probe(b, n.agent, probeEvery), probe(b, n.town.manager, probeEvery)}
	peace := n.measure(b, *attackTime/12)
	untouched := []*table{{pid: os.Getpid(), points: slices.Concat(n.hang(b), pointsOf(quiet))}}
	for _, pid := range n.attack(b, scratch) {
		untouched = append(untouched, &table{pid: pid})
	}
	n.town.attack(b)
	for _, t := range untouched {
		t.before = t.read(b)
	}
	amid := n.measure(b, *attackTime)
	for _, t := range untouched {
		if after := t.read(b); after != t.before {
			n.wrong++
			b.Errorf("mounts of process %d have changed, from\n%s\nto\n%s", t.pid, t.before, after)
		}
	}
	n.town.checkShares(b)
	n.report(b, peace, amid)
	n.town.tally.report(b)
}

// attackedNode is a node with volumes that die, ConfigMaps that change, and attackers.
type attackedNode struct {
	*coast
	updated  rota
	town     *town
	wrong    int          // repairs
	restarts []func() int // of agent and manager, until now
}

// phase is how long things took, by what they are.
type phase map[string][]time.Duration

// measure has ConfigMaps change and volumes die for a while. Every broken mount, and no other, has to be repaired.
func (n *attackedNode) measure(b *testing.B, period time.Duration) phase {
	b.Helper()
	before := n.repairs(b)
	ctx, cancel := context.WithTimeout(b.Context(), period)
	defer cancel()
	took, errs := phase{}, make(chan error)
	var mu sync.Mutex
	rotas := map[string]*rota{"bind": &n.updated, "shared": &n.town.shared, "asked": &n.town.asked}
	for name, r := range rotas {
		go func() {
			times, wrong, err := r.update(ctx, func(v *fakenode.Volume, what any) {
				b.Logf("%s: %s is healed, at %s: %v", name, v.Points[0], time.Now().UTC().Format(time.TimeOnly), what)
			})
			mu.Lock()
			defer mu.Unlock()
			took[name] = times
			n.wrong += wrong
			errs <- err
		}()
	}
	go func() {
		times, err := n.town.send(ctx)
		mu.Lock()
		defer mu.Unlock()
		took["alert"] = times
		errs <- err
	}()
	var f figures
	for ctx.Err() == nil {
		v := n.shares[n.turn%len(n.shares)]
		n.kill(b, v, &f)
		n.remount(b, v, &f) // no Event is awaited: those of one object are bounded, and in an hour it has more faults than that
		n.turn++
	}
	for range len(rotas) + 1 {
		must(b, <-errs)
	}
	took["volume"], took["repaired"] = f.metric, f.all
	after := n.repairs(b)
	stale := len(took["bind"]) + len(took["shared"]) + len(took["asked"]) + n.town.broken()
	for fault, broken := range map[string]int{"StaleSubPath": stale, "DisconnectedFUSE": 2 * podsPer * len(f.metric)} {
		done := int(after[fault] - before[fault])
		b.Logf("%s: %d broken, %d repaired", fault, broken, done)
		n.wrong += max(0, done-broken)
	}
	return took
}

// rota are volumes that are updated one after the other.
type rota struct {
	volumes       []*fakenode.Volume
	gap, patience time.Duration
	updates       int
}

// longStale is how long a bind stays stale that is worth a line.
const longStale = 5 * time.Second

// update renews the volumes in turn, and returns how long each bind stayed stale, for patience at most, and how many show a
// wrong file. Those that stayed stale for long, or did not show the present file at once, are given to note.
func (r *rota) update(ctx context.Context, note func(v *fakenode.Volume, what any)) (took []time.Duration, wrong int, err error) {
	w, err := openWatch()
	if err != nil {
		return nil, 0, err
	}
	defer w.close()
	for tick := time.NewTicker(r.gap); ; {
		select {
		case <-ctx.Done():
			return took, wrong, nil
		case <-tick.C:
		}
		v := r.volumes[r.updates%len(r.volumes)]
		r.updates++
		if err := v.Prepare(); err != nil {
			return nil, 0, err
		}
		if err := w.drain(); err != nil {
			return nil, 0, err
		}
		begin := time.Now()
		if err := v.Renew(); err != nil {
			return nil, 0, err
		}
		healed, err := w.unmounted(v.Points, r.patience)
		if err != nil {
			return nil, 0, err
		}
		took = append(took, time.Since(begin))
		if last := took[len(took)-1]; last > longStale {
			note(v, last)
		}
		if err := v.Current(); healed && err != nil {
			// A mount that no process used is removed before another takes its place, where the kernel cannot put one beneath it.
			again, errAgain := w.current(v, r.patience)
			if errAgain != nil {
				return nil, 0, errAgain
			}
			note(v, fmt.Sprintf("%v; a moment later: %v", err, again))
			if again != nil {
				wrong++
			}
		}
	}
}

// repairs are how many mounts the agent has repaired, by the fault.
func (n *attackedNode) repairs(b *testing.B) map[string]float64 {
	b.Helper()
	done := map[string]float64{}
	n.agent.Await(b, "the metrics", func(m map[string]float64) bool {
		for name, value := range m {
			labels, ok := strings.CutPrefix(name, "kubediag_repairs_total")
			if ok && strings.Contains(labels, `outcome="Done"`) {
				_, rest, _ := strings.Cut(labels, `fault="`)
				fault, _, _ := strings.Cut(rest, `"`)
				done[fault] += value
			}
		}
		return true
	})
	return done
}

// hang has all volumes of one pod answer no more, and a process ask each of them. It returns their places.
func (n *attackedNode) hang(b *testing.B) (points []string) {
	b.Helper()
	shares := n.AddShares(b, fakenode.Shares{Name: "hung", Volumes: hungVolumes, Pods: 1, Servers: 1})
	shares[0].Stop(b)
	for _, v := range shares {
		user := exec.Command("stat", v.Points[0]+"/data")
		must(b, user.Start())
		b.Cleanup(func() { _ = user.Wait() })
		points = append(points, v.Points...)
	}
	b.Cleanup(func() { shares[0].Continue(b) })
	n.agent.Await(b, "hung mounts to be told of", func(m map[string]float64) bool { return m[hung] > 0 })
	return points
}

// attack starts all other attacks, and returns the processes whose mounts must not change.
func (n *attackedNode) attack(b *testing.B, scratch string) (forging []int) {
	b.Helper()
	unprivileged := sys.Clone{User: true}
	kerneltest.FloodAs(b, unprivileged, "", floodMounts, floodSpaces)
	kerneltest.StartWith(b, sys.PrivateMounts(unprivileged), "descriptors", fmt.Sprint(manyDescriptors))
	kerneltest.StartWith(b, sys.PrivateMounts(unprivileged), "unlinks", scratch)
	for _, v := range n.shares[:forgers] {
		group, err := os.Open(v.Groups[0])
		must(b, err)
		attr := sys.PrivateMounts(unprivileged)
		attr.UseCgroupFD, attr.CgroupFD = true, int(group.Fd())
		forging = append(forging, kerneltest.StartWith(b, attr, "forge", b.TempDir(), forgedAt).PID)
		must(b, group.Close())
	}
	return forging
}

// maxFailures is how many failures in a row have the kubelet restart a container, see failureThreshold of a probe.
const maxFailures = 3

// probe asks a program for its health as the kubelet does, until the function that it gives is called: that gives how often the kubelet would
// have started it again.
func probe(tb testing.TB, program *fakenode.Agent, every time.Duration) (restarts func() int) {
	ctx, cancel := context.WithCancel(tb.Context())
	result := make(chan int, 1)
	go func() {
		restarts, failures := 0, 0
		for tick := time.NewTicker(every); ; {
			select {
			case <-ctx.Done():
				result <- restarts
				return
			case <-tick.C:
			}
			if failures++; program.Health() == nil {
				failures = 0
			}
			if failures == maxFailures {
				restarts, failures = restarts+1, 0
			}
		}
	}()
	return func() int {
		cancel()
		restarts, failures := <-result, 0
		for program.Health() != nil {
			if failures++; failures == maxFailures {
				return restarts + 1
			}
		}
		return restarts
	}
}

func (n *attackedNode) report(b *testing.B, peace, amid phase) {
	b.Helper()
	restarts := 0
	for _, of := range n.restarts {
		restarts += of()
	}
	for name := range peace {
		b.Logf("%s: %d in peace, %d attacked", name, len(peace[name]), len(amid[name]))
		for _, p := range []int{50, 99} {
			before, with := percentile(peace[name], p), percentile(amid[name], p)
			ratio := float64(with) / float64(before)
			b.Logf("%s: p%d is %v in peace, %v attacked", name, p, before, with) // metrics are not printed of what fails
			b.ReportMetric(milliseconds(before), fmt.Sprintf("ms-%s-in-peace-p%d", name, p))
			b.ReportMetric(milliseconds(with), fmt.Sprintf("ms-%s-attacked-p%d", name, p))
			b.ReportMetric(ratio, fmt.Sprintf("ratio-%s-p%d", name, p))
			if p == 99 && ratio > slower && name != "alert" { // which heals nothing: it has to be taken
				b.Errorf("%s: p99 is %v, in peace %v: more than %d times that", name, with, before, slower)
			}
		}
	}
	most, mostOfManager := mostResident(b, n.agent.Process.Pid), mostResident(b, n.town.manager.Process.Pid)
	b.Logf("%.0f MiB of the agent and %.0f MiB of the manager at most, %d wrong repairs, %d restarts", most, mostOfManager, n.wrong, restarts)
	b.ReportMetric(most, "MiB-at-most")
	b.ReportMetric(mostOfManager, "MiB-manager-at-most")
	b.ReportMetric(float64(n.wrong), "wrong-repairs")
	b.ReportMetric(float64(restarts), "restarts")
	if n.wrong > 0 || restarts > 0 || most > kerneltest.AgentMemory>>20 || mostOfManager > managerMemory>>20 {
		b.Errorf("%d wrong repairs, %d restarts, agent %.0f and manager %.0f MiB at most", n.wrong, restarts, most, mostOfManager)
	}
}

func pointsOf(volumes []*fakenode.Volume) (points []string) {
	for _, v := range volumes {
		points = append(points, v.Points...)
	}
	return points
}

// table has the mounts of a process, or its mounts at these points alone.
type table struct {
	pid    int
	points []string
	before string
}

func (t *table) read(b *testing.B) string {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", t.pid))
	must(b, err)
	lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool {
		f := strings.Fields(line)
		return len(f) < 5 || t.points != nil && !slices.Contains(t.points, f[4])
	})
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
