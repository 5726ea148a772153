// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// ErrRefused is returned for an action that is not, or no longer, one that may be done, with the reason.
var ErrRefused = errors.New("mount is left alone")

// ErrHung is returned if the source or the mount did not answer while it was worked on, and with ErrRefused if the mount did not answer before that,
// so that it could not be judged again.
var ErrHung = errors.New("file system did not answer")

// ErrInUse is returned with ErrRefused if a process uses the mount that was to be unmounted. A later attempt may succeed.
var ErrInUse = errors.New("it is in use")

// Open begins a series of actions of Plan about certain pods; none named: about the pod of the first action. apply does one of them, after
// an inspection of those pods which all share has found that it may be done. Each action itself checks again the mount that it changes. An action that is done already succeeds.
// ErrRefused: it may not be done, and nothing was touched. ErrHung: it is not known whether it was done, and to try again is safe. The
// change depends on Kind, Mount and Pod of the action alone.
func (i *Inspector) Open(podUIDs ...string) (apply func(ctx context.Context, a fault.Action) (fault.Applied, error)) {
	var found *inspection
	tried := map[fault.Mount]bool{} // since found
	return func(ctx context.Context, a fault.Action) (fault.Applied, error) {
		err := checkComplete(a)
		if err == nil && (found == nil || tried[*a.Mount]) {
			clear(tried)
			if len(podUIDs) == 0 {
				podUIDs = []string{a.Pod.UID}
			}
			found, err = i.inspectPods(ctx, podUIDs)
		}
		if err == nil && !slices.Contains(podUIDs, a.Pod.UID) {
			err = fmt.Errorf("%w: %s of %q is about another pod than was inspected", ErrRefused, a.Kind, a.Target)
		}
		if err != nil {
			return fault.Applied{}, err
		}
		look := found
		if tried[*a.Mount] = true; a.Kind != fault.Replace { // which changes how the others are to be judged
			found = nil
		}
		return look.applyAction(ctx, i, a)
	}
}

// checkComplete refuses an action that does not say what it changes.
func checkComplete(a fault.Action) error {
	if a.Kind != fault.Replace && a.Kind != fault.Unmount && a.Kind != fault.Abort || a.Pod == nil || a.Pod.UID == "" || a.Mount == nil || a.Mount.Point == "" {
		return fmt.Errorf("%w: %s of %q names no mount of a pod that can be replaced, unmounted or aborted", ErrRefused, a.Kind, a.Target)
	}
	return nil
}

// inspectPods inspects the volumes of certain pods.
func (i *Inspector) inspectPods(ctx context.Context, uids []string) (*inspection, error) {
	n, err := i.inspect(ctx, mountstate.Scope{PodUIDs: uids})
	if err != nil {
		return nil, fmt.Errorf("inspect volumes: %w", err)
	}
	return n, nil
}

// applyAction does an action if the inspection allows it.
func (n *inspection) applyAction(ctx context.Context, i *Inspector, action fault.Action) (fault.Applied, error) {
	for _, v := range n.volumes {
		for _, planned := range v.plannedActions(PlanOptions{Abort: action.Kind == fault.Abort}) {
			if planned.action.Kind != action.Kind || !planned.action.Mount.Same(*action.Mount) && !raisedByRepair(planned.mount, *action.Mount) {
				continue
			}
			if planned.refusal.Reason != "" {
				return fault.Applied{}, fmt.Errorf("%w: %s", ErrRefused, planned.refusalText())
			}
			return planned.perform(ctx, i)
		}
	}
	switch action.Kind {
	case fault.Abort:
		for _, v := range n.volumes {
			if faults.MountOf(v.Evidence.Mount).Same(*action.Mount) && v.Evidence.Answer.State == probe.Disconnected {
				return fault.AlreadySo("was aborted already"), nil
			}
		}
		return fault.Applied{}, fmt.Errorf("%w: the mount at %q is not one that hangs", ErrRefused, action.Mount.Point)
	case fault.Unmount:
		if err := n.noAnswer(*action.Mount); err != nil {
			return fault.Applied{}, err
		}
		if n.stands(*action.Mount) {
			return fault.Applied{}, fmt.Errorf("%w: the mount at %q is not, or no longer, one that may be removed", ErrRefused, action.Mount.Point)
		}
		return fault.AlreadySo("was unmounted already"), nil
	}
	done, how := n.placeIsReplaced(*action.Mount)
	if done {
		return fault.AlreadySo("was replaced already: " + how), nil
	}
	return fault.Applied{}, cmp.Or(n.noAnswer(*action.Mount), fmt.Errorf("%w: %s", ErrRefused, how))
}

