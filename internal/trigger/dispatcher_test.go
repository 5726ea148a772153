// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
)

func (c *cluster) offer(t *testing.T, trigger string, causes ...Cause) {
	t.Helper()
	for _, cause := range causes {
		if err := c.d.Offer(trigger, cause); err != nil {
			t.Errorf("offering %q: %v", cause.Key, err)
		}
	}
	synctest.Wait()
}

func TestDiagnosisOfACause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, interceptor.Funcs{})
		tr := c.add(t, "failed.mounts", func(s *v1.TriggerSpec) {
			s.Mode, s.Parameters = v1.ModePlan, map[string]string{"param.fixed": "yes"}
		})
		stop := c.start(t)
		cause := podCause("a")
		cause.Parameters = map[string]string{"param.known": "value"}
		c.offer(t, tr.Name, cause)
		stop()
		all := c.diagnoses(t)
		if len(all) != 1 {
			t.Fatalf("%d Diagnoses", len(all))
		}
		d := all[0]
		if !strings.HasPrefix(d.Name, "failed-mounts-") || strings.Contains(d.Name, ".") {
			t.Errorf("name = %q", d.Name)
		}
		want := v1.DiagnosisSpec{
			OperationSet: "set", Mode: v1.ModePlan, NodeName: "n1", PodReference: &v1.PodReference{Namespace: "team", Name: "web"},
			Parameters: map[string]string{"param.fixed": "yes", "param.known": "value"},
		}
		if diff := cmp.Diff(want, d.Spec); diff != "" {
			t.Errorf("spec (-want +got):\n%s", diff)
		}
		owner := metav1.OwnerReference{APIVersion: v1.GroupVersion.String(), Kind: "Trigger", Name: tr.Name, UID: tr.UID}
		if diff := cmp.Diff([]metav1.OwnerReference{owner}, d.OwnerReferences); diff != "" || d.Labels[v1.LabelTrigger] != tr.Name {
			t.Errorf("owner (-want +got):\n%s%v", diff, d.Labels)
		}
		if d.Annotations[v1.AnnotationKubernetesEvent] != "{}" {
			t.Errorf("annotations = %v", d.Annotations)
		}
		p := c.d.Progress(tr.Name)
		if p.Tally.Matched != 1 || p.Tally.Fired != 1 || p.Tally.LastDiagnosis != d.Name || p.Busy || p.Pending != 0 {
			t.Errorf("progress = %+v", p)
		}
		c.d.Settle(tr.Name, p.Tally)
		if p := c.d.Progress(tr.Name); p.Tally.Matched != 0 || p.Tally.Fired != 0 {
			t.Errorf("settled progress = %+v", p)
		}
	})
}

// A cause fires once within the interval, also over the edge of two slots and over a restart, and again after it.
func TestRepeatInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, interceptor.Funcs{})
		tr := c.add(t, "t", func(s *v1.TriggerSpec) { s.RepeatIntervalSeconds = new(int32(600)) })
		stop := c.start(t)
		time.Sleep(9*time.Minute + 50*time.Second) // near the end of a slot: the clock of the bubble begins at midnight
		for range 25 {                             // 8 minutes: until the next slot is old
			c.offer(t, "t", podCause("a"))
			time.Sleep(20 * time.Second)
		}
		if n := len(c.diagnoses(t)); n != 1 {
			t.Errorf("%d Diagnoses within the interval", n)
		}
		stop()
		c.d = &Dispatcher{Client: c, Reader: c, Namespace: namespace} // another manager
		c.d.Ensure(tr)
		stop = c.start(t)
		c.offer(t, "t", podCause("a"))
		if n := len(c.diagnoses(t)); n != 1 {
			t.Errorf("%d Diagnoses after the restart", n)
		}
		c.end(t)
		time.Sleep(10 * time.Minute)
		c.offer(t, "t", podCause("a"), podCause("b"))
		if n := len(c.diagnoses(t)); n != 2 {
			t.Errorf("%d Diagnoses after the interval: b waits for a, of the same pod", n)
		}
		stop()
		if p := c.d.Progress("t"); p.Tally.Repeated != 1 || p.Tally.Fired != 1 || p.Tally.Dropped[v1.ReasonStillRunning].Count != 1 {
			t.Errorf("progress = %+v", p)
		}
	})
}

