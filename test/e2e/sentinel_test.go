// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/install"
)

// withTheBug is a node whose kubelet writes each of its Events to its log: it sends only the first 25 about a pod.
var withTheBug = cluster.Options{Kubelet: cluster.Kubernetes118, SyncFrequency: time.Second, KubeletArgs: []string{"--v=3"}}

// TestSentinel goes through the modes of the sentinel on one node with the bug: what it reports, what comes of it
// without the sentinel, and that with it no container ever fails to start.
func TestSentinel(t *testing.T) {
	t.Parallel()
	e := start(t, withTheBug)
	bystander := e.deploy(t)
	s := e.deploySubPaths(t)
	stage(t, "Observe", s.observed)
	stage(t, "Off", s.broken)
	stage(t, "Automatic", func(t *testing.T) {
		s.healed(t, func() { s.SetSentinel(t, "Automatic") })
		s.neverFails(t, 10)
	})
	after := e.podOf(t.Context(), "core2")
	if after == nil || after.Status.ContainerStatuses[0].ContainerID != bystander.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the pod beside it was touched: %+v", after)
	}
	e.logMemory(t)
}

// TestSentinelWhereTheKubeletHasADiskOfItsOwn has the kubelet's root on another file system, and reached by a link.
func TestSentinelWhereTheKubeletHasADiskOfItsOwn(t *testing.T) {
	t.Parallel()
	o := withTheBug
	o.KubeletDisk, o.SyncFrequency = true, time.Minute
	e := start(t, o)
	e.SetSentinel(t, "Automatic")
	s := e.deploySubPaths(t)
	if m := s.binds(t)["config"]; !strings.HasPrefix(m.Root, "/pods/") || strings.HasPrefix(m.Point, e.KubeletRoot()+"/") {
		t.Fatalf("the bind of the ConfigMap is of %q, at %q", m.Root, m.Point)
	}
	s.neverEmpty(t, 10)
	s.neverFails(t, 3)
}

// observed updates everything and expects nothing but reports.
func (s *subPaths) observed(t *testing.T) {
	before := s.binds(t)
	s.update(t)
	s.Wait(t, "every bind to be stale", func(context.Context) bool { return s.allStale(t) })
	s.Wait(t, "an Event for every stale bind", func(context.Context) bool { return len(s.volumesInEvents(t, "StaleSubPath")) == len(kinds) })
	s.Wait(t, "the metrics to count them", func(context.Context) bool {
		return s.metric(t, `kubediag_faults{code="StaleSubPath"}`) == float64(len(kinds))
	})
	for name, m := range s.binds(t) {
		if b := before[name]; m.ID != b.ID || m.Point != b.Point {
			t.Errorf("mount %d at %q is mount %d at %q now", b.ID, b.Point, m.ID, m.Point)
		}
	}
	if n := s.metric(t, "kubediag_repairs_total"); n != 0 {
		t.Errorf("%v repairs were tried", n)
	}
	s.checkStillRuns(t)
	report, status := s.scan(t)
	for _, k := range kinds {
		if !slices.ContainsFunc(report.Faults, func(f scanFault) bool {
			return f.Code == "StaleSubPath" && f.Pod.Namespace == "default" && f.Pod.Name == "subpaths" && f.Container == k.name &&
				f.Volume == k.name && strings.HasSuffix(f.Mount.Point, s.point(k))
		}) {
			t.Errorf("scan does not name container %s", k.name)
		}
	}
	if status != 1 || len(report.Faults) != len(kinds) {
		t.Errorf("scan ends with status %d: %+v", status, report)
	}
	s.scansFromPods(t)
}

