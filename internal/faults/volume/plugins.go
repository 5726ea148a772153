// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
)

// A driver's mount below the directory of the plugins may be broken while no volume of a pod is: a staging path that died before a pod got the volume
// from there, or after the driver had mounted it elsewhere. The next pod fails then. Such a mount is no volume of a pod, so it is listed as not
// judged, with the fault that it has.

// mountFaults are the faults of a mount that is of no known volume. A deleted directory hurts only the pods that have it.
var mountFaults = []fault.Code{fault.DisconnectedFUSE, fault.HungMount, fault.StaleFileHandle, fault.VolumeIOError}

// waitingVolume is a volume that a pod waits for, by its staging path.
type waitingVolume struct {
	pod    fault.Pod
	volume string
}

// judgePlugins asks the mounts of drivers on file systems that may hang of which no volume is, and takes the answers of the staging paths of healthy
// volumes.
func (p *batchProber) judgePlugins(ctx context.Context, e *enumerator, volumes []*Health) error {
	claimed := map[device]bool{}
	for _, v := range volumes {
		claimed[deviceOf(v.Evidence.Mount.Mount)] = true
		staging := v.Evidence.Staging
		if staging == nil {
			continue
		}
		claimed[deviceOf(staging.Mount.Mount)] = true
		if v.Verdict.Code == "" && v.Verdict.UnknownReason == "" {
			e.notePlugin(staging.Mount.Mount, v.Evidence.StagingAnswer, waitingVolume{v.Evidence.Pod, v.Evidence.Name})
		}
	}
	var points []string
	for point, m := range e.host.visibleMounts {
		if mountinfo.Within(e.host.node.PluginsDir(), point) && isRemote(m.FSType) && !claimed[deviceOf(m)] {
			points = append(points, point)
		}
	}
	if len(points) == 0 {
		return nil
	}
	slices.Sort(points)
	waits, err := e.waitingFor(ctx)
	if err != nil {
		return err
	}
	var requests []probeRequest
	var note []func() // in the order of the points: a mount may be asked once more, and answer last
	for _, point := range points {
		of, ok := waits[point]
		if !ok && (len(e.scope.PodUIDs) > 0 || e.scope.Volume != "") {
			continue
		}
		if len(requests) == maxUnclaimed {
			e.seen.Unknown.AddGap("mounts of drivers that are of no known volume", fmt.Sprintf("there are more than %d, and the others were not asked", maxUnclaimed))
			break
		}
		m, answer := e.host.visibleMounts[point], probe.Answer{}
		requests = append(requests, probeRequest{probeTarget(of.pod.UID, e.host.withNamespace(m), "", false), func(a probe.Answer) { answer = a }})
		note = append(note, func() { e.notePlugin(m, answer, of) })
	}
	if err := p.askAll(ctx, requests); err != nil {
		return err
	}
	for _, do := range note {
		do()
	}
	return nil
}

// notePlugin lists a driver's mount as not judged if its answer is that of a fault.
func (e *enumerator) notePlugin(m mountinfo.Mount, a probe.Answer, of waitingVolume) {
	if v := judgeMount(a, false, m, deviceHealth(m)); slices.Contains(mountFaults, v.Code) {
		e.seen.Unknown.AddPlace(mountstate.Place{Pod: of.pod, Volume: of.volume, Point: m.Point, Reason: fmt.Sprintf(
			"a mount of a driver is broken (%s): %s; until the driver mounts it again, or it is unmounted, no pod gets a volume from there", v.Code, v.Reason())})
	}
}

// waitingFor are the volumes that are recorded and not mounted, by the staging paths that their records name.
func (e *enumerator) waitingFor(ctx context.Context) (map[string]waitingVolume, error) {
	waits := map[string]waitingVolume{}
	err := e.eachPlace(ctx, func(place kubelet.Volume) {
		point := e.host.node.VolumePoint(place)
		if _, mounted := e.host.visibleMounts[point]; mounted || place.Plugin != kubelet.CSIPlugin || place.Block || !e.scope.Includes(place.PodUID, place.Name) {
			return
		}
		record, err := kubelet.ReadVolumeRecordAt(e.host.table, point)
		if err != nil {
			return
		}
		for _, staging := range e.host.node.StagingPoints(record.Driver, record.Handle, record.PersistentVolume) {
			waits[staging] = waitingVolume{e.faultPod(place.PodUID), place.Name}
		}
	})
	return waits, err
}
