// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/repair"
)

// Open implements repair.Family. Each action looks for itself.
func (h *Recoverer) Open(_ context.Context, r processor.Request, p repair.Part) (repair.Work, error) {
	return repair.EachAlone(p, func(ctx context.Context, a fault.Action) (fault.Applied, error) { return h.Apply(ctx, r, a) }), nil
}

// Apply does one action of a plan. It succeeds if that is done already, and refuses if the target has changed since the
// plan.
func (h *Recoverer) Apply(ctx context.Context, r processor.Request, action fault.Action) (fault.Applied, error) {
	pod, elsewhere, err := podref.Load(ctx, h.Pods, r)
	if err != nil {
		return fault.Applied{}, err
	}
	if elsewhere != "" {
		return fault.Applied{}, processor.Stalled(errors.New(elsewhere))
	}
	if action.Kind == fault.Unmount {
		return h.unmountBind(ctx, pod, action)
	}
	if action.Kind == fault.RemoveContainerRecord {
		return fault.Applied{}, nil
	}
	return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", action.Kind))
}

func (h *Recoverer) unmountBind(ctx context.Context, pod *corev1.Pod, action fault.Action) (done fault.Applied, err error) {
	node, err := h.Kubelet.Node(ctx)
	if err != nil {
		return fault.Applied{}, err
	}
	if action.Mount == nil {
		return fault.Applied{}, processor.Stalled(errors.New("apply action: no mount is named"))
	}
	id, err := faults.MountID(*action.Mount)
	if err != nil {
		return fault.Applied{}, processor.Stalled(err)
	}
	if _, ok := podinfo.FindSubPathMount(node, pod, id.Point); !ok {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("unmount %q: no subPath of pod %s/%s with UID %q belongs there", id.Point, pod.Namespace,
			pod.Name, pod.UID))
	}
	if err := h.refuseWhileUsed(ctx, pod, id.Point); err != nil {
		return fault.Applied{}, err
	}
	asked, err := subpath.Ask(ctx, h.Sources.Prober, node, func(string) *corev1.Pod { return pod }, []string{id.Point})
	if err != nil {
		return fault.Applied{}, err
	}
	err = node.Do(ctx, func() (err error) {
		done, err = unmountHere(ctx, unmountTarget{node, pod, id, action.Mount.Namespace, asked})
		return err
	})
	return done, err
}

// refuseWhileUsed refuses the unmount for a pod that is being deleted and of which something runs.
func (h *Recoverer) refuseWhileUsed(ctx context.Context, pod *corev1.Pod, point string) error {
	if pod.DeletionTimestamp == nil {
		return nil
	}
	what, err := cri.PodRuns(ctx, h.Sources.Runtime, string(pod.UID))
	if err == nil && what != "" {
		err = processor.Stalled(fmt.Errorf("unmount %q: its pod is being deleted, and may still use it: %s", point, what))
	}
	return err
}

// unmountTarget is one mount that is to be unmounted.
type unmountTarget struct {
	node      *kubelet.Node
	pod       *corev1.Pod
	id        mount.ID
	namespace uint64
	asked     subpath.Answers
}

// unmountHere runs inside the kubelet's namespace.
func unmountHere(ctx context.Context, target unmountTarget) (fault.Applied, error) {
	ns, err := mountns.Self()
	if err != nil {
		return fault.Applied{}, err
	}
	if ns.Inode != target.namespace {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("unmount %q: planned in mount namespace mnt:[%d], but the kubelet is in %s now", target.id.Point,
			target.namespace, ns))
	}
	err = subpath.Unmount(ctx, target.node, target.pod, target.id, target.asked)
	switch {
	case err == nil:
		return fault.Applied{Message: "unmounted"}, nil
	case errors.Is(err, mount.ErrNotMounted):
		return fault.AlreadySo("was gone already"), nil
	case errors.Is(err, mount.ErrChanged):
		return target.judgeChanged(err)
	case errors.Is(err, subpath.ErrNotStale), errors.Is(err, sys.EINVAL):
		return fault.Applied{}, processor.Stalled(err)
	}
	return fault.Applied{}, err
}

// judgeChanged distinguishes a planned mount that is gone, with another in its place, from one that is covered by
// another.
func (t unmountTarget) judgeChanged(cause error) (fault.Applied, error) {
	table, err := mountns.Table(0)
	if err != nil {
		return fault.Applied{}, err
	}
	var c *mount.ChangedError
	// A number of mountinfo is used again at once, but never by two mounts at a time.
	reused := errors.As(cause, &c) && c.Found.MountInfoID == t.id.MountInfoID
	m, ok := table.ByID(t.id.MountInfoID)
	if ok && !reused && m.Point == t.id.Point && m.Parent == t.id.Parent {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("nothing was touched: %w", cause))
	}
	return fault.AlreadySo("was gone already; another mount is there now and is left alone"), nil
}
