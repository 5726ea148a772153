// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/csi"
	"kubediag.org/kubediag/test/install"
)

// volumeHealth is the file with the Operations and the OperationSet that the Diagnoses run.
const volumeHealth = "../../config/operations/volume-health.yaml"

// diagnose runs a Diagnosis of a pod to its end.
func (v *cephVolume) diagnose(t *testing.T, name string, p *corev1.Pod) *v1.Diagnosis {
	t.Helper()
	return v.diagnosed(t, name, p, (*v1.Diagnosis).Ended)
}

// volumesOf is a Diagnosis of the volumes of a pod.
func (v *cephVolume) volumesOf(name string, p *corev1.Pod) *v1.Diagnosis {
	return diagnosisOf("default", name, "volume-health-op-set", v.NodeName(), p)
}

// diagnosed makes a Diagnosis of a pod, which may be evicted, and gives it as it is when it is as wanted.
func (v *cephVolume) diagnosed(t *testing.T, name string, p *corev1.Pod, wanted func(*v1.Diagnosis) bool) *v1.Diagnosis {
	t.Helper()
	d := v.volumesOf(name, p)
	d.Spec.Parameters = map[string]string{v1.ParamEvictAllowed: "true"}
	must(t, v.Create(t.Context(), d))
	return v.AwaitDiagnosis(t, name, wanted)
}

// checkUnasked makes a Diagnosis whose agent may evict its pod, and which does not ask for that.
func (v *cephVolume) checkUnasked(t *testing.T, p *corev1.Pod) {
	t.Helper()
	d := v.runDiagnosis(t, v.volumesOf("unasked", p))
	checkContains(t, messages(d, "pod-evict-recover"), `set its parameter param.recover.kubernetes.pod_evict.allowed to "true"`)
	v.checkStays(t, p)
}

// checkStays fails if a pod is gone or going.
func (v *cephVolume) checkStays(t *testing.T, p *corev1.Pod) {
	t.Helper()
	var now corev1.Pod
	must(t, v.Get(t.Context(), client.ObjectKeyFromObject(p), &now))
	if now.UID != p.UID || now.DeletionTimestamp != nil {
		t.Errorf("the pod goes: %+v", now.ObjectMeta)
	}
}

// messages are what the runs of an operation say.
func messages(d *v1.Diagnosis, operation string) string {
	var all []string
	for _, o := range d.Status.Operations {
		if o.Operation == operation {
			all = append(all, fmt.Sprintf("%s: %s", o.Phase, o.Message))
		}
	}
	return strings.Join(all, "; ")
}

// evidence is that of all faults.
func evidence(d *v1.Diagnosis) string {
	var all []string
	for _, f := range d.Status.Faults {
		all = append(all, f.Evidence...)
	}
	return strings.Join(all, "\n")
}

func checkContains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not said:\n%s", part, text)
		}
	}
}

// checkEvents waits until there is a Warning on every pod, and until the metric says how many faults there are.
func (v *cephVolume) checkEvents(t *testing.T, since time.Time) {
	t.Helper()
	for i := range v.pods {
		v.Wait(t, "an Event on pod "+v.pods[i].Name, func(context.Context) bool {
			return v.countEvents(t, &v.pods[i], corev1.EventTypeWarning, "DisconnectedFUSE") > 0
		})
	}
	t.Logf("Events on all pods %.1f s after the end of the daemon", time.Since(since).Seconds())
	want := 4 * len(v.pods) // the volume, its part, and one in each container
	v.awaitFaults(t, "DisconnectedFUSE", want)
	t.Logf("the metric says %d faults %.1f s after the end of the daemon", want, time.Since(since).Seconds())
	v.Wait(t, "kubediag scan to find just these", func(context.Context) bool {
		report, status := v.scan(t)
		if status == 1 && len(report.Faults) == want {
			return true
		}
		// While the runtime is too busy to say whose a container is, the mounts in the driver's count as well.
		t.Logf("scan ends with status %d and has %d faults: %+v", status, len(report.Faults), report.Faults)
		return false
	})
}

