// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fusedaemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/oomlog"
)

const driver = "cephfs.csi.test"

var (
	idA     = strings.Repeat("0a1b2c3d", 8)
	idB     = strings.Repeat("f9e8d7c6", 8)
	mounted = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	seen    = mounted.Add(time.Hour)
	pod     = fault.Pod{Namespace: "kube-system", Name: "csi-x", UID: "29da79e5-386c-4e0d-82c1-215f93ff955d"}
)

const slice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod29da79e5_386c_4e0d_82c1_215f93ff955d.slice"

// runtime knows whose the test's own process is, and whose a control group with idA in it is.
type runtime struct {
	dir     string
	records []cri.Container
	err     error
}

func (r *runtime) Owner(_ context.Context, cgroup string) (cri.Owner, error) {
	owner := cri.Owner{PodUID: pod.UID, PodNamespace: pod.Namespace, PodName: pod.Name, Container: "plugin", ContainerID: idB}
	own, err := os.ReadFile("/proc/self/cgroup")
	switch {
	case r.err != nil:
		return cri.Owner{}, r.err
	case err == nil && cgroup == string(own):
		return owner, nil
	case strings.Contains(cgroup, idA):
		owner.ContainerID, owner.Mounts = idA, []cri.Mount{{HostPath: "/dev"}, {HostPath: r.dir, ContainerPath: "/csi"}}
		return owner, nil
	}
	return cri.Owner{}, cri.ErrNotFound
}

func (r *runtime) PodRecords(_ context.Context, uid string) ([]cri.Container, error) {
	if uid != pod.UID {
		return nil, fmt.Errorf("asked for pod %q", uid)
	}
	return r.records, r.err
}

// now runs, before ended 12 minutes before the fault was seen.
func now() cri.Container {
	return cri.Container{ID: idB, PodUID: pod.UID, Name: "plugin", Created: mounted, Started: seen.Add(-10 * time.Minute)}
}

func before() cri.Container {
	return cri.Container{
		ID: idA, PodUID: pod.UID, Name: "plugin", Exited: true, Created: mounted.Add(-time.Hour), Started: mounted.Add(-time.Hour),
		Finished: seen.Add(-12 * time.Minute), ExitCode: 137, Reason: "Error",
	}
}

func with(c cri.Container, change func(*cri.Container)) cri.Container {
	change(&c)
	return c
}

// steady has run since before the volume was mounted.
func steady() cri.Container {
	return with(now(), func(c *cri.Container) { c.Started = mounted.Add(-time.Minute) })
}

func kill(cgroup string, at time.Time) oomlog.Kill {
	return oomlog.Kill{Time: at, PID: 4711, Name: "ceph-fuse", Cgroup: cgroup, Limit: slice}
}

// exitOf asks about one volume.
func exitOf(t *testing.T, analyzer *Analyzer, q Question) Exit {
	t.Helper()
	return analyzer.AnalyzeAll(t.Context(), []Question{q})[0]
}