// scansFromPods scans from the agent's pod, and from one that kubectl debug makes.
func (s *subPaths) scansFromPods(t *testing.T) {
	want := fmt.Sprintf("%d faults: StaleSubPath", len(kinds))
	said, status := s.KubectlStatus(t, "exec", "-n", install.Namespace, "ds/kubediag-agent", "--", "/kubediag", "scan", "--brief", s.kubeletFlag())
	if status != 1 || !strings.Contains(said, want) {
		t.Errorf("scan in the agent's pod ends with status %d: %s", status, said)
	}
	s.Kubectl(t, "", "debug", "node/"+s.NodeName(), "--image=localhost/kubediag/cli:v0.1.0", "--profile=sysadmin", "--", "/kubediag", "scan", "--brief", s.kubeletFlag())
	var debugger *corev1.Pod
	s.Wait(t, "the scan of kubectl debug to end", func(ctx context.Context) bool {
		var pods corev1.PodList
		must(t, s.List(ctx, &pods, client.InNamespace("default")))
		i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return strings.HasPrefix(p.Name, "node-debugger-") })
		if i < 0 {
			return false
		}
		debugger = &pods.Items[i]
		return len(debugger.Status.ContainerStatuses) == 1 && debugger.Status.ContainerStatuses[0].State.Terminated != nil
	})
	said = s.Kubectl(t, "", "logs", "-n", "default", debugger.Name)
	if ended := debugger.Status.ContainerStatuses[0].State.Terminated; ended.ExitCode != 1 || !strings.Contains(said, want) {
		t.Errorf("scan of kubectl debug ends with status %d: %s", ended.ExitCode, said)
	}
	s.Kubectl(t, "", "delete", "pod", "-n", "default", debugger.Name)
}

// broken restarts the containers with stale binds and nobody to unmount them: it shows that the fault is real.
func (s *subPaths) broken(t *testing.T) {
	s.SetSentinel(t, "Off")
	if !s.allStale(t) {
		t.Fatalf("not every bind is stale: %+v", s.binds(t))
	}
	s.kill(t)
	for _, k := range kinds {
		s.Wait(t, "the start of container "+k.name+" to fail", func(ctx context.Context) bool {
			must(t, s.Get(ctx, client.ObjectKeyFromObject(s.pod), s.pod))
			return slices.ContainsFunc(failedStarts(s.pod), func(text string) bool {
				return strings.HasPrefix(text, "container "+k.name+" ended: StartError") && strings.Contains(text, s.point(k)) &&
					strings.Contains(text, "no such file or directory")
			})
		})
	}
	if !s.allStale(t) {
		t.Errorf("not every bind is stale any more: %+v", s.binds(t))
	}
	if n := s.logged(t, "Failed"); n < len(kinds) {
		t.Errorf("the kubelet has logged %d Events of failed starts", n)
	}
}

// awaitReplaced waits until no bind is stale.
func (s *subPaths) awaitReplaced(t *testing.T) {
	t.Helper()
	s.Wait(t, "the stale binds to be replaced", func(context.Context) bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(s.binds(t))), func(m mountinfo.Mount) bool { return m.Deleted() })
	})
}

// healed allows repairs where binds are stale already.
func (s *subPaths) healed(t *testing.T, allow func()) {
	stale := s.places(t)
	allow()
	s.awaitReplaced(t)
	s.Wait(t, "an Event for every repair", func(context.Context) bool { return len(s.volumesInEvents(t, "MountRepaired")) == len(kinds) })
	s.checkAllRenewed(t, stale)
	s.restart(t)
	s.Wait(t, "a scan to look at everything, and to find nothing", func(context.Context) bool {
		report, status := s.scan(t)
		if len(report.Faults) > 0 {
			t.Errorf("scan ends with status %d: %+v", status, report)
		}
		return status == 0 && report.Looked.Binds >= len(kinds)
	})
}

