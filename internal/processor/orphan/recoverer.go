// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Keys of the results.
const (
	// keyRecoverResult describes the first pod whose volumes were removed, keyRecoverResults all.
	keyRecoverResult  = "recover.kubernetes.orphaned_pods.result"
	keyRecoverResults = "recover.kubernetes.orphaned_pods.results"
	// keyRecoverRefused says why others were left alone.
	keyRecoverRefused = "recover.kubernetes.orphaned_pods.refused"
)

// Recoverer is the recoverer orphanedPodRecover.
//
// It removes the obstacles to the kubelet's removal of the directories of pods that are gone: empty directories of volumes
// and subPaths, leaf first, and the kubelet's own records of them. Package internal/faults/orphan finds them;
// parameters narrow that. It removes one name at a time, each after the whole proof; only the API server's answer about
// the pod may be older. It removes nothing recursively. It rests on unlinkat(2).
type Recoverer struct {
	Inspector *orphan.Inspector
	// Patience is for how long the kubelet is waited for, which removes the rest, as far as the operation has time for
	// that. 0: 10 seconds.
	Patience time.Duration
}

// A kubelet looks for such directories every two seconds.
const (
	defaultPatience = 10 * time.Second
	pollInterval    = 250 * time.Millisecond
)

// Name is orphanedPodRecover.
func (*Recoverer) Name() string { return "orphanedPodRecover" }

// Parameters are those that it reads.
func (*Recoverer) Parameters() []string {
	return []string{ParamUID, paramLimit}
}

// Plan looks again, and plans every removal by name, pod after pod, up to the limit.
func (h *Recoverer) Plan(ctx context.Context, r processor.Request) (repair.Part, error) {
	options, err := recoverOptionsOf(r.Values)
	if err != nil {
		return repair.Part{}, err
	}
	s, err := h.Inspector.Survey(ctx)
	if err != nil {
		return repair.Part{}, err
	}
	plan := repair.Part{}
	var stay []string
	for _, pod := range s.Pods {
		switch {
		case options.uid != "" && pod.UID != options.uid:
		case len(pod.Actions) == 0:
			stay = append(stay, pod.RefusalReason())
		case options.limit > 0:
			options.limit--
			plan.Findings = append(plan.Findings, pod.Finding())
			plan.Actions = append(plan.Actions, pod.Actions...)
		default:
			stay = append(stay, fmt.Sprintf("the orphaned directory of the pod with UID %q is left for another run", pod.UID))
		}
	}
	if len(plan.Actions) == 0 {
		return repair.Part{NotApplicable: s.NoneReason(options.uid)}, nil
	}
	if len(stay) == 0 {
		return plan, nil
	}
	plan.Notes = map[string]string{}
	return plan, processor.AddJSON(plan.Notes, map[string]any{keyRecoverRefused: fault.Most(stay, maxRefusalNotes, "and %d more")})
}

// maxRefusalNotes bounds of how many pods it is remembered why they stay.
const maxRefusalNotes = 10

// Open implements repair.Family. Each action looks for itself.
func (h *Recoverer) Open() repair.Apply { return h.Apply }

// Apply removes one name, if all of the plan for its pod holds still.
func (h *Recoverer) Apply(ctx context.Context, _ processor.Request, a fault.Action) (fault.Applied, error) {
	if a.Kind != fault.RemoveDirectory && a.Kind != fault.RemoveFile {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", a.Kind))
	}
	gone, err := h.Inspector.Apply(ctx, a)
	switch {
	case gone:
		return fault.AlreadySo("was gone already"), nil
	case errors.Is(err, orphan.ErrNotRemovable):
		return fault.Applied{}, processor.Stalled(err)
	case err != nil:
		return fault.Applied{}, err
	}
	return fault.Applied{Message: "removed"}, nil
}

// podOutcome counts the deeds of a plan in the directory of one pod.
type podOutcome struct {
	uid                string
	directories, files int
	alreadyGone        int // of both, that had gone by themselves
}