func TestAnalyze(t *testing.T) {
	t.Parallel()
	at := seen.Add(-3 * time.Second)
	for name, c := range map[string]struct {
		question Question
		records  []cri.Container
		kills    []oomlog.Kill
		deaf     bool // no process listens on the driver's socket
		want     Cause
		says     []string
		never    string
	}{
		"container ended": {
			records: []cri.Container{now(), before()}, want: ContainerEnded,
			says: []string{
				"the dead file system was mounted at 2026-01-02T03:00:00Z",
				`driver "cephfs.csi.test" is served by container "plugin" of pod kube-system/csi-x`,
				`0a1b2c3d0a1b, ended at 2026-01-02T03:48:00Z, 12m0s before the fault was first seen, with exit code 137 (Error)`,
				`f9e8d7c6f9e8 has run in its place since 2026-01-02T03:50:00Z`,
			},
			never: "not known",
		},
		"by the runtime's word": {
			records: []cri.Container{now(), with(before(), func(c *cri.Container) { c.Reason = "OOMKilled" })}, want: OOMKilled,
			says: []string{"with exit code 137 (OOMKilled)"},
		},
		"by the kernel's word": {
			records: []cri.Container{steady()}, kills: []oomlog.Kill{kill(slice+"/cri-containerd-"+idB+".scope", at)}, want: OOMKilled,
			says: []string{`03:59:57Z, 3s before the fault was first seen, the kernel killed process 4711 ("ceph-fuse") of this pod for lack of memory`},
		},
		"in the pod's own group": {
			records: []cri.Container{steady()}, kills: []oomlog.Kill{kill("/kubepods/burstable/pod"+pod.UID+"/x", at)}, want: OOMKilled,
		},
		"killed in another pod": {
			records: []cri.Container{steady()}, kills: []oomlog.Kill{kill("/kubepods/podother/"+idA, at)}, want: Unknown,
		},
		"killed in another pod's group of that name": {
			records: []cri.Container{steady()}, kills: []oomlog.Kill{kill("/kubepods/podother/x/kubepods/pod"+pod.UID+"/"+idB, at)}, want: Unknown,
		},
		"killed before it was mounted": {
			records: []cri.Container{steady()}, kills: []oomlog.Kill{kill(slice, mounted.Add(-time.Minute))}, want: Unknown,
		},
		"killed after it was seen": {
			records: []cri.Container{steady()}, kills: []oomlog.Kill{kill(slice, seen.Add(time.Minute))}, want: Unknown,
		},
		"ended before it was mounted": {
			records: []cri.Container{
				steady(),
				with(before(), func(c *cri.Container) { c.Finished = mounted.Add(-2 * time.Minute) }),
			},
			want: Unknown, says: []string{"has run since 2026-01-02T02:59:00Z: the daemon ended by itself, was killed, or ran elsewhere; why is not known"},
		},
		"ended right before it was mounted": {
			records: []cri.Container{
				with(now(), func(c *cri.Container) { c.Started = mounted.Add(-3 * time.Second) }),
				with(before(), func(c *cri.Container) { c.Finished = mounted.Add(-5 * time.Second) }),
			},
			want: Unknown, says: []string{"has run since 2026-01-02T02:59:57Z"}, never: "ended at",
		},
		"ended before it was mounted and since": {
			records: []cri.Container{
				now(),
				before(),
				with(before(), func(c *cri.Container) { c.ID, c.Finished, c.ExitCode = idB, mounted.Add(-2*time.Minute), 1 }),
			},
			want: ContainerEnded, says: []string{"ended at 2026-01-02T03:48:00Z"}, never: "exit code 1 ",
		},
		"mounted, nobody knows when": {
			question: Question{Driver: driver, Seen: seen}, records: []cri.Container{now(), before()}, want: ContainerEnded,
			says: []string{"when the volume was mounted is not known"}, never: "was mounted at",
		},
		"killed, and nobody knows when it was mounted": {
			question: Question{Driver: driver, Seen: seen}, records: []cri.Container{steady()}, kills: []oomlog.Kill{kill(slice, at)},
			want: OOMKilled, says: []string{"when the volume was mounted is not known"},
		},
		"another container of the pod": {
			records: []cri.Container{
				steady(),
				with(before(), func(c *cri.Container) { c.Name = "fuse" }),
			},
			want: ContainerEnded, says: []string{`its container "fuse", 0a1b2c3d0a1b, ended at`},
		},
		"an init container": {
			records: []cri.Container{
				steady(),
				with(before(), func(c *cri.Container) { c.Name, c.ExitCode, c.Reason = "init", 0, "Completed" }),
			},
			want: Unknown,
		},
		"pod created again": {
			records: []cri.Container{now()}, want: PodReplaced, says: []string{"the runtime has no record of the one before it: the pod was created again"},
		},
		"driver is down, and the kernel did it": {
			deaf: true, records: []cri.Container{before()}, kills: []oomlog.Kill{kill(slice+"/cri-containerd-"+idA+".scope", at)}, want: OOMKilled,
			says: []string{"it is not known who serves driver \"cephfs.csi.test\" now", "connection refused", "the kernel killed process 4711"},
		},
		"driver is down":  {deaf: true, records: []cri.Container{before()}, want: Unknown, says: []string{"why the daemon is gone is not known"}},
		"no such driver":  {question: Question{Driver: "other"}, want: Unknown, says: []string{"no such file or directory", "why the daemon is gone is not known"}},
		"no driver":       {question: Question{Seen: seen}, want: Unknown, says: []string{"that is no driver's name"}},
		"driver climbs":   {question: Question{Driver: "../x"}, want: Unknown, says: []string{"that is no driver's name"}},
		"no records left": {want: Unknown, says: []string{"why the daemon is gone is not known"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, dir := kubelettest.Driver(t, driver, !c.deaf)
			if c.question == (Question{}) {
				c.question = Question{Driver: driver, Mounted: mounted, Seen: seen}
			}
			analyzer := &Analyzer{
				Kubelet: n, Runtime: &runtime{dir: dir, records: c.records},
				Kills: func(context.Context) ([]oomlog.Kill, error) { return c.kills, nil },
			}
			got := exitOf(t, analyzer, c.question)
			if got.Cause != c.want {
				t.Errorf("cause %q, want %q", got.Cause, c.want)
			}
			said := strings.Join(got.Sentences, "\n")
			for _, want := range c.says {
				if !strings.Contains(said, want) {
					t.Errorf("it does not say %q:\n%s", want, said)
				}
			}
			if c.never != "" && strings.Contains(said, c.never) {
				t.Errorf("it says %q:\n%s", c.never, said)
			}
		})
	}
}