// awaitFaults waits until the agent's metrics count so many faults of that code; where it is empty, of any but the orphans,
// which are counted half a minute after the agent's start.
func (v *cephVolume) awaitFaults(t *testing.T, code string, want int) {
	t.Helper()
	v.Wait(t, fmt.Sprintf("the metric to say %d faults %s", want, code), func(context.Context) bool { return v.faults(t, code) == want })
}

func (v *cephVolume) faults(t *testing.T, code string) int {
	t.Helper()
	if code != "" {
		return int(v.metric(t, fmt.Sprintf("kubediag_faults{code=%q}", code)))
	}
	return int(v.metric(t, "kubediag_faults")) - v.faults(t, orphanCode)
}

// countEvents counts how often the agent has said something on a pod.
func (v *cephVolume) countEvents(t *testing.T, p *corev1.Pod, kind, reason string) (times int) {
	t.Helper()
	var list corev1.EventList
	must(t, v.List(t.Context(), &list, client.InNamespace("default")))
	for _, e := range list.Items {
		if e.InvolvedObject.UID == p.UID && e.Source.Component == "kubediag-agent" && e.Type == kind && e.Reason == reason {
			times += int(max(e.Count, 1))
		}
	}
	return times
}

// killDriver kills the driver. The one that comes after it leaves the mount for the node as it is. A Diagnosis says what has
// become of the daemon, and how to allow what it may not do.
func (v *cephVolume) killDriver(t *testing.T) {
	before := v.driver.Pod(t)
	v.driver.CrashAndLeave(t)
	v.checkDead(t, v.staging(t))
	var after *corev1.Pod
	v.Wait(t, "the status to name the driver's next container", func(context.Context) bool {
		after = v.driver.Pod(t)
		s := after.Status.ContainerStatuses[0]
		return s.State.Running != nil && s.LastTerminationState.Terminated != nil
	})
	v.Kubectl(t, "", "apply", "-f", volumeHealth)
	d := v.diagnose(t, "refused", &v.pods[1])
	checkEnd(t, d, v1.DiagnosisFailed, v1.OutcomeFaultFound)
	checkContains(t, messages(d, "volume-rebind-recover"), "is not alive either")
	checkContains(t, messages(d, "pod-evict-recover"), "--allow-eviction", "config/overlays/eviction")
	checkContains(t, evidence(d),
		fmt.Sprintf("container %q of pod %s/%s", before.Spec.Containers[0].Name, before.Namespace, before.Name),
		shortID(before)+", ended at ", "with exit code 137 (OOMKilled); "+shortID(after)+" has run in its place",
		fmt.Sprintf("the kernel killed process %d (%q) of this pod for lack of memory", v.killed, "ceph-fuse"))
}

// shortID is how people are told of the pod's first container.
func shortID(p *corev1.Pod) string {
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	return id[:12]
}

