// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Job is what Apply has run in a process that can be lost. Main programs, and tests, hand it to subprocess.Main.
var Job = subprocess.Job{Name: "volume-swap", Run: runReplace}

// replaceDeadline is how long the file system of the source may take to find a directory, and that of the mount to let
// go.
const replaceDeadline = 5 * time.Second

// replaceOrder is one replacement, as the process that does it reads it.
type replaceOrder struct {
	// KubeletNamespace is the kubelet's mount namespace, and MountNamespace that of the mount, with the user namespace
	// that owns it: the process enters no other.
	KubeletNamespace, MountNamespace mountns.Namespace
	// From is the mount that the source is in, and Below the way from its root.
	From  mount.ID
	Below string
	// Major, Minor and Inode are what the source has answered with.
	Major, Minor uint32
	Inode        uint64
	// Target is the mount that is replaced.
	Target mount.ID
	// Answered is whether its file system answered when it was judged: then the fault is what it has.
	Answered bool
	// ReadOnly has the source be mounted read-only, even if the target was not.
	ReadOnly bool
	// Remove has the target be unmounted, and nothing put in its place. Then From, Below and the file are not set.
	Remove bool
	// Idle has a mount be removed that may answer: the kernel removes it only if nothing uses it.
	Idle bool
	// Owner is the pod that is accountable if the process cannot end.
	Owner string
}

// replaceCauses are the reasons for which nothing was touched.
var replaceCauses = []error{ErrInUse, ErrRefused}

// refusedOrder is the outcome of an order that was refused before it changed anything.
func refusedOrder(text string) faults.Outcome {
	return faults.Outcome{Text: text, Cause: slices.Index(replaceCauses, ErrRefused)}
}

// replace puts the source in the place of a mount that was judged by an answer. The order says whether it is for
// reading alone, and whose the process counts as that does it.
func (i *Inspector) replace(ctx context.Context, order replaceOrder, found mountns.Mount, answer probe.Answer,
	source *Source) (fault.Applied, error) {
	n, err := i.Kubelet.Node(ctx)
	if err != nil {
		return fault.Applied{}, err
	}
	home, err := n.Namespace()
	if err != nil {
		return fault.Applied{}, err
	}
	order.KubeletNamespace, order.MountNamespace, order.From, order.Below = home, found.Namespace, mount.IDOf(source.mount), source.Below
	order.Major, order.Minor, order.Inode = source.probedStat.Major, source.probedStat.Minor, source.probedStat.Inode
	order.Target, order.Answered = mount.IDOf(found), answer.State == probe.Alive
	if home.Inode != source.Mount.Namespace {
		return fault.Applied{}, fmt.Errorf("%w: the kubelet is in another mount namespace by now", ErrRefused)
	}
	return i.runOrder(ctx, order, source.Path)
}

func (i *Inspector) runOrder(ctx context.Context, order replaceOrder, name string) (fault.Applied, error) {
	outcome, err := faults.RunJob(ctx, i.Runner, subprocess.Options{
		Job: Job.Name, Input: order, Deadline: replaceDeadline, Owner: order.Owner,
		Waits: []string{device{order.Major, order.Minor}.String(), device{order.Target.Major, order.Target.Minor}.String()},
	}, "the process that replaces "+order.Target.Point)
	refused := outcome.Err(replaceCauses)
	switch {
	case errors.Is(err, subprocess.ErrDeadline):
		return fault.Applied{}, fmt.Errorf("replace the mount at %q with %q: %w within %s", order.Target.Point, name, ErrHung, replaceDeadline)
	case err != nil:
		return fault.Applied{}, fmt.Errorf("replace the mount at %q with %q: %w", order.Target.Point, name, err)
	case errors.Is(refused, ErrInUse):
		return fault.Applied{}, fmt.Errorf("%w: %w: %s", ErrRefused, ErrInUse, outcome.Text)
	case refused != nil:
		return fault.Applied{}, fmt.Errorf("%w: %s", ErrRefused, outcome.Text)
	}
	return fault.Applied{Message: fmt.Sprintf("put %q in its place", name)}, nil
}

