// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/processor"
)

// Keys of the results.
const (
	// keyVolumes holds the volumes, as JSON: those that are broken first.
	keyVolumes = "collector.kubernetes.volume_health.list"
	// keyVolumeSurvey says in one line how much was looked at, and how much could not be.
	keyVolumeSurvey = "collector.kubernetes.volume_health.survey"
)

// Bounds of the list.
const (
	maxListedVolumes  = 2000
	maxCopies         = 64 // of one volume
	maxListedEvidence = 16 // sentences about one volume
)

// Surveyor looks at volumes: a *volume.Inspector.
type Surveyor interface {
	Inspect(ctx context.Context, s mountstate.Scope) (*volume.Survey, error)
}

// Collector is the processor volumeHealthCollector.
//
// It collects the volumes of one pod, or of all pods of the node, on file systems that can die under them. For each it
// gives the mount, its answer, and the records of the kubelet and the driver. It never waits longer for a file system
// than the prober does, and changes nothing.
type Collector struct {
	Pods      kubelet.Pods
	Inspector Surveyor
}

// Name is volumeHealthCollector.
func (*Collector) Name() string { return "volumeHealthCollector" }

// Parameters are those that it reads.
func (*Collector) Parameters() []string {
	return []string{volume.ParamVolume}
}

// listedVolume is one volume as it is shown.
type listedVolume struct {
	volumePlace
	listedMount
	// State is the outcome of the question to the mount, Errno the error that decided; Bindable is "yes", "no" or
	// unknown.
	State    probe.State    `json:"state,omitempty"`
	Errno    string         `json:"errno,omitempty"`
	Bindable probe.Tristate `json:"bindable,omitempty"`
	// Record is the kubelet's own, Staging where the driver has mounted it for the node, and how that
	// is.
	Record       *kubelet.VolumeRecord `json:"record,omitempty"`
	Staging      string                `json:"staging,omitempty"`
	StagingState probe.State           `json:"stagingState,omitempty"`
	// Code is the fault; empty: none of its own. Copies are its broken mounts at other places.
	Code     fault.Code   `json:"code,omitempty"`
	Copies   []listedCopy `json:"copies,omitempty"`
	Evidence []string     `json:"evidence,omitempty"`
}

// volumePlace is where the kubelet keeps a volume of a pod.
type volumePlace struct {
	Pod    fault.Pod `json:"pod"`
	Plugin string    `json:"plugin"`
	Name   string    `json:"name"`
	Point  string    `json:"point"`
}

func volumePlaceOf(h *volume.Health) volumePlace {
	return volumePlace{h.Evidence.Pod, h.Evidence.Plugin, h.Evidence.Name, h.Evidence.Point}
}

// listedMount is the mount that is visible at the place of a volume.
type listedMount struct {
	FSType string `json:"fsType,omitempty"`
	Device string `json:"device,omitempty"` // "major:minor"
	Root   string `json:"root,omitempty"`
	// HiddenMounts is how many mounts it hides.
	HiddenMounts int `json:"beneath,omitempty"`
}

// listedCopy is a broken mount of a volume at another place.
type listedCopy struct {
	Code      fault.Code `json:"code"`
	Point     string     `json:"point"`
	Namespace uint64     `json:"namespace"` // N in mnt:[N]
	Pod       fault.Pod  `json:"pod,omitzero"`
	Container string     `json:"container,omitempty"`
}

func listedCopyOf(c *volume.Copy) listedCopy {
	return listedCopy{c.Verdict.Code, c.Mount.Point, c.Mount.Namespace.Inode, c.Holder.Pod, c.Holder.Container}
}

// Run looks at the volumes of the request's pod, or, if it names none, at all of the node.
func (c *Collector) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	scope, elsewhere, err := scopeOf(ctx, c.Pods, r)
	if err != nil || elsewhere != "" {
		return processor.Result{NotApplicable: elsewhere}, err
	}
	survey, err := c.Inspector.Inspect(ctx, scope.Scope)
	if err != nil {
		return processor.Result{}, err
	}
	list := make([]listedVolume, 0, min(len(survey.Volumes), maxListedVolumes))
	for _, broken := range []bool{true, false} {
		for _, v := range survey.Volumes {
			if v.Broken() == broken && len(list) < maxListedVolumes {
				list = append(list, listVolume(v))
			}
		}
	}
	values := map[string]string{keyVolumeSurvey: describeSurvey(survey)}
	err = processor.AddJSON(values, map[string]any{keyVolumes: list})
	return processor.Result{Values: values}, err
}

func listVolume(health *volume.Health) listedVolume {
	out := listedVolume{
		volumePlace: volumePlaceOf(health), listedMount: listedMount{HiddenMounts: len(health.Evidence.HiddenMounts)},
		Record: health.Evidence.Record, Code: health.Verdict.Code,
		State: health.Evidence.Answer.State, Bindable: health.Evidence.Answer.Bindable, Evidence: health.Verdict.Reasons[:min(len(health.Verdict.Reasons), maxListedEvidence)],
	}
	if health.Evidence.Mount.Point != "" {
		out.FSType, out.Root, out.Device = health.Evidence.Mount.FSType, health.Evidence.Mount.Root, fmt.Sprintf("%d:%d", health.Evidence.Mount.Major, health.Evidence.Mount.Minor)
	}
	if health.Evidence.Answer.Errno != 0 {
		out.Errno = health.Evidence.Answer.Errno.Error()
	}
	if health.Evidence.Staging != nil {
		out.Staging, out.StagingState = health.Evidence.Staging.Point, health.Evidence.Expected.StagingRoot.State
	}
	for _, c := range health.Copies[:min(len(health.Copies), maxCopies)] {
		out.Copies = append(out.Copies, listedCopyOf(c))
	}
	return out
}

// describeSurvey says how much was looked at.
func describeSurvey(survey *volume.Survey) string {
	text := fmt.Sprintf("%d volumes on file systems that can die, %d of them broken; %d mounts in the kubelet's mnt:[%d], %d mounts asked",
		len(survey.Volumes), len(survey.Broken()), survey.Coverage.Mounts, survey.Namespace, survey.Coverage.Asked)
	if spaces := survey.Coverage.Namespaces; spaces != nil {
		text += fmt.Sprintf("; %d mounts in %d mount namespaces (%s), %d processes may not be looked into, %d namespaces were read only in part",
			spaces.Mounts, spaces.Namespaces, spaces.Backend, spaces.Denied, spaces.Partial)
	}
	if more := len(survey.Volumes) - maxListedVolumes; more > 0 {
		text += fmt.Sprintf("; %d volumes are not listed", more)
	}
	if left := survey.Unknown.Sentences(); len(left) > 0 {
		text += "; not looked at: " + strings.Join(left[:min(len(left), maxListedEvidence)], "; ")
	}
	return text
}

// Excerpt keeps whole volumes for as long as there is room. Those that are broken come first already.
func (*Collector) Excerpt(_ processor.Request, _, value string, limit int) string {
	return processor.ExcerptList(value, limit)
}