// Two dispatchers that both think they lead make one Diagnosis of a cause.
func TestTwoDispatchers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, interceptor.Funcs{})
		tr := c.add(t, "t", func(s *v1.TriggerSpec) { s.NodeSelector = &metav1.LabelSelector{} })
		other := &cluster{c.WithWatch, &Dispatcher{Client: c, Reader: c, Namespace: namespace}}
		other.d.Ensure(tr)
		stop, stopOther := c.start(t), other.start(t)
		for i := range 20 {
			cause := nodeCause(fmt.Sprint(i), fmt.Sprint("n", i%2+1))
			_, _ = c.d.Offer("t", cause), other.d.Offer("t", cause)
			time.Sleep(time.Minute) // until neither waits for its pace
			c.end(t)
		}
		time.Sleep(time.Minute)
		stop()
		stopOther()
		if n := len(c.diagnoses(t)); n != 20 {
			t.Errorf("%d Diagnoses of 20 causes", n)
		}
	})
}

// Defect 27: causes of one second have names of their own, whatever characters name them.
func TestNamesOfOneSecond(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	tr := &v1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("a.b-", 60) + "c", UID: "uid"}}
	for _, key := range []string{"High CPU", "high cpu", "high-cpu", "", "\x00", strings.Repeat("x", 10<<10)} {
		for _, node := range []string{"n1", "n2"} {
			c := nodeCause(key, node)
			name := diagnosisName(tr, &c, 1, node)
			if seen[name] || len(name) > 63 || strings.ContainsAny(name, ". ") || strings.Contains(name, "--") {
				t.Errorf("name of %q on %s = %q", printable.Clip(key, 20), node, name)
			}
			seen[name] = true
		}
	}
}

func TestDropped(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec   func(*v1.TriggerSpec)
		cause  func(*Cause)
		reason string
	}{
		"no pod":                  {nil, func(c *Cause) { c.Pod.Name = "gone" }, v1.ReasonPodNotFound},
		"another pod of its name": {nil, func(c *Cause) { c.PodUID = "other" }, v1.ReasonPodNotFound},
		"pod on another node":     {nil, func(c *Cause) { c.Node = "n2" }, v1.ReasonPodOnOtherNode},
		"no node of the name":     {nil, func(c *Cause) { c.Pod, c.Node = nil, "n3" }, v1.ReasonNodeNotFound},
		"no node at all":          {nil, func(c *Cause) { c.Pod = nil }, v1.ReasonNoNode},
		"no node is selected": {
			func(s *v1.TriggerSpec) {
				s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"all": "no"}}
			},
			func(c *Cause) { c.Pod = nil }, v1.ReasonNoNode,
		},
		"no set":       {func(s *v1.TriggerSpec) { s.OperationSet = "none" }, nil, v1.ReasonOperationSetNotFound},
		"suspended":    {func(s *v1.TriggerSpec) { s.Suspend = true }, nil, v1.ReasonSuspended},
		"not declared": {nil, func(c *Cause) { c.Parameters = map[string]string{"pod.name": "x"} }, v1.ReasonParameterNotDeclared},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, interceptor.Funcs{})
				c.add(t, "t", tc.spec)
				c.start(t)
				cause := podCause("a")
				if tc.cause != nil {
					tc.cause(&cause)
				}
				c.offer(t, "t", cause)
				time.Sleep(time.Minute) // what may be there soon is waited for
				synctest.Wait()
				p := c.d.Progress("t")
				if len(c.diagnoses(t)) != 0 || len(p.Tally.Dropped) != 1 || p.Tally.Dropped[tc.reason].Count != 1 || p.Tally.Dropped[tc.reason].Message == "" {
					t.Errorf("dropped = %+v", p.Tally.Dropped)
				}
			})
		})
	}
}

