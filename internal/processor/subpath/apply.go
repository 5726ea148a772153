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
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
)

// Apply does one action of a plan. It succeeds if that is done already, and refuses if the target has changed since the plan.
func (h *Recoverer) Apply(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
	pod, elsewhere, err := podref.Load(ctx, h.Pods, r)
	if err != nil {
		return fault.Applied{}, err
	}
	if elsewhere != "" {
		return fault.Applied{}, processor.Stalled(errors.New(elsewhere))
	}
	if a.Kind == fault.Unmount {
		return h.unmount(ctx, pod, a)
	}
	if done, ok := h.starter().Apply(ctx, pod, a); ok {
		return done, nil
	}
	return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", a.Kind))
}

func (h *Recoverer) unmount(ctx context.Context, pod *corev1.Pod, a fault.Action) (done fault.Applied, err error) {
	n, err := h.Kubelet.Node(ctx)
	if err != nil {
		return fault.Applied{}, err
	}
	if a.Mount == nil {
		return fault.Applied{}, processor.Stalled(errors.New("apply action: no mount is named"))
	}
	id, err := faults.MountID(*a.Mount)
	if err != nil {
		return fault.Applied{}, processor.Stalled(err)
	}
	if _, ok := podinfo.FindSubPathMount(n, pod, id.Point); !ok {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("unmount %q: no subPath of pod %s/%s with UID %q belongs there", id.Point, pod.Namespace,
			pod.Name, pod.UID))
	}
	err = n.Do(ctx, func() (err error) {
		done, err = unmountHere(ctx, target{n, pod, id, a.Mount.Namespace})
		return err
	})
	return done, err
}

// target is one mount that is to be unmounted.
type target struct {
	node      *kubelet.Node
	pod       *corev1.Pod
	id        mount.ID
	namespace uint64
}

// unmountHere runs inside the kubelet's namespace.
func unmountHere(ctx context.Context, t target) (fault.Applied, error) {
	ns, err := mountns.Self()
	if err != nil {
		return fault.Applied{}, err
	}
	if ns.Inode != t.namespace {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("unmount %q: planned in mount namespace mnt:[%d], but the kubelet is in %s now", t.id.Point,
			t.namespace, ns))
	}
	err = subpath.Unmount(ctx, t.node, t.pod, t.id)
	switch {
	case err == nil:
		return fault.Applied{Message: "unmounted"}, nil
	case errors.Is(err, mount.ErrNotMounted):
		return fault.AlreadySo("was gone already"), nil
	case errors.Is(err, mount.ErrChanged):
		return t.changed(err)
	case errors.Is(err, subpath.ErrNotStale), errors.Is(err, sys.EINVAL):
		return fault.Applied{}, processor.Stalled(err)
	}
	return fault.Applied{}, err
}

// changed distinguishes a planned mount that is gone, with another in its place, from one that is covered by another.
func (t target) changed(cause error) (fault.Applied, error) {
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
