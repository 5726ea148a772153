// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// ErrNoAnswer is in the error of an action that was refused because a file system did not answer: another try may find that it does.
var ErrNoAnswer = errors.New("a file system did not answer")

// RefusedError is the error of an action that may not be done: nothing was touched. Another try does not help, if it is not ErrNoAnswer.
type RefusedError struct{ Err error }

// Error is that of the cause.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// ErrStaleAgain is the error of Verify if the mount is gone, and another stale one is at its place.
var ErrStaleAgain = errors.New("another stale mount is there now: diagnose again")

func refuse(format string, args ...any) error { return &RefusedError{fmt.Errorf(format, args...)} }

// Plan returns the action that repairs a stale bind of a pod, or the reason why it is left alone. A container that is not started
// again needs no repair, but the bind may keep a pod from going whose last container has ended. found is the fault of the bind.
func (b *Bind) Plan(pod *corev1.Pod, found fault.Finding) (a fault.Action, refusal string) {
	name := pod.Namespace + "/" + pod.Name
	outlook, why := podinfo.RestartStateOf(pod, b.Container)
	switch {
	case b.mayBeLastMount():
		return a, fmt.Sprintf("pod %s has a stale subPath mount at %q, which is left alone: no other mount of its file system is known, and the "+
			"unmount of the last one can wait for the server", name, b.State.Point)
	case b.KeepsPod && b.StillRuns != "":
		return a, fmt.Sprintf("pod %s is being deleted and has a stale subPath mount, which stays as long as the pod may use it: %s", name, b.StillRuns)
	case !b.KeepsPod && outlook == podinfo.Finished:
		return a, fmt.Sprintf("pod %s has a stale subPath mount, but container %q is not started again: %s. Create the pod again", name, b.Container, why)
	}
	safety := b.Reason + "; this pod's spec requests the bind; "
	switch {
	case b.KeepsPod:
		safety += podIsOver
	case isLocalType(b.State.FSType):
		safety += "the current file or directory is bound in its place if it exists, otherwise the kubelet binds it at the next start; running " +
			"containers keep their mount"
	default:
		safety += "the kubelet binds the current file or directory at the next start; running containers keep their mount"
	}
	if b.PeerGroup != 0 {
		safety += fmt.Sprintf("; it lies on a shared mount (peer group %d), so copies of this bind in other mount namespaces go with it", b.PeerGroup)
	}
	return fault.Action{
		Kind: fault.Unmount, For: []fault.Key{found.Key()}, Target: b.State.Point, Mount: &found.Mount,
		Safety: safety, Loss: "nothing", Lossless: true,
	}, ""
}

// Apply does the action of a Plan about a bind of the pod: it removes exactly the planned mount, if that is still a stale bind that
// the pod's spec asks for. It binds the entry that the subPath names now in its place, if there is one. A kubelet that is just starting
// the container may have found the bind and handed its path on. The container must not start with the empty file or directory below it.
// A kubelet keeps a bind that it finds. If nothing is there, the kubelet binds at the next start.
//
// Apply is called inside the kubelet's namespace. asked are the answers that were got just before, of file systems that may not answer;
// without them nothing there is stale. A mount that is gone is done already.
func Apply(ctx context.Context, node *kubelet.Node, pod *corev1.Pod, a fault.Action, asked Answers) (fault.Applied, error) {
	if a.Kind != fault.Unmount || a.Mount == nil {
		return fault.Applied{}, refuse("apply action: %q of %q is no unmount of a mount", a.Kind, a.Target)
	}
	id, err := faults.MountID(*a.Mount)
	if err != nil {
		return fault.Applied{}, &RefusedError{err}
	}
	ns, err := mountns.Self()
	if err != nil {
		return fault.Applied{}, err
	}
	if ns.Inode != a.Mount.Namespace {
		return fault.Applied{}, refuse("unmount %q: planned in mount namespace mnt:[%d], but the kubelet is in %s now", id.Point, a.Mount.Namespace, ns)
	}
	var st mount.State
	err = mount.Unmount(ctx, id, mount.Options{
		Check: func(now mount.State) error {
			st = now
			return expectStale(node, pod, now, asked)
		},
		Source: func() *sys.FD { return openReplacement(node, pod, st) },
	})
	if errors.Is(err, ErrNotStale) {
		if _, gone := mount.Inspect(id.Point); errors.Is(gone, mount.ErrNotMounted) || errors.Is(gone, sys.ENOENT) {
			err = mount.ErrNotMounted // it went while it was looked at
		}
	}
	switch {
	case err == nil:
		return fault.Applied{Message: "unmounted"}, nil
	case errors.Is(err, mount.ErrNotMounted):
		return fault.AlreadySo("was gone already"), nil
	case errors.Is(err, mount.ErrChanged):
		return judgeChanged(id, err)
	case errors.Is(err, ErrNotStale), errors.Is(err, sys.EINVAL):
		return fault.Applied{}, &RefusedError{err}
	}
	return fault.Applied{}, err
}

// judgeChanged distinguishes a planned mount that is gone from a planned mount that another one covers.
func judgeChanged(id mount.ID, cause error) (fault.Applied, error) {
	table, err := mountns.Table(0)
	if err != nil {
		return fault.Applied{}, err
	}
	var c *mount.ChangedError
	// A number of mountinfo is used again at once, but never by two mounts at a time.
	reused := errors.As(cause, &c) && c.Found.MountInfoID == id.MountInfoID
	m, ok := table.ByID(id.MountInfoID)
	if ok && !reused && m.Point == id.Point && m.Parent == id.Parent {
		return fault.Applied{}, refuse("nothing was touched: %w", cause)
	}
	return fault.AlreadySo("was gone already; another mount is there now and is left alone"), nil
}

// Verify proves of an action that was applied that its mount is gone, and that no other stale one is at its place. It is called inside
// the kubelet's namespace. pod is nil if it is not known any more.
func Verify(node *kubelet.Node, pod *corev1.Pod, a fault.Action, asked Answers) error {
	id, err := faults.MountID(*a.Mount)
	if err != nil {
		return &RefusedError{err}
	}
	bind, there, err := InspectBind(node, pod, id.Point, asked)
	switch {
	case err != nil:
		return err
	case there && bind.State.Same(id):
		return refuse("verify unmount of %q: mount %d is still in the mount table", id.Point, id.MountInfoID)
	case there && bind.Verdict == Stale:
		return refuse("verify unmount of %q: %w", id.Point, ErrStaleAgain)
	}
	return nil
}
