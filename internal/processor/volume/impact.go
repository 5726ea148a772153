// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/fusedaemon"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
)

// ImpactDiagnoser is the processor mountImpactDiagnoser.
//
// It says of each volume of a pod that has not ended which daemons it needs, how it comes back after their end, and whether it can be
// unmounted now. The kernel says which process serves a FUSE file system (Linux 6.16), and its control group in which pod that is. If the
// kernel does not say it, the pod that serves the volume's CSI driver stands for the daemon. It changes nothing, and finds no faults.
type ImpactDiagnoser struct {
	Inspector Surveyor
	// Pods is nil if the specs of pods are not known: then no volume is known to come back by itself.
	Pods kubelet.PodCache
	// Exits is nil if nothing is known about drivers, Owners if nothing is known about containers.
	Exits  ExitAnalyzer
	Owners volume.Runtime
}

// Name is mountImpactDiagnoser.
func (*ImpactDiagnoser) Name() string { return "mountImpactDiagnoser" }

// Run looks at all volumes of the node.
func (d *ImpactDiagnoser) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	if r.Pod != (processor.Pod{}) {
		return processor.Result{}, processor.Stalled(errors.New("read spec: a pod is named, and this is an answer for a node"))
	}
	survey, err := d.Inspector.Inspect(ctx, mountstate.Scope{})
	if err != nil {
		return processor.Result{}, err
	}
	s := impactSearch{ImpactDiagnoser: d, known: map[int]fault.ServingDaemon{}, drivers: map[string]fusedaemon.Exit{}}
	if s.servers, s.unseenReason, err = fuse.Servers(ctx); err != nil {
		return processor.Result{}, err
	}
	list := []fault.MountImpact{}
	for _, health := range survey.Volumes {
		v := &health.Evidence.Volume
		var pod *corev1.Pod // nil: its spec is not known
		if s.Pods != nil {
			pod = s.Pods.PodByUID(v.Pod.UID)
		}
		if v.Mount.ID != 0 && v.Origin.Container == "" && (pod == nil || !podinfo.Ended(pod)) {
			impact := impactOf(health, pod)
			if impact.ServedBy == fault.ServedByDaemon {
				impact.Daemons, impact.DaemonUnknown = s.daemonsOf(ctx, v, impact.Driver)
			}
			list = append(list, impact)
		}
	}
	slices.SortStableFunc(list, func(a, b fault.MountImpact) int {
		order := []fault.ServedBy{fault.ServedByDaemon, fault.ServedByUnknown, fault.ServedByKernel}
		return cmp.Or(slices.Index(order, a.ServedBy)-slices.Index(order, b.ServedBy), cmp.Compare(a.Pod.Namespace, b.Pod.Namespace),
			cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Volume, b.Volume))
	})
	unknown := survey.Unknown.Sentences()
	unknown = unknown[:min(len(unknown), maxListedEvidence)]
	if more := len(list) - maxListedVolumes; more > 0 {
		list, unknown = list[:maxListedVolumes], append(unknown, fmt.Sprintf("%d more volumes are not listed", more))
	}
	results, values := map[string]any{fault.KeyMountImpact: list}, map[string]string{}
	if len(unknown) > 0 {
		results[fault.KeyMountImpactUnknown] = unknown
	}
	err = processor.AddJSON(values, results)
	return processor.Result{Values: values}, err
}

// Excerpt keeps whole volumes for as long as there is room, those that daemons serve first.
func (*ImpactDiagnoser) Excerpt(_ processor.Request, _, value string, limit int) string {
	return processor.ExcerptList(value, limit)
}

// impactSearch is one look.
type impactSearch struct {
	*ImpactDiagnoser

	servers      map[uint32][]fuse.Server
	unseenReason string
	known        map[int]fault.ServingDaemon // by process
	drivers      map[string]fusedaemon.Exit
}

// impactOf says of a volume all but which daemon serves it.
func impactOf(health *volume.Health, pod *corev1.Pod) fault.MountImpact {
	v := &health.Evidence.Volume
	out := fault.MountImpact{
		Pod: v.Pod, Volume: v.Name, SpecVolume: v.SpecName, Point: v.Point, FSType: v.Mount.FSType, ServedBy: fault.ServedByKernel,
		Returns: fault.ReturnNotLost, UnmountRefusal: unmountRefusal(health),
	}
	if v.Record != nil {
		out.Driver = v.Record.Driver
	}
	switch kind, _, _ := strings.Cut(v.Mount.FSType, "."); {
	case kind == "fuse", kind == "fuseblk":
		out.ServedBy, out.Returns = fault.ServedByDaemon, wayBack(v, pod)
	case strings.HasPrefix(v.Mount.Source, "/dev/nbd"), strings.HasPrefix(v.Mount.Source, "/dev/ublkb"):
		out.ServedBy, out.Returns = fault.ServedByUnknown, fault.ReturnNewPod
		out.DaemonUnknown = fmt.Sprintf("a process of the node may serve device %q", v.Mount.Source)
	}
	return out
}