// neverFails updates everything and restarts every container, many times. A volume that is made of several objects may be
// written more than once for one update.
func (s *subPaths) neverFails(t *testing.T, times int) {
	t.Helper()
	mounts, places, before, soon, unread := s.mounts(t), s.places(t), s.count(t), s.metric(t, soonMetric), s.unread(t)
	delay := s.metric(t, "kubediag_fault_detection_seconds_sum")
	end := s.witness(t)
	for range times {
		began := time.Now()
		s.update(t)
		updated := time.Now()
		s.restart(t)
		t.Logf("revision %s: in the volumes after %.1f s, all containers run again %.1f s later", s.text(), updated.Sub(began).Seconds(),
			time.Since(updated).Seconds())
	}
	for _, failure := range end() {
		t.Error(failure)
	}
	n := times * len(kinds)
	got := s.count(t).since(before)
	healed := max(float64(n), got.repairs)
	want := counts{started: n, starts: n, unmounted: healed, repairs: healed, detections: healed}
	for deadline := time.Now().Add(time.Minute); got != want && time.Now().Before(deadline); got = s.count(t).since(before) {
		time.Sleep(100 * time.Millisecond) // the kubelet writes its log a moment later
	}
	if got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	if n := s.unread(t) - unread; n > 0 {
		t.Logf("the kubelet has put off %d starts, as others mounted while it read the mount table", n)
	}
	if soon = s.metric(t, soonMetric) - soon; soon < healed/2 {
		t.Errorf("%v of %v faults were seen within a second", soon, healed)
	}
	if left := s.metric(t, `kubediag_faults{code="StaleSubPath"}`); left != 0 {
		t.Errorf("%v faults are left", left)
	}
	s.checkOtherMounts(t, mounts, func(point string) bool { return strings.Contains(point, "/pods/"+s.uid()+"/volume-subpaths/") })
	s.checkAllRenewed(t, places)
	delay = s.metric(t, "kubediag_fault_detection_seconds_sum") - delay
	t.Logf("from the end of a source until that was seen: %.1f ms on average", 1000*delay/float64(n))
}

// neverEmpty has the kubelet start containers and update volumes at the same time. The kubelet itself may fail to bind a
// source that is being replaced; but no container may start with the empty file that is below the bind, and the next
// start comes through.
func (s *subPaths) neverEmpty(t *testing.T, times int) {
	t.Helper()
	failures := s.logged(t, "Failed")
	await := func(what string, found func(newest cri.Container) bool, meanwhile func()) {
		for _, k := range kinds {
			s.Wait(t, "container "+k.name+" "+what, func(ctx context.Context) bool {
				meanwhile()
				records, err := s.runtime.Records(ctx, s.uid(), k.name)
				must(t, err)
				return len(records) > 0 && found(records[0])
			})
		}
	}
	for range times {
		s.updateObjects(t) // the kubelet sees to that when it looks at the pod next, which is
		s.kill(t)          // when it finds the containers gone
		await("to be started", func(r cri.Container) bool { return r.Exited || !r.Started.IsZero() }, s.nudger(t))
	}
	await("to run by itself", func(r cri.Container) bool { return !r.Exited && !r.Started.IsZero() }, func() {})
	for _, k := range kinds {
		lines := s.printed(t, k)
		if len(lines) == 0 || k.name != "empty" && slices.Contains(lines, "seen") {
			t.Errorf("containers %s have printed %q", k.name, lines)
		}
	}
	t.Logf("%d of %d starts failed that were to race with an update", s.logged(t, "Failed")-failures, times*len(kinds))
	s.kill(t) // so that no failed start is on record
	s.awaitStart(t)
}

// soonMetric counts the faults that were seen within a second.
const soonMetric = `kubediag_fault_detection_seconds_bucket{code="StaleSubPath",le="1"}`

// counts are of things that happen over and over.
type counts struct {
	started            int     // containers that run or ran, by the runtime
	starts, failures   int     // of containers, by the kubelet's Events, but for those that it has put off itself
	unmounted, repairs float64 // binds, and what the sentinel has tried in all
	detections         float64 // faults whose cause has a time
}

func (s *subPaths) count(t *testing.T) counts {
	t.Helper()
	return counts{
		started: len(s.started), starts: s.logged(t, "Started"), failures: s.logged(t, "Failed") - s.unread(t),
		unmounted:  s.metric(t, `kubediag_repairs_total{action="Unmount",fault="StaleSubPath",outcome="Done"}`),
		repairs:    s.metric(t, "kubediag_repairs_total"),
		detections: s.metric(t, `kubediag_fault_detection_seconds_count{code="StaleSubPath"}`),
	}
}

func (c counts) since(b counts) counts {
	return counts{
		c.started - b.started, c.starts - b.starts, c.failures - b.failures, c.unmounted - b.unmounted, c.repairs - b.repairs,
		c.detections - b.detections,
	}
}

// checkStillRuns fails where a container is not the one that was started last.
func (s *subPaths) checkStillRuns(t *testing.T) {
	t.Helper()
	for _, k := range kinds {
		records, err := s.runtime.Records(t.Context(), s.uid(), k.name)
		must(t, err)
		if len(records) != 1 || !s.started[records[0].ID] || records[0].Exited {
			t.Errorf("container %s was touched: %+v", k.name, records)
		}
	}
}