// heal has kubediag put the volume that is mounted for the node in the place of the dead one, for both pods: one has
// containers that cannot be started, the other has containers that run, and go on running.
func (v *cephVolume) heal(t *testing.T) {
	v.checkScan(t, 1)
	for i := range v.pods {
		p := &v.pods[i]
		d := v.diagnose(t, p.Name, p)
		v.checkHealed(t, d)
		for _, point := range []string{v.mounted(p), v.subPath(p)} {
			if got, want := deviceOf(t, point), deviceOf(t, v.staging(t)); got != want {
				t.Errorf("at %q is file system %s, not %s", point, got, want)
			}
		}
	}
	v.checkReaders(t, "whole", "part")
	if left := v.copies(t); len(left) > 0 {
		t.Errorf("still there: %+v", left)
	}
	v.checkSame(t, v.pods[1:])
	v.checkScan(t, 0)
	v.awaitFaults(t, "", 0)
	for i := range v.pods {
		p := &v.pods[i]
		must(t, v.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	}
}

// checkHealed looks at a Diagnosis that has repaired a pod.
func (v *cephVolume) checkHealed(t *testing.T, d *v1.Diagnosis) {
	t.Helper()
	results := d.Status.OperationResults
	if code := results["diagnoser.kubernetes.volume_health.code"]; d.Status.Phase != v1.DiagnosisSucceeded ||
		d.Status.Outcome != v1.OutcomeHealed || code != "DisconnectedFUSE" {
		t.Errorf("phase %q, outcome %q, code %q", d.Status.Phase, d.Status.Outcome, code)
	}
	if refused := results["recover.kubernetes.volume_rebind.refusals"]; refused != "" {
		t.Errorf("refused: %s", refused)
	}
	for _, f := range d.Status.Faults {
		if f.State != v1.FaultHealed {
			t.Errorf("fault %+v", f)
		}
	}
}

// checkSame fails where a container is not the one that it was.
func (v *cephVolume) checkSame(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	for i := range pods {
		var now corev1.Pod
		must(t, v.Get(t.Context(), client.ObjectKeyFromObject(&pods[i]), &now))
		for j, s := range now.Status.ContainerStatuses {
			if b := pods[i].Status.ContainerStatuses[j]; s.ContainerID != b.ContainerID || s.RestartCount != b.RestartCount {
				t.Errorf("container %s of pod %s was started again", s.Name, now.Name)
			}
		}
	}
}

// checkScan runs kubediag scan on the node. It ends with status 1 where it finds that the volume of both pods is dead.
func (v *cephVolume) checkScan(t *testing.T, want int) {
	t.Helper()
	report, status := v.scan(t)
	for i := range v.pods {
		found := slices.ContainsFunc(report.Faults, func(f scanFault) bool {
			return f.Code == "DisconnectedFUSE" && f.Mount.Point == v.mounted(&v.pods[i])
		})
		if status != want || found != (want == 1) {
			t.Errorf("kubediag scan ends with status %d, not %d: %+v", status, want, report)
		}
	}
}

// stopDaemon stops the ceph-fuse. Nothing of kubediag hangs: it reports that, and heals others meanwhile. When the daemon
// goes on, so does everything.
func (v *cephVolume) stopDaemon(t *testing.T, version string) {
	v.others = v.driver.Start(t, readersOf("others", otherName, 1))
	if version == cluster.Kubernetes118 {
		v.deploy(t)
	}
	said := v.countEvents(t, &v.pods[1], corev1.EventTypeWarning, "DisconnectedFUSE")
	daemon := v.driver.Staged(t, volumeName).PID
	must(t, unix.Kill(daemon, unix.SIGSTOP))
	stopped := time.Now()
	resume := func() { _ = unix.Kill(daemon, unix.SIGCONT) }
	t.Cleanup(resume)
	hung := 4 * len(v.pods)
	v.awaitFaults(t, "HungMount", hung)
	t.Logf("the metric says HungMount %.1f s after the daemon was stopped", time.Since(stopped).Seconds())
	v.checkHung(t)
	v.checkAnswers(t)
	v.healOther(t)
	if version == cluster.Kubernetes118 {
		v.healSubPath(t)
	}
	v.checkAnswers(t)
	v.awaitFaults(t, "HungMount", hung)
	resume()
	went := time.Now()
	v.awaitFaults(t, "", 0)
	t.Logf("the metric says no fault %.1f s after the daemon went on, which had been stopped for %.1f s", time.Since(went).Seconds(),
		went.Sub(stopped).Seconds())
	v.checkReaders(t, "whole", "part")
	v.checkSame(t, v.pods)
	if now := v.countEvents(t, &v.pods[1], corev1.EventTypeWarning, "DisconnectedFUSE"); now != said {
		t.Errorf("%d more Warnings of a fault that is repaired", now-said)
	}
	if v.countEvents(t, &v.pods[1], corev1.EventTypeWarning, "HungMount") == 0 {
		t.Error("no Event reports HungMount")
	}
}

// checkHung runs the verbs of the node.
func (v *cephVolume) checkHung(t *testing.T) {
	t.Helper()
	program := v.Build(t, "kubediag")
	for _, args := range [][]string{{"scan", "-v", v.kubeletFlag()}, {"probe", v.mounted(&v.pods[0])}} {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for ever, if it hung
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir()) // where a scan is kept
		out, err := cmd.CombinedOutput()
		took := time.Since(began)
		cancel()
		t.Logf("kubediag %s: %.1f s", args[0], took.Seconds())
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("kubediag %q: %v after %s\n%s", args, err, took, out)
		}
		checkContains(t, string(out), "HungMount", v.mounted(&v.pods[0]))
	}
}