// runReplace is the job. Its process is in the namespace of its parent.
func runReplace(ctx context.Context, in []byte, emit func(v any) error) error {
	var order replaceOrder
	if err := json.Unmarshal(in, &order); err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	if order.MountNamespace.UserNamespace == 0 {
		return emit(refusedOrder("which user namespace owns the mount namespace is not known"))
	}
	log := &calls.Log{}
	ctx = calls.With(ctx, log)
	if order.Remove {
		err := order.MountNamespace.Do(func() error {
			for tries := 1; ; tries++ {
				err := mount.Unmount(ctx, order.Target, mount.Options{Check: order.checkTarget})
				if !errors.Is(err, mount.ErrBusy) || tries == busyTries {
					return err
				}
				time.Sleep(busyPause)
			}
		})
		return order.report(err, log, emit)
	}
	tree, err := order.cloneSource()
	if err != nil {
		return emit(refusedOrder(err.Error()))
	}
	defer tree.Close()
	err = order.MountNamespace.Do(func() error {
		pinMount(order.Target.Point)
		var limits sys.MountAttr
		if order.ReadOnly {
			limits = sys.AttrReadOnly
		}
		return mount.Replace(ctx, order.Target, mount.ReplaceOptions{Tree: tree, Check: order.checkTarget, Limits: limits})
	})
	return order.report(err, log, emit)
}

const (
	// busyTries is how often a mount is unmounted that something uses, and busyPause the time between. A kubelet and a scan use a mount for as long as
	// they look at it.
	busyTries = 10
	busyPause = 100 * time.Millisecond
)

// report emits how an order went.
func (o replaceOrder) report(err error, log *calls.Log, emit func(v any) error) error {
	if nothingTouched(err) {
		outcome := refusedOrder(err.Error())
		if outcome.Calls = log.All(); o.Remove && errors.Is(err, mount.ErrBusy) {
			outcome.Cause = slices.Index(replaceCauses, ErrInUse)
		}
		if !o.MountNamespace.Same(o.KubeletNamespace) && (errors.Is(err, mount.ErrBusy) || errors.Is(err, sys.EINVAL)) {
			outcome.Text += "; the container gets the volume when it is restarted" // the kernel does not allow to replace its mount while it runs
		}
		return emit(outcome)
	}
	if err != nil {
		return errors.Join(err, emit(faults.Outcome{Calls: log.All()}))
	}
	return emit(faults.Outcome{Calls: log.All()})
}

// pinMount has a copy of the mount at point, attached nowhere, until this process ends. The last mount of a file system
// takes that with it, which may take long: it must not happen while the place is without a mount, as it is for a moment
// if nothing can be put beneath. As long as the file system is there, no new one is given its device number. So a mount
// of another FUSE connection differs from this one in every later inspection. A mount that cannot be copied is replaced
// as it is.
func pinMount(point string) {
	fd, err := mountns.Lookup(0, point)
	if err != nil {
		return // Replace returns the same error
	}
	defer fd.Close()
	if tree, err := sys.CloneTree(fd); err == nil {
		_ = sys.MakeTreePrivate(tree, false) // before 5.12 there is no way
	}
}

// nothingTouched reports whether an error of Replace says that nothing was touched, and that trying again will not
// help.
func nothingTouched(err error) bool {
	e, ok := errors.AsType[*mount.Error](err)
	if ok && e.Op == "verify" || errors.Is(err, mount.ErrNotReplaced) || errors.Is(err, mount.ErrOtherUnmounted) {
		return false
	}
	final := []error{
		errHealthy, mount.ErrChanged, mount.ErrBusy, mount.ErrNotMounted, sys.EINVAL, sys.ENOENT, sys.ENOTDIR, errors.ErrUnsupported,
	}
	return slices.ContainsFunc(final, func(target error) bool { return errors.Is(err, target) })
}