// volumesInEvents lists the kinds of volumes whose bind an Event on the pod names, by container and volume.
func (s *subPaths) volumesInEvents(t *testing.T, reason string) []string {
	t.Helper()
	var names []string
	for _, e := range s.events(t) {
		for _, k := range kinds {
			if e.Reason == reason && strings.Contains(e.Message, "container "+k.name+", volume "+k.name) &&
				!slices.Contains(names, k.name) {
				names = append(names, k.name)
			}
		}
	}
	return names
}

// logged counts the Events on the pod that the kubelet has written to its log, by their reason.
func (s *subPaths) logged(t *testing.T, reason string) int {
	t.Helper()
	n := 0
	for line := range strings.Lines(s.kubeletLog(t)) {
		if strings.Contains(line, "Event(v1.ObjectReference{") && strings.Contains(line, `UID:"`+s.uid()+`"`) &&
			strings.Contains(line, " reason: '"+reason+"'") {
			n++
		}
	}
	return n
}

// unread counts the starts that the kubelet has put off for it could not read its mount table: it wants to read it twice in a
// row with the same content, and gives up after four reads between which others have mounted or unmounted. It has asked no
// runtime by then, and tries again when it looks at the pod next.
func (s *subPaths) unread(t *testing.T) int {
	t.Helper()
	n := 0
	for line := range strings.Lines(s.kubeletLog(t)) {
		if strings.Contains(line, "failed to prepare subPath") && strings.Contains(line, "/pods/"+s.uid()+"/") &&
			strings.Contains(line, "could not get consistent content of /proc/mounts") {
			n++
		}
	}
	return n
}

// events lists the Events on the pod.
func (s *subPaths) events(t *testing.T) []corev1.Event {
	t.Helper()
	var list corev1.EventList
	must(t, s.List(t.Context(), &list, client.InNamespace("default")))
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.InvolvedObject.UID != s.pod.UID })
}

// scanReport is what the tests read of what kubediag scan writes.
type scanReport struct {
	Faults []scanFault
	Looked struct {
		Binds, RenewedByKubelet int
		NotLookedAt, Unproven   any
	}
}

type scanFault struct {
	Code, Container, Volume string
	Pod                     struct{ UID, Namespace, Name string }
	Mount                   struct{ Point string }
	Evidence                []string
}

// scan runs kubediag scan on the node and gives its report and exit status.
func (e *env) scan(t *testing.T, args ...string) (report scanReport, status int) {
	t.Helper()
	for deadline := time.Now().Add(scanPatience); ; {
		cmd := e.onNode(t.Context(), t, append([]string{"scan", "-o", "json"}, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, _ := cmd.Output() // the caller judges the exit status
		report = scanReport{}
		if err := json.Unmarshal(out, &report); err != nil {
			t.Fatalf("%v: %v, %s, standard error %q", cmd.Args, err, cmd.ProcessState, stderr.String())
		}
		if status = cmd.ProcessState.ExitCode(); status < 2 || time.Now().After(deadline) {
			return report, status
		}
		t.Logf("not looked at: %v, not judged: %v: %s", report.Looked.NotLookedAt, report.Looked.Unproven, stderr.String())
	}
}

// scanPatience is for how long a scan is made again that could not look at everything: the container runtime of a busy machine may answer too
// late, and a process of another test may wait for a mount that hangs.
const scanPatience = 10 * time.Second

// metric reads the agent's metrics and adds up those whose name, with labels, begins with name.
func (e *env) metric(t *testing.T, name string) float64 {
	t.Helper()
	return e.metricOf(t, "agent", name)
}

// metricOf is metric of the agent or the manager.
func (e *env) metricOf(t *testing.T, component, name string) float64 {
	t.Helper()
	text := install.Fetch(t, "http://"+e.Component(t, component).Status.PodIP+":8080/metrics")
	sum := 0.0
	for _, found := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+`(?:\{\S*\})? (\S+)$`).FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(found[1], 64)
		must(t, err)
		sum += n
	}
	return sum
}