// noAnswer is the refusal of an action on a mount that was not asked, or did not answer; nil for any other mount. Whether the fault is still there is
// then not known.
func (n *inspection) noAnswer(want fault.Mount) error {
	silent := func(m mountns.Mount, state probe.State) bool {
		return state.Unanswered() && (faults.MountOf(m).Same(want) || raisedByRepair(m, want))
	}
	if slices.ContainsFunc(n.volumes, func(v *Health) bool { return silent(v.Evidence.Mount, v.Evidence.Answer.State) }) ||
		slices.ContainsFunc(n.copies, func(c *Copy) bool { return silent(c.Mount, c.Answer.State) }) {
		return fmt.Errorf("%w: the mount at %q could not be judged again: %w", ErrRefused, want.Point, ErrHung)
	}
	return nil
}

// placeIsReplaced reports whether the place of a mount has what belongs there.
func (n *inspection) placeIsReplaced(want fault.Mount) (ok bool, how string) {
	for _, health := range n.volumes {
		if health.Evidence.Point != want.Point || want.Namespace != n.host.namespace.Inode || health.Evidence.Mount.ID == 0 {
			continue
		}
		if health.Verdict.Code == "" && health.Evidence.Answer.State == probe.Alive && health.Evidence.Answer.Bindable == probe.Yes &&
			!faults.MountOf(health.Evidence.Mount).Same(want) {
			return true, fmt.Sprintf("the mount at %q answers, can be bound, and is the right one (inode %d of device %s)", health.Evidence.Point,
				health.Evidence.Answer.Stat.Inode, deviceOf(health.Evidence.Mount.Mount))
		}
		return false, fmt.Sprintf("the mount at %q: %s %s", health.Evidence.Point, health.Verdict.Code, health.Evidence.Answer.State)
	}
	for _, c := range n.copies {
		if c.Mount.Point != want.Point || c.Mount.Namespace.Inode != want.Namespace {
			continue
		}
		if ok, how = c.hasReplaced(want); ok {
			return ok, how
		}
	}
	if how != "" {
		return false, how
	}
	// The namespace may have gone with its container.
	if want.Namespace == n.host.namespace.Inode {
		return false, fmt.Sprintf("the mount at %q is gone, and no known mount is in its place", want.Point)
	}
	all, survey, err := mountns.Namespaces()
	if err != nil {
		return false, err.Error()
	}
	for _, ns := range all {
		if ns.Inode == want.Namespace {
			return false, fmt.Sprintf("the mount at %q in mount namespace %s is gone, but the namespace is still there", want.Point, ns)
		}
	}
	if err := survey.CheckComplete(); err != nil {
		return false, fmt.Sprintf("mount namespace mnt:[%d] was not found: %v", want.Namespace, err)
	}
	return true, fmt.Sprintf("mount namespace mnt:[%d] has gone, and the mount with it", want.Namespace)
}

// hasReplaced reports whether a copy has taken the place of a mount.
func (c *Copy) hasReplaced(want fault.Mount) (ok bool, how string) {
	a := c.Answer
	if c.Verdict.Code == "" && c.Source.isAnswer(a) && a.Bindable == probe.Yes && !faults.MountOf(c.Mount).Same(want) {
		return true, fmt.Sprintf("the mount at %q in mount namespace %s is the right one (inode %d of device %s)", c.Mount.Point, c.Mount.Namespace, a.Stat.Inode,
			c.Source.Device)
	}
	return false, fmt.Sprintf("the mount at %q in mount namespace %s: %s %s; %s", c.Mount.Point, c.Mount.Namespace, c.Verdict.Code, a.State, c.Decision.Reason)
}

// abort ends the connection of a FUSE mount, which was seen to hang just now, once it has been silent for long enough.
func (i *Inspector) abort(ctx context.Context, found mountns.Mount) (fault.Applied, error) {
	control, err := fuse.Open()
	if err != nil {
		return fault.Applied{}, err
	}
	defer func() { _ = control.Close() }() // nothing is kept in it
	silence := cmp.Or(i.Silence, defaultSilence)
	if end, ok := ctx.Deadline(); ok && time.Until(end) < silence {
		return fault.Applied{}, fmt.Errorf("%w: a connection must be silent for %s before it is aborted, and only %s are left for that", ErrRefused,
			silence, time.Until(end).Round(100*time.Millisecond))
	}
	monitor, stop := i.watchConnection(ctx, control, found, silence)
	defer stop()
	done, err := monitor.waitSilent(ctx)
	if err == nil && !done.Already {
		if err = abortConnection(ctx, control, found, monitor.checkLastTime); err == nil {
			done.Message = fmt.Sprintf("aborted FUSE connection %d: %s", found.Minor, monitor)
		}
	}
	if errors.Is(err, fuse.ErrNoConnection) {
		return fault.AlreadySo(fmt.Sprintf("was aborted already, or its daemon has ended: FUSE connection %d is dead", found.Minor)), nil
	}
	return done, err
}