// Verify proves that everything of the plan is gone, and that its pods have no volumes left. A pod is healed when the
// kubelet has removed its directory, which is to be waited for.
func (h *Recoverer) Verify(ctx context.Context, _ processor.Request, plan repair.Part) (processor.Result, error) {
	pods, err := h.countByPod(ctx, plan)
	if err != nil {
		return processor.Result{}, err
	}
	if len(pods) == 0 {
		return processor.Result{}, processor.Stalled(errors.New("read plan: it removes nothing"))
	}
	for _, t := range pods {
		left, err := h.Inspector.LeftVolumes(ctx, t.uid)
		if err != nil {
			return processor.Result{}, err
		}
		if len(left) > 0 {
			err = fmt.Errorf("verify directory of pod %q: it has %d entries of volumes again, or still, the first %q", t.uid, len(left), left[0])
			return processor.Result{}, processor.Stalled(err)
		}
	}
	var gone map[string]bool
	return processor.Result{Findings: plan.Findings, Wait: &processor.Wait{
		Limit: cmp.Or(h.Patience, defaultPatience), Interval: pollInterval,
		Look: func(ctx context.Context) (_ bool, err error) {
			var uids []string
			for _, t := range pods {
				uids = append(uids, t.uid)
			}
			gone, err = h.Inspector.GoneDirectories(ctx, uids)
			return len(gone) == len(uids), err
		},
		End: func(_ context.Context, _ bool, waited time.Duration) (processor.Result, error) {
			var results []string
			for _, t := range pods {
				results = append(results, t.describe(gone[t.uid], waited))
			}
			values, err := processor.SentenceValues(keyRecoverResult, keyRecoverResults, results)
			if refused := plan.Notes[keyRecoverRefused]; refused != "" {
				values[keyRecoverRefused] = refused
			}
			findings := slices.Clone(plan.Findings)
			for i := range findings {
				findings[i].Healed = gone[findings[i].Pod.UID]
			}
			return processor.Result{Values: values, Findings: findings}, err
		},
	}}, nil
}

// countByPod counts the removals of a plan, by pod, and makes sure that each entry is gone.
func (h *Recoverer) countByPod(ctx context.Context, plan repair.Part) ([]*podOutcome, error) {
	var pods []*podOutcome
	for i, action := range plan.Actions {
		there, err := h.Inspector.EntryExists(ctx, action)
		if err == nil && there {
			err = processor.Stalled(fmt.Errorf("verify removal of %s: it is still there", action.Target))
		}
		if errors.Is(err, orphan.ErrNotRemovable) {
			err = processor.Stalled(err)
		}
		if err != nil {
			return nil, err
		}
		uid, err := h.Inspector.PodUID(ctx, action)
		if err != nil {
			return nil, err
		}
		if len(pods) == 0 || pods[len(pods)-1].uid != uid {
			pods = append(pods, &podOutcome{uid: uid})
		}
		t := pods[len(pods)-1]
		switch {
		case plan.Outcome(i).Already:
			t.alreadyGone++
		case action.Kind == fault.RemoveFile:
			t.files++
		default:
			t.directories++
		}
	}
	return pods, nil
}

func (t *podOutcome) describe(gone bool, waited time.Duration) string {
	var did strings.Builder
	fmt.Fprintf(&did, "removed %d empty directories", t.directories)
	if t.files > 0 {
		fmt.Fprintf(&did, " and %d files of the kubelet", t.files)
	}
	if t.alreadyGone > 0 {
		fmt.Fprintf(&did, ", and found %d gone already,", t.alreadyGone)
	}
	fmt.Fprintf(&did, " of the pod with UID %q, which is gone", t.uid)
	if gone {
		did.WriteString("; nothing is left of its directory")
	} else {
		fmt.Fprintf(&did, "; the kubelet has not removed the rest of its directory within %.0f seconds", waited.Seconds())
	}
	return did.String()
}