// A cause that comes before its OperationSet is ready is kept for a while.
func TestSetComesLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, interceptor.Funcs{})
		c.add(t, "t", func(s *v1.TriggerSpec) { s.OperationSet = "later" })
		c.start(t)
		c.offer(t, "t", podCause("a"))
		set := &v1.OperationSet{ObjectMeta: metav1.ObjectMeta{Name: "later"}}
		must(t, c.Create(t.Context(), set))
		time.Sleep(2 * time.Second)
		meta.SetStatusCondition(&set.Status.Conditions, metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionTrue})
		must(t, c.Update(t.Context(), set))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if n := len(c.diagnoses(t)); n != 1 {
			t.Errorf("%d Diagnoses, %+v", n, c.d.Progress("t").Tally)
		}
	})
}

// Defect 26: a text of a signal never takes the place of the keys by which a Diagnosis names itself, its pod and its node.
func TestSignalsDoNotNameTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, interceptor.Funcs{})
		c.add(t, "t", nil)
		c.start(t)
		for _, key := range []string{"diagnosis.uid", "diagnosis.namespace", "diagnosis.name", "pod.namespace", "pod.name", "container", "node"} {
			cause := podCause(key)
			cause.Parameters = map[string]string{key: "forged"}
			c.offer(t, "t", cause)
		}
		if n := c.d.Progress("t").Tally.Dropped[v1.ReasonParameterNotDeclared].Count; n != 7 || len(c.diagnoses(t)) != 0 {
			t.Errorf("%d refused, %d Diagnoses", n, len(c.diagnoses(t)))
		}
	})
}

// Each selected node gets one Diagnosis, at the pace of the Trigger; a run that is begun again makes only the missing ones.
func TestNodeSelectorIsPaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const nodes = 40
		var objects []client.Object
		for i := range nodes {
			objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("w%02d", i), Labels: map[string]string{"role": "worker"}}})
		}
		c := newCluster(t, interceptor.Funcs{}, objects...)
		tr := c.add(t, "t", func(s *v1.TriggerSpec) {
			s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "worker"}}
			s.DiagnosesPerMinute = new(int32(60))
		})
		run := Cause{Kind: KindCron, Key: "run", Time: time.Now(), Scheduled: time.Now(), Policy: v1.ForbidConcurrent}
		stop := c.start(t)
		c.offer(t, "t", run)
		if n := len(c.diagnoses(t)); n != burst {
			t.Errorf("%d Diagnoses at once", n)
		}
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		p := c.d.Progress("t")
		if n := len(c.diagnoses(t)); n != burst+10 || p.Pending != nodes-burst-10 || !p.Busy {
			t.Errorf("%d Diagnoses after ten seconds, progress %+v", n, p)
		}
		stop()
		c.end(t)
		c.d = &Dispatcher{Client: c, Reader: c, Namespace: namespace} // another manager
		c.d.Ensure(tr)
		c.start(t)
		c.offer(t, "t", run)
		time.Sleep(time.Minute)
		synctest.Wait()
		perNode := map[string]int{}
		for _, d := range c.diagnoses(t) {
			perNode[d.Spec.NodeName]++
		}
		if p := c.d.Progress("t"); len(perNode) != nodes || len(c.diagnoses(t)) != nodes || p.Pending != 0 || p.Busy || !p.Completed.Equal(run.Scheduled) {
			t.Errorf("%d nodes, progress %+v", len(perNode), p)
		}
	})
}

// A storm of 10,000 matches a second, for ten seconds, is counted whole and answered at the pace of the Trigger.
func TestStorm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, interceptor.Funcs{})
		c.add(t, "t", nil)
		quiet := c.add(t, "quiet", nil)
		c.start(t)
		const matches = 100_000
		for i := range matches {
			cause := nodeCause(fmt.Sprint(i), "n1")
			if err := c.d.Offer("t", cause); err != nil && !errors.Is(err, errFull) {
				t.Fatal(err)
			}
			if i%1000 == 0 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		c.offer(t, quiet.Name, podCause("mine"))
		p, other := c.d.Progress("t").Tally, c.d.Progress(quiet.Name).Tally
		if other.Fired != 1 {
			t.Errorf("another Trigger made %d Diagnoses", other.Fired)
		}
		var dropped int64
		for _, d := range p.Dropped {
			dropped += d.Count
		}
		// 10 at once and one a second, of one node: the first has not ended.
		if p.Matched != matches || p.Fired != 1 || dropped+p.Fired+maxWaiting+1 < matches || dropped > matches {
			t.Errorf("matched %d, fired %d, dropped %+v", p.Matched, p.Fired, p.Dropped)
		}
		if len(c.d.lane("t").causes) > maxWaiting+1 {
			t.Errorf("%d wait", len(c.d.lane("t").causes))
		}
	})
}