// abortConnection ends the connection of a mount if check returns no error. It has the mount's root open meanwhile: a
// driver that mounts again is given the same number for its connection as soon as the old file system has gone.
func abortConnection(ctx context.Context, control *fuse.Control, found mountns.Mount, check func() error) error {
	return found.Namespace.Do(func() error {
		root, err := openRoot(found)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := check(); err != nil {
			return err
		}
		return calls.From(ctx).Did("write", fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", found.Minor), control.Abort(found.Minor))
	})
}

// openRoot opens the root of a mount of the calling thread's namespace, if it is still there and shows. The caller
// closes it.
func openRoot(m mountns.Mount) (*sys.FD, error) {
	root, err := mountns.Lookup(0, m.Point)
	if err != nil {
		return nil, fmt.Errorf("open mount at %q: %w", m.Point, err)
	}
	found, err := mount.Inspect(m.Point)
	number, errNumber := mountIDOf(root) // which no other mount is given while it is open
	if err = errors.Join(err, errNumber); err == nil && (!found.Same(mount.IDOf(m)) || number != found.UniqueID && number != uint64(found.MountInfoID)) {
		err = fmt.Errorf("%w: another mount is at %q by now", ErrRefused, m.Point)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// raisedByRepair reports whether m is a mount that was written down before a repair that was cut short put another
// beneath it. Only its parent differs then, which is at the same point.
func raisedByRepair(mount mountns.Mount, want fault.Mount) bool {
	found := faults.MountOf(mount)
	found.ParentID = want.ParentID
	if want.ID != 0 || !found.Same(want) {
		return false
	}
	table, err := mount.Namespace.Table()
	if err != nil {
		return false
	}
	below, ok := table.ByID(mount.Parent)
	return ok && below.Point == mount.Point && below.Parent == want.ParentID
}

// Proof is the result of Verify.
type Proof struct {
	// Healed is whether nothing is left of the faults that the actions are for.
	Healed bool `json:"healed"`
	// Evidence describes, for each action, the mount at its place now.
	Evidence []string `json:"evidence"`
	// NotHealed are the places that are not healed, with the reason.
	NotHealed []string `json:"left,omitempty"`
}

// Verify inspects once the places of actions that were applied: the old mount is gone, and the one there now answers, is the
// source, and can be bound. An aborted connection must not hang any more.
func (i *Inspector) Verify(ctx context.Context, actions []fault.Action) (Proof, error) {
	proof, uids := Proof{}, []string(nil)
	for _, action := range actions {
		if err := checkComplete(action); err != nil {
			return Proof{}, err
		}
		if !slices.Contains(uids, action.Pod.UID) {
			uids = append(uids, action.Pod.UID)
		}
	}
	if len(actions) == 0 {
		return Proof{Healed: true}, nil
	}
	n, err := i.inspectPods(ctx, uids)
	if err != nil {
		return Proof{}, err
	}
	for _, action := range actions {
		check := n.placeIsReplaced
		switch action.Kind {
		case fault.Abort:
			check = n.answersAgain
		case fault.Unmount:
			check = n.isRemoved
		}
		if done, how := check(*action.Mount); done {
			proof.Evidence = append(proof.Evidence, how)
		} else {
			proof.NotHealed = append(proof.NotHealed, how)
		}
	}
	proof.Healed = len(proof.NotHealed) == 0
	return proof, nil
}

// answersAgain reports whether a mount that did not answer does so now, if only with an error, or has gone itself.
func (n *inspection) answersAgain(want fault.Mount) (ok bool, how string) {
	for _, v := range n.volumes {
		if faults.MountOf(v.Evidence.Mount).Same(want) {
			return !v.Evidence.Answer.State.Unanswered(), fmt.Sprintf("the mount at %q: %s", v.Evidence.Point, v.Evidence.Answer.State)
		}
	}
	return true, fmt.Sprintf("the mount at %q is gone", want.Point)
}
