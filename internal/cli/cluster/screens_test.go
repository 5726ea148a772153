// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/render"
)

// diagnosisOf has a plan for this many stale binds, three of each pod.
func diagnosisOf(n int, mode v1.DiagnosisMode) *v1.Diagnosis {
	d := &v1.Diagnosis{Spec: v1.DiagnosisSpec{NodeName: "worker-7", Mode: mode, PodReference: &v1.PodReference{Namespace: "shop", Name: "web-7d9f8b6c5-x2x9k"}}}
	d.Namespace, d.Name, d.CreationTimestamp = "shop", "web-7d9f8b6c5-x2x9k-4k2fd", metav1.NewTime(noon.Add(-time.Minute))
	d.Status = v1.DiagnosisStatus{
		Phase: v1.DiagnosisSucceeded, Outcome: v1.OutcomePlanned, CompletionTime: &metav1.Time{Time: noon.Add(-58 * time.Second)},
		Conditions: []metav1.Condition{{Type: v1.ConditionAccepted, Status: metav1.ConditionTrue, Message: "accepted"}},
		Plan: &v1.Plan{Operation: "auto-recover", Hash: strings.Repeat("ab", 32), Actions: int32(n), Lossless: true,
			Changes: []string{`boot "7c0e61aa-1d7e-4b5b-9d0e-2b8ad4e5b0aa"`}},
		Operations: []v1.OperationRun{
			{ID: 1, Operation: "auto-collector", Phase: v1.OperationSucceeded}, {ID: 2, Operation: "auto-diagnoser", Phase: v1.OperationSucceeded},
			{ID: 3, Operation: "auto-recover", Phase: v1.OperationSucceeded},
		},
	}
	for i := range n {
		name, uid := fmt.Sprintf("web-7d9f8b6c5-x2x%02d", i/3), fmt.Sprintf("37993802-0000-4c1c-8f0e-%012d", i)
		point := "/var/lib/kubelet/pods/" + uid + "/volume-subpaths/nginx-conf/nginx/0"
		why := "the root of the mount is deleted: its link count is 0: inode 14 of device 0:39 is bound, and \"nginx.conf\" in \"/var/lib/kubelet/pods/" + uid +
			"/volumes/kubernetes.io~configmap/nginx-conf\" is inode 10 of device 0:39"
		d.Status.Faults = append(d.Status.Faults, v1.Fault{
			Code: "StaleSubPath", State: v1.FaultPresent, Container: fmt.Sprint("nginx", i%3), Volume: "nginx-conf", Pod: &v1.FaultPod{Namespace: "shop", Name: name},
			Evidence: []string{why, `container "nginx" asks for it in volumeMounts[0]: subPath "nginx.conf" of volume "nginx-conf" at "/etc/nginx/nginx.conf"`},
		})
		d.Status.Operations[2].Actions = append(d.Status.Operations[2].Actions, v1.Action{
			Kind: "Unmount", Fault: "StaleSubPath", Target: point, Mount: &v1.Mount{MountInfoID: 412, Namespace: 4026532201}, Phase: v1.ActionPlanned,
			Safety: why + "; this pod's spec requests the bind; running containers keep their mount", Loss: "nothing",
		})
		d.Status.Plan.Changes = append(d.Status.Plan.Changes, fmt.Sprintf("Unmount mount %q", point))
	}
	return d
}

// endedOf is the repair of such a plan.
func endedOf(n int) *v1.Diagnosis {
	d := diagnosisOf(n, v1.ModeRecover)
	d.Status.Outcome, d.Status.Summary = v1.OutcomeHealed, "Repaired StaleSubPath (container nginx, volume nginx-conf, pod shop/web-7d9f8b6c5-x2x00)"
	if n > 1 {
		d.Status.Summary += fmt.Sprintf(" and %d more", n-1)
	}
	for i := range n {
		a := &d.Status.Operations[2].Actions[i]
		d.Status.Faults[i].State, a.Phase, a.Message = v1.FaultHealed, v1.ActionDone, "replaced"
	}
	return d
}