// daemonsOf are the processes that serve a FUSE volume, one of each container, or the driver's container.
func (s *impactSearch) daemonsOf(ctx context.Context, v *volume.Volume, driver string) (all []fault.ServingDaemon, unknown string) {
	unknown = "the kernel does not say which process serves a file system on a device"
	if v.Mount.Major == 0 {
		for _, server := range s.servers[v.Mount.Minor] {
			daemon := s.daemonOf(ctx, server)
			if !slices.ContainsFunc(all, func(o fault.ServingDaemon) bool { return o.Pod == daemon.Pod && o.Container == daemon.Container }) {
				all = append(all, daemon)
			}
		}
		unknown = s.unseenReason
	}
	switch {
	case len(all) > 0:
		return all, ""
	case unknown == "":
		return nil, "no process serves it: its daemon has ended"
	case driver == "" || s.Exits == nil:
		return nil, unknown
	}
	exit, asked := s.drivers[driver]
	if !asked { // since now: no daemon that has ended before stands for the one that serves
		exit = s.Exits.AnalyzeAll(ctx, []fusedaemon.Question{{Driver: driver, Mounted: time.Now()}})[0]
		s.drivers[driver] = exit
	}
	if exit.Pod.UID == "" {
		return nil, unknown
	}
	return []fault.ServingDaemon{{Pod: exit.Pod, Container: exit.Container}}, ""
}

// daemonOf finds the pod of a process that serves a file system.
func (s *impactSearch) daemonOf(ctx context.Context, server fuse.Server) fault.ServingDaemon {
	if daemon, ok := s.known[server.PID]; ok {
		return daemon
	}
	daemon := fault.ServingDaemon{PID: server.PID, Command: server.Command}
	owner, err := cri.Owner{}, cri.ErrUnavailable
	if s.Owners != nil {
		var group []byte
		if group, err = sys.ReadProc(strconv.Itoa(server.PID)+"/cgroup", nil); err == nil {
			owner, err = s.Owners.Owner(ctx, string(group))
		}
	}
	switch {
	case err == nil:
		daemon.Pod, daemon.Container = fault.Pod{Namespace: owner.PodNamespace, Name: owner.PodName, UID: owner.PodUID}, owner.Container
	case !errors.Is(err, cri.ErrNotFound):
		daemon.PodUnknown = err.Error()
	}
	s.known[server.PID] = daemon
	return daemon
}

// wayBack says how a pod gets a volume back that its driver mounts again. Only a mount over the volume's own place reaches a container,
// and only a container that has the whole volume and follows the mounts of the host.
func wayBack(v *volume.Volume, pod *corev1.Pod) fault.Return {
	switch {
	case v.Staging != nil:
		return fault.ReturnRepair
	case pod == nil || v.Origin.Inside || v.Mount.Point != v.Point:
		return fault.ReturnNewPod
	}
	name, mounted := cmp.Or(v.SpecName, v.Name), false
	for _, container := range podinfo.ContainerNames(pod) {
		for _, m := range podinfo.VolumeMounts(pod, container) {
			if m.Name != name {
				continue
			}
			follows := m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone
			if mounted = true; !follows || m.SubPath != "" || m.SubPathExpr != "" {
				return fault.ReturnNewPod
			}
		}
	}
	if !mounted {
		return fault.ReturnNewPod
	}
	return fault.ReturnByItself
}

// unmountRefusal says why a volume cannot be unmounted now. The path of a hostPath is not unmounted with the pod.
func unmountRefusal(health *volume.Health) string {
	v, upon := &health.Evidence.Volume, health.Evidence.MountsUpon
	switch {
	case v.Plugin == volume.HostPathPlugin, v.Link != "":
		return ""
	case v.Origin.Inside:
		return fmt.Sprintf("the pod has mounted it inside volume %q, and the kubelet does not unmount it", v.Name)
	case upon == 1:
		return "a mount lies on it, and the kernel refuses to unmount it until that is gone"
	case upon > 1:
		return fmt.Sprintf("%d mounts lie on it, and the kernel refuses to unmount it until they are gone", upon)
	}
	switch health.Evidence.Answer.State {
	case probe.Hung, probe.Silent, probe.Frozen:
		return "its file system does not answer, and the kubelet waits for it"
	}
	return ""
}
