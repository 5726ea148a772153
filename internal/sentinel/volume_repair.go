// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
)

// planRepairs plans all repairs that lose nothing. The volumes of a pod that has ended are the kubelet's to unmount. A pod that is being
// deleted gets no new mount: only those go that keep it.
func (w *volumeWatcher) planRepairs(ctx context.Context, broken []*volume.Health) {
	var all []fault.Action
	for _, v := range broken {
		pod := w.sentinel.Pods.PodByUID(v.Evidence.Pod.UID)
		if pod == nil || isEnding(pod) && pod.DeletionTimestamp == nil ||
			!slices.ContainsFunc(v.Findings(), func(f fault.Finding) bool { return w.sentinel.Guard.Mode(f.Code, pod) == Automatic }) {
			continue
		}
		actions, _, err := w.sentinel.Volumes.Plan(ctx, v, volume.PlanOptions{})
		if err != nil {
			w.sentinel.Observer.Trouble(err)
			continue
		}
		all = append(all, actions...)
	}
	w.repairs.plan(all)
}

// repairNext makes planned repairs for a limited time, and reports whether one succeeded. A failed repair ends the plan
// of its pod. If one file system does not answer, the next repairs would wait and fail as well, so that a scan comes
// first.
func (w *volumeWatcher) repairNext(ctx context.Context) (repaired bool) {
	if w.repairs.empty() {
		return false
	}
	release, ok := w.sentinel.tryLock()
	defer release()
	deadline := time.Now().Add(max(minRepairTime, w.scanDuration))
	for ok && !w.repairs.empty() && ctx.Err() == nil && time.Now().Before(deadline) {
		if w.repairBatch(ctx, w.repairs.next(), deadline) {
			repaired = true
		}
	}
	return repaired
}

// repairBatch makes repairs until deadline, and reports whether one succeeded. If the guard refuses one, the next scan plans that again.
func (w *volumeWatcher) repairBatch(ctx context.Context, batch []fault.Action, deadline time.Time) (repaired bool) {
	a, pods := attempt{sentinel: w.sentinel}, map[string]bool{}
	for _, action := range batch {
		pod := w.sentinel.Pods.PodByUID(action.Pod.UID)
		if f, known := w.present[action.Key()]; known && pod != nil && isRepairOf(f, action.Kind, pod) && w.mayRepair(action, pod) {
			a.repairs, pods[action.Pod.UID] = append(a.repairs, &Repair{Fault: f, Action: action, pod: pod}), true
		}
	}
	if len(a.repairs) == 0 {
		return false
	}
	onVolume, failed, late := w.sentinel.Volumes.Open(slices.Sorted(maps.Keys(pods))...), map[string]bool{}, []fault.Action(nil)
	a.apply = func(ctx context.Context, i int) (fault.Applied, error) {
		w.sentinel.heartbeat()
		done, err := onVolume(ctx, a.repairs[i].Action)
		if err != nil && !isRefused(err) {
			failed[a.repairs[i].Action.Pod.UID] = true
		}
		return done, err
	}
	a.take = func(i int) bool { return w.takeToken(a.repairs[i].Action) }
	a.hold = func(action fault.Action) string {
		switch {
		case failed[action.Pod.UID]: // the others might wait for the same file system, so that a scan comes first
			return "another repair of the pod has failed"
		case !time.Now().Before(deadline):
			late = append(late, action)
			return "its time has not come"
		}
		return ""
	}
	a.verify = w.proofs(a.repairs)
	w.sentinel.heartbeat()
	if err := a.run(ctx); err != nil {
		w.sentinel.Observer.Trouble(err)
		maps.Copy(failed, pods)
	}
	for _, r := range a.repairs {
		if r.Ended.IsZero() {
			continue
		}
		if !r.left {
			w.sentinel.Observer.Repaired(*r)
		}
		backoff := w.backoffs[r.Action.Key().Location()]
		if r.Err == nil {
			backoff.delay, repaired = 0, true
			continue
		}
		backoff.failed(time.Now())
		w.scanDue = true
	}
	w.repairs.putBack(late)
	for uid := range failed {
		w.repairs.dropPod(uid)
	}
	return repaired
}

// proofs returns a function that proves a repair. One inspection serves all repairs that were made.
func (w *volumeWatcher) proofs(repairs []*Repair) func(ctx context.Context, repair int) (string, error) {
	all := map[fault.Mount]string{}
	return func(ctx context.Context, repair int) (string, error) {
		w.sentinel.heartbeat()
		if len(all) == 0 {
			var done []fault.Action
			for _, r := range repairs {
				if !r.Ended.IsZero() && r.Err == nil {
					done = append(done, r.Action)
				}
			}
			if proof, err := w.sentinel.Volumes.Verify(ctx, done); err == nil && proof.Healed {
				for i, action := range done {
					all[*action.Mount] = proof.Evidence[i]
				}
			}
		}
		a := repairs[repair].Action
		if how, ok := all[*a.Mount]; ok {
			return how, nil
		}
		proof, err := w.sentinel.Volumes.Verify(ctx, []fault.Action{a}) // which of them is not healed
		if err == nil && !proof.Healed {
			err = errors.New(strings.Join(proof.NotHealed, "; "))
		}
		return strings.Join(proof.Evidence, "; "), err
	}
}

// mayRepair reports whether a repair may be tried now, and takes nothing from a limit.
func (w *volumeWatcher) mayRepair(a fault.Action, pod *corev1.Pod) bool {
	if !a.Lossless || w.sentinel.Guard.Mode(a.Key().Code, pod) != Automatic {
		return false
	}
	place := a.Key().Location()
	backoff := w.backoffs[place]
	if backoff == nil {
		backoff = &repairBackoff{Limiter: newRepairLimiter()}
		w.backoffs[place] = backoff
	}
	now := time.Now()
	if now.Before(backoff.at) || backoff.TokensAt(now) < 1 {
		w.scanDue = true
		return false
	}
	return true
}

// isRepairOf reports whether the sentinel makes repairs of a kind for a pod as it is now. A dead mount is replaced while its pod lives, and
// unmounted only if it keeps its pod from going.
func isRepairOf(f fault.Finding, kind fault.ActionKind, pod *corev1.Pod) bool {
	if kind == fault.Unmount {
		return f.Details.KeepsPod && pod.DeletionTimestamp != nil
	}
	return kind == fault.Replace && !isEnding(pod)
}

// takeToken takes a repair from the rate limit of its place, if there is one left.
func (w *volumeWatcher) takeToken(a fault.Action) bool {
	backoff, now := w.backoffs[a.Key().Location()], time.Now()
	if !backoff.AllowN(now, 1) { // an earlier repair of the batch was of the same place
		w.scanDue = true
		return false
	}
	backoff.lastAttempt = now
	return true
}