// presentOf are faults of pods, the first with all that an object can say.
func presentOf(n int) (list []*v1.MountFault) {
	for i := range n {
		f := faultOf("StaleSubPath", v1.ImpactNextStart, v1.HealSafe, fmt.Sprintf("app%d-%d", i%12, i))
		if i%3 == 1 {
			f = faultOf("DisconnectedFUSE", v1.ImpactNow, v1.HealDriver, fmt.Sprintf("trainer%d-%d", i, i))
			f.Status.Driver, f.Status.Node = "csi.juicefs.com", fmt.Sprintf("worker-%d", i%7)
		}
		f.Status.Container, f.Status.Claim, f.Status.Plan = "nginx", "conf-claim", "replace this one bind with the file that the subPath names now; the running container keeps what it has"
		f.Status.Evidence = []string{strings.Repeat("the link count is 0; ", 20), "the container asks for it", "the source is on the host", "a fourth fact"}
		f.Status.Commands = []v1.FaultCommand{{Purpose: "removes the stale bind; the kubelet binds the current file at the next start", Line: "umount -- /var/lib/kubelet/pods/37993802/volume-subpaths/conf/nginx/0"}}
		f.Status.Recovery = &v1.FaultRecovery{Mode: v1.RecoveryApprove, Policies: []string{"stale-subpaths", "production"}}
		list = append(list, f)
	}
	return list
}

// TestScreens: each verb is one screen of 40 lines, run about one fault of 12, and no line is too wide but those to paste and a path.
func TestScreens(t *testing.T) {
	t.Parallel()
	type screens map[string]func(s terminal.Screen) string // by the number of faults
	api := &client{namespace: "shop"}
	story := func(d *v1.Diagnosis, verbose bool) func(s terminal.Screen) string {
		return func(s terminal.Screen) string {
			w := newStory(s, d)
			w.verbose, w.startTime = verbose, w.startTime.Add(time.Hour) // so that no time has passed
			return w.headline(d.Spec.Target()+", Diagnosis "+d.Namespace+"/"+d.Name) + w.newsText(d)
		}
	}
	show := func(n int, d *v1.Diagnosis) func(s terminal.Screen) string {
		return func(s terminal.Screen) string {
			return (&subject{api: api, screen: s, now: noon, faults: (&faultsOptions{}).chosenFaults(objectsOf(presentOf(n))), diagnosis: d}).text()
		}
	}
	faults := func(n int) func(s terminal.Screen) string {
		return func(s terminal.Screen) string {
			return faultsView{screen: s, api: api, now: noon}.listText((&faultsOptions{}).chosenFaults(objectsOf(presentOf(n))), "")
		}
	}
	approve := func(n int) func(s terminal.Screen) string {
		return func(s terminal.Screen) string {
			d := diagnosisOf(n, v1.ModePlan)
			return story(d, false)(s) + render.Changes(s, d.Status.Plan.Changes, false)
		}
	}
	all := map[string]screens{
		"faults":  {"1": faults(1), "300": faults(300)},
		"run":     {"1": story(diagnosisOf(1, v1.ModePlan), false), "300": story(diagnosisOf(300, v1.ModePlan), false)},
		"healed":  {"1": story(endedOf(1), false), "300": story(endedOf(300), false)},
		"approve": {"1": approve(1), "300": approve(300)},
		"show":    {"0": show(0, endedOf(1)), "1": show(1, diagnosisOf(1, v1.ModePlan)), "300": show(300, diagnosisOf(300, v1.ModePlan))},
		"status":  {},
	}
	for name, r := range statusReports() {
		all["status"][name] = func(s terminal.Screen) string {
			return statusView{faultsView{screen: s, api: &client{}, brief: true, now: noon, problems: r.Unwatched}, r}.text()
		}
	}
	for verb, screens := range all {
		for name, text := range screens {
			for _, width := range []int{80, 120} {
				got, most := text(terminal.Screen{Width: width}), 40
				if name == "1" && (verb == "run" || verb == "healed") {
					most = 12
				}
				lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
				if len(lines) > most {
					t.Errorf("%s of %s: %d lines, at most %d", verb, name, len(lines), most)
				}
				for _, line := range lines {
					if terminal.Columns(line) > width && !strings.HasPrefix(line, "  kubectl ") && !strings.HasPrefix(line, "  umount ") && len(strings.Fields(line)) > 1 {
						t.Errorf("%s of %s: %d columns: %q", verb, name, terminal.Columns(line), line)
					}
				}
				verbtest.Golden(t, fmt.Sprintf("%s.%s.%d", verb, name, width), got)
			}
		}
	}
}