func TestExitIsComplete(t *testing.T) {
	t.Parallel()
	n, dir := kubelettest.Driver(t, driver, true)
	records := []cri.Container{now(), before()}
	k := kill("/kubepods/pod"+pod.UID+"/"+idA, seen)
	analyzer := &Analyzer{
		Kubelet: n, Runtime: &runtime{dir: dir, records: records},
		Kills: func(context.Context) ([]oomlog.Kill, error) { return []oomlog.Kill{k}, nil },
	}
	got := exitOf(t, analyzer, Question{Driver: driver, Mounted: mounted, Seen: seen})
	got.Sentences = nil
	want := Exit{Cause: OOMKilled, Pod: pod, Container: "plugin", Before: &records[1], After: &records[0], Kill: &k}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exit (-want +got):\n%s", diff)
	}
}

// counting counts what is asked of a runtime.
type counting struct {
	Runtime
	owners, records int
}

func (c *counting) Owner(ctx context.Context, cgroup string) (cri.Owner, error) {
	c.owners++
	return c.Runtime.Owner(ctx, cgroup)
}

func (c *counting) PodRecords(ctx context.Context, uid string) ([]cri.Container, error) {
	c.records++
	return c.Runtime.PodRecords(ctx, uid)
}

// TestAnalyzeAll: volumes of one driver that were mounted at different times end for different reasons, and everything
// is read once.
func TestAnalyzeAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want []Cause
		asks int
	}{
		"told":       {nil, []Cause{ContainerEnded, Unknown, ContainerEnded, Unknown}, 1},
		"not to say": {errors.New("it is broken"), []Cause{Unknown, Unknown, Unknown, Unknown}, 0},
	} {
		n, dir := kubelettest.Driver(t, driver, true)
		r := &counting{Runtime: &runtime{dir: dir, err: c.err, records: []cri.Container{now(), before()}}}
		read := 0
		analyzer := &Analyzer{Kubelet: n, Runtime: r, Kills: func(context.Context) ([]oomlog.Kill, error) {
			read++
			return nil, c.err
		}}
		var got []Cause
		for _, f := range analyzer.AnalyzeAll(t.Context(), []Question{
			{Driver: driver, Mounted: mounted, Seen: seen},
			{Driver: driver, Mounted: seen.Add(-time.Minute), Seen: seen},
			{Driver: driver, Mounted: mounted},
			{Driver: "other", Mounted: mounted},
		}) {
			got = append(got, f.Cause)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: causes (-want +got):\n%s", name, diff)
		}
		if read != 1 || r.owners != 1 || r.records != c.asks {
			t.Errorf("%s: the log was read %d times, owners asked for %d times, records %d times", name, read, r.owners, r.records)
		}
	}
}

func TestUnreadableSourcesAreReported(t *testing.T) {
	t.Parallel()
	n, _ := kubelettest.Driver(t, driver, true)
	broken := errors.New("it is broken")
	for name, c := range map[string]struct {
		runtime Runtime
		want    string
	}{
		"no runtime":     {nil, "no container runtime is known"},
		"broken runtime": {&runtime{err: broken}, "it is broken"},
	} {
		analyzer := &Analyzer{Kubelet: n, Runtime: c.runtime, Kills: func(context.Context) ([]oomlog.Kill, error) { return nil, errors.New("no log") }}
		got := exitOf(t, analyzer, Question{Driver: driver})
		said := strings.Join(got.Sentences, "\n")
		for _, want := range []string{c.want, "whether the kernel has killed it for lack of memory is not known: no log", "why the daemon is gone is not known"} {
			if !strings.Contains(said, want) {
				t.Errorf("%s: it does not say %q:\n%s", name, want, said)
			}
		}
		if got.Cause != Unknown {
			t.Errorf("%s: cause %q", name, got.Cause)
		}
	}
}

func TestPodOf(t *testing.T) {
	t.Parallel()
	for cgroup, want := range map[string]string{
		slice + "/cri-containerd-" + idA + ".scope":                                pod.UID,
		"/kubepods/burstable/pod" + pod.UID:                                        pod.UID,
		"/kubepods/pod0123abcd/" + idA:                                             "0123abcd",
		"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod0123abcd.slice": "0123abcd",
		"/kubepods/pod1/x/kubepods/pod2":                                           "1",
		"/user.slice/pod1":                                                         "",
		"/pod1":                                                                    "",
		"/k8s.io/" + idA:                                                           "",
		"":                                                                         "",
	} {
		if got := podUIDOf(cgroup); got != want {
			t.Errorf("%q is of pod %q, want %q", cgroup, got, want)
		}
	}
}