// checkAnswers asks the agent whether it is well.
func (v *cephVolume) checkAnswers(t *testing.T) {
	t.Helper()
	agent := v.Component(t, "agent")
	if agent.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Fatalf("agent: %+v", agent.Status)
	}
	for _, path := range []string{"healthz", "readyz"} {
		install.Fetch(t, "http://"+agent.Status.PodIP+":8081/"+path)
	}
}

// healOther kills the daemon of another volume. The driver mounts that again when another pod comes, and a Diagnosis puts it
// in the place of what the first has.
func (v *cephVolume) healOther(t *testing.T) {
	daemon := v.driver.Staged(t, otherName).PID
	v.driver.KillDaemon(t, otherName)
	v.forget(t, daemon)
	v.checkSaid(t, v.others, notConnected, notConnected)
	old := v.others
	v.others = v.driver.Start(t, readersOf("others", otherName, 2))
	v.checkHealed(t, v.diagnose(t, "other", &old[0]))
	v.checkSaid(t, v.others, "whole", "part")
	v.checkSame(t, old)
}

// healSubPath goes through the walkthrough.
func (v *cephVolume) healSubPath(t *testing.T) {
	pod := v.podOf(t.Context(), "core2")
	v.breakSubPath(t, pod, "second content")
	v.Kubectl(t, "", "apply", "-f", samples)
	checkEnd(t, v.walkThrough(t, pod), v1.DiagnosisSucceeded, v1.OutcomeHealed)
}

// budget keeps every reader.
const budget = `
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: keep-readers, namespace: default}
spec:
  maxUnavailable: 0
  selector: {matchLabels: {app: readers}}
`

// evict has the volumes die, and no driver that mounts them again for the pods that are there. One pod is evicted, as soon as
// its budget allows it. The driver mounts the volume for the one that takes its place; then the sentinel repairs the other.
func (v *cephVolume) evict(t *testing.T) {
	v.Kubectl(t, budget, "apply", "-f", "-")
	v.ApplyDir(t, "config/overlays/eviction")
	v.SetSentinel(t, "Automatic", "KUBEDIAG_ORPHAN_MINIMUM_AGE="+orphanAge)
	daemons := []int{v.driver.Staged(t, volumeName).PID, v.driver.Staged(t, otherName).PID}
	v.driver.RestartAndLeave(t)
	for _, daemon := range daemons {
		v.forget(t, daemon)
	}
	v.checkReaders(t, notConnected, notConnected)
	v.checkSaid(t, v.others, notConnected, notConnected)
	v.checkBudgetHolds(t)
	v.Kubectl(t, "", "delete", "pdb", "-n", "default", "keep-readers")

	old := v.pods
	v.checkUnasked(t, &old[0])
	d := v.diagnose(t, "evicted", &old[0])
	if d.Status.Phase != v1.DiagnosisSucceeded || d.Status.Outcome != v1.OutcomeHealed {
		t.Errorf("phase %q, outcome %q", d.Status.Phase, d.Status.Outcome)
		text, _ := json.MarshalIndent(d.Status.Faults, "", " ")
		t.Logf("%s", text)
	}
	checkContains(t, d.Status.OperationResults["recover.kubernetes.pod_evict.result"], string(old[0].UID), "was evicted, and is gone")
	v.pods = v.driver.Start(t, readers)
	if slices.ContainsFunc(v.pods, func(p corev1.Pod) bool { return p.UID == old[0].UID }) {
		t.Errorf("pod %s is still there", old[0].Name)
	}
	v.checkReaders(t, "whole", "part")
	v.logDelay(t, volumeName, old[1:])
	v.checkSame(t, old[1:])
}