// cloneSource makes the copy of the source that is to be put in place, after making sure that it is what was found. No
// link is followed on the way, and no other mount entered.
func (o replaceOrder) cloneSource() (tree *sys.FD, err error) {
	err = o.KubeletNamespace.Do(func() error {
		found, err := mount.Inspect(o.From.Point)
		if err != nil {
			return fmt.Errorf("inspect mount of source: %w", err)
		}
		if !found.Same(o.From) {
			return fmt.Errorf("inspect mount of source: %w", &mount.ChangedError{Want: o.From, Found: found.ID})
		}
		root, err := mountns.Lookup(0, o.From.Point)
		if err != nil {
			return err
		}
		defer root.Close()
		at := root
		if o.Below != "" {
			if at, err = sys.LookupIn(root, "/"+o.Below); err != nil {
				return fmt.Errorf("look up %q in %q: %w", o.Below, o.From.Point, err)
			}
			defer at.Close()
			above, errAbove := mountIDOf(root)
			own, errOwn := mountIDOf(at)
			if err := errors.Join(errAbove, errOwn); err != nil || above != own {
				return errors.Join(fmt.Errorf("look up %q in %q: another mount lies on the way", o.Below, o.From.Point), err)
			}
		}
		st, err := at.Stat(sys.StatIno | sys.StatType)
		if err != nil {
			return fmt.Errorf("inspect source: %w", err)
		}
		if st.Major != o.Major || st.Minor != o.Minor || st.Ino != o.Inode {
			return fmt.Errorf("inspect source: it is inode %d of device %d:%d by now, and was inode %d of device %d:%d", st.Ino, st.Major,
				st.Minor, o.Inode, o.Major, o.Minor)
		}
		if tree, err = sys.CloneTree(at); err != nil {
			return fmt.Errorf("copy source: %w", err)
		}
		return nil
	})
	return tree, err
}

// mountIDOf is the number of the mount that an open file lies on.
func mountIDOf(fd *sys.FD) (uint64, error) {
	st, err := fd.Stat(sys.StatUniqueID)
	if err == nil && st.Has(sys.StatUniqueID) {
		return st.MountID, nil
	}
	number, err := fd.FDMountID()
	return uint64(number), err
}

// errHealthy: the mount that was to be replaced has nothing wrong with it.
var errHealthy = errors.New("the mount is healthy by now")

// checkTarget refuses a healthy mount, and the removal of a mount that is not dead. A driver may have mounted the
// volume again since the mount was judged. Before 6.8, and if the server has disowned the root, the kernel may have given the
// new mount every number of the old one. mount.Replace holds the mount that state describes open meanwhile, if it can be
// opened, so that its number stays its own.
func (o replaceOrder) checkTarget(state mount.State) error {
	root, err := mountns.Lookup(0, state.Point)
	if errors.Is(err, sys.ESTALE) && !o.Remove {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	number, err := mountIDOf(root)
	switch {
	case err != nil:
		return err
	case number != state.UniqueID && number != uint64(state.MountInfoID):
		return fmt.Errorf("%w while it was looked at", mount.ErrChanged)
	case o.Idle:
		return nil
	case o.Answered:
		// The mount was judged by its content, which no file system is asked about. Its number is enough if the
		// kernel never uses it again, and so is the kernel's mark, which is part of its ID. Otherwise a mount of the
		// source itself may be a new one.
		if o.Target.UniqueID != 0 || state.Deleted {
			return nil
		}
		has, err := root.Stat(sys.StatIno)
		if err != nil {
			return err
		}
		if has.Major == o.Major && has.Minor == o.Minor && has.Ino == o.Inode {
			return fmt.Errorf("%w: it has what belongs there, inode %d of device %d:%d", errHealthy, has.Ino, has.Major, has.Minor)
		}
		return nil
	}
	// A dead FUSE connection refuses at once, and does so for good.
	switch answer := probe.AskRoot(root).State; {
	case o.Remove && answer != probe.Disconnected:
		return fmt.Errorf("%w: its state is %s", errHealthy, answer)
	case answer == probe.Alive:
		return fmt.Errorf("%w: it answers", errHealthy)
	}
	return nil
}