// The API server fails a few times: the cause is kept. A cause that it refuses for good is dropped and counted.
func TestErrorsOfTheServer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fails int
		err   error
		fired int64
	}{
		"a while":  {3, apierrors.NewServiceUnavailable("down"), 1},
		"for good": {99, apierrors.NewServiceUnavailable("down"), 0},
		"refused":  {1, apierrors.NewForbidden(v1.GroupVersion.WithResource("diagnoses").GroupResource(), "x", errors.New("policy")), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				left := tc.fails
				c := newCluster(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if _, ok := o.(*v1.Diagnosis); ok && left > 0 {
						left--
						return tc.err
					}
					return c.Create(ctx, o, opts...)
				}})
				c.add(t, "t", nil)
				c.start(t)
				c.offer(t, "t", podCause("a"))
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				p := c.d.Progress("t").Tally
				if p.Fired != tc.fired || p.Dropped[v1.ReasonAPIError].Count != 1-tc.fired {
					t.Errorf("tally = %+v", p)
				}
			})
		})
	}
}

func TestConcurrencyPolicy(t *testing.T) {
	t.Parallel()
	for policy, want := range map[v1.ConcurrencyPolicy]int{"": 1, v1.ForbidConcurrent: 1, v1.AllowConcurrent: 2, v1.ReplaceConcurrent: 1} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, interceptor.Funcs{})
				c.add(t, "t", func(s *v1.TriggerSpec) { s.NodeName = "n1" })
				c.start(t)
				at := time.Now()
				c.offer(t, "t", Cause{Kind: KindCron, Key: "1", Scheduled: at, Policy: policy})
				first := c.diagnoses(t)[0].Name
				c.offer(t, "t", Cause{Kind: KindCron, Key: "2", Scheduled: at.Add(time.Minute), Policy: policy})
				all := c.diagnoses(t)
				replaced := !slices.ContainsFunc(all, func(d v1.Diagnosis) bool { return d.Name == first })
				if len(all) != want || replaced != (policy == v1.ReplaceConcurrent) {
					t.Errorf("%d Diagnoses, the first was replaced: %t", len(all), replaced)
				}
			})
		})
	}
}

// A Trigger that is deleted or suspended while its nodes wait makes no more.
func TestForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, interceptor.Funcs{})
		c.d.Forget("none")
		c.add(t, "t", nil)
		for i := range 5 {
			c.offer(t, "t", nodeCause(fmt.Sprint(i), "n1"))
		}
		c.d.Forget("t") // before it began
		c.add(t, "u", func(s *v1.TriggerSpec) {
			s.DiagnosesPerMinute = new(int32(1))
			s.NodeSelector = &metav1.LabelSelector{}
		})
		c.start(t)
		for i := range 30 {
			cause := nodeCause(fmt.Sprint(i), "")
			cause.Policy = v1.AllowConcurrent
			c.offer(t, "u", cause)
		}
		before := len(c.diagnoses(t))
		c.d.Forget("u")
		time.Sleep(time.Hour)
		c.offer(t, "u", nodeCause("late", "n1"))
		if n := len(c.diagnoses(t)); n != before || before != burst {
			t.Errorf("%d Diagnoses, %d before", n, before)
		}
	})
}

// A clock that runs ahead reserves no slot to come.
func TestTimesAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, interceptor.Funcs{})
		c.add(t, "t", nil)
		c.start(t)
		for i := range 3 {
			cause := podCause("a")
			cause.Time = cause.Time.AddDate(i, 0, 0)
			c.offer(t, "t", cause)
		}
		if n := len(c.diagnoses(t)); n != 1 {
			t.Errorf("%d Diagnoses", n)
		}
	})
}