// checkBudgetHolds makes a Diagnosis that may not evict its pod, and takes it back.
func (v *cephVolume) checkBudgetHolds(t *testing.T) {
	t.Helper()
	v.Wait(t, "the budget to be known", func(ctx context.Context) bool {
		var b policyv1.PodDisruptionBudget
		return v.Get(ctx, client.ObjectKey{Namespace: "default", Name: "keep-readers"}, &b) == nil && b.Status.ExpectedPods == 2
	})
	v.diagnosed(t, "held", &v.pods[0], func(d *v1.Diagnosis) bool {
		var list corev1.EventList
		must(t, v.List(t.Context(), &list, client.InNamespace("default")))
		return d.Status.Phase == v1.DiagnosisRunning && slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.UID == d.UID && e.Type == corev1.EventTypeWarning && e.Reason == "ActionFailed" &&
				strings.Contains(e.Message, "Cannot evict pod as it would violate")
		})
	})
	v.checkStays(t, &v.pods[0])
	v.Kubectl(t, "", "delete", "diag", "-n", "default", "held")
}

// healAlone kills the daemons, and has a driver come that mounts all volumes again. The sentinel repairs all pods.
func (v *cephVolume) healAlone(t *testing.T) {
	asked, recorded := v.countDiagnoses(t)
	daemon := v.driver.Staged(t, volumeName).PID
	v.driver.KillDaemon(t, volumeName)
	v.forget(t, daemon)
	v.checkReaders(t, notConnected, notConnected)
	v.driver.Restart(t)
	for volume, pods := range map[string][]corev1.Pod{volumeName: v.pods, otherName: v.others} {
		v.checkSaid(t, pods, "whole", "part")
		v.logDelay(t, volume, pods)
		v.checkSame(t, pods)
		for i := range pods {
			v.Wait(t, "an Event of the repair on pod "+pods[i].Name, func(context.Context) bool {
				return v.countEvents(t, &pods[i], corev1.EventTypeNormal, "MountRepaired") > 0
			})
		}
	}
	v.awaitFaults(t, "", 0)
	failed := v.metric(t, `kubediag_repairs_total{action="Replace",fault="DisconnectedFUSE",outcome="Failed"}`)
	t.Logf("%v repairs have failed at first", failed) // where a ceph-fuse that has just been started does not answer in time
	v.Wait(t, "a record of the repairs", func(context.Context) bool {
		_, now := v.countDiagnoses(t)
		return now > recorded
	})
	if now, _ := v.countDiagnoses(t); now != asked {
		t.Errorf("there were %d Diagnoses that are no records, and there are %d", asked, now)
	}
}

// countDiagnoses counts the Diagnoses that work was asked by, and those that record repairs of the sentinel.
func (v *cephVolume) countDiagnoses(t *testing.T) (asked, recorded int) {
	t.Helper()
	var all v1.DiagnosisList
	must(t, v.List(t.Context(), &all))
	for i := range all.Items {
		if all.Items[i].Spec.Mode == v1.ModeRecord {
			recorded++
		} else {
			asked++
		}
	}
	return asked, recorded
}

// logDelay logs how long after a volume was mounted for the node the last of the containers has read from it.
func (v *cephVolume) logDelay(t *testing.T, volume string, pods []corev1.Pod) {
	t.Helper()
	var last time.Time
	for i := range pods {
		for _, container := range []string{csi.Whole, csi.Part} {
			line := v.Kubectl(t, "", "logs", "--timestamps", "--tail=1", "-n", pods[i].Namespace, pods[i].Name, "-c", container)
			text, _, _ := strings.Cut(line, " ")
			at, err := time.Parse(time.RFC3339Nano, text)
			must(t, err)
			if at.After(last) {
				last = at
			}
		}
	}
	delay := last.Sub(v.driver.Staged(t, volume).Mounted)
	t.Logf("volume %s: all containers of %d pods read it %.1f s after it was mounted for the node", volume, len(pods), delay.Seconds())
}

// forget has Ceph forget a daemon that was killed: until then the next one waits for what that had been given, a minute.
func (v *cephVolume) forget(t *testing.T, pid int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ceph", "--conf="+v.files.Conf(), "tell", "mds.a", "session", "evict",
		fmt.Sprintf("client_metadata.pid=%d", pid))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}
