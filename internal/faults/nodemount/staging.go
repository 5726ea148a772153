// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package nodemount

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// A driver stages a volume once for the whole node, and the kubelet has it unstaged when the last pod has gone. A kubelet that was
// stopped in between forgets that. The mount stays, and so may the attachment of the device. A new pod has the volume staged there again: so
// it is unmounted only while the kubelet has to wait for a controller to attach the volume first. Else a person gets the steps in their order.

// Attachments reads from the API server whether volumes are attached to this node.
type Attachments interface {
	// WhyStaged says why the kubelet may have a volume of a CSI driver staged by now; empty: a controller has to attach it first.
	WhyStaged(ctx context.Context, driver, handle string) (reason string, err error)
}

// maxAttachmentsRead bounds for how many staging paths of a node objects are read.
const maxAttachmentsRead = 16

// Staged is a staging path that no mount of a pod shows, and no record of one names.
type Staged struct {
	Top    fault.Mount `json:"top"`
	Source string      `json:"source,omitempty"`
	// Record is the kubelet's own of the volume; nil for a plugin of the kubelet, which writes none.
	Record *kubelet.VolumeRecord `json:"record,omitempty"`
	// Unattached is whether a controller has to attach the volume before the kubelet has it staged again. Kept says why that is not so, or not known.
	Unattached bool   `json:"unattached,omitempty"`
	Kept       string `json:"kept,omitempty"`
	mount      mountns.Mount
}

// addStaged finds the staging paths that no pod is known to have. The table is read before the pods.
func (i *Inspector) addStaged(ctx context.Context, e *Evidence, node *kubelet.Node, ns mountns.Namespace, table *mountinfo.Table) error {
	inPods := map[[2]uint32]bool{} // devices of mounts of pods
	var staging []mountinfo.Mount
	for _, m := range table.Mounts() {
		if mountinfo.Within(node.PodsDir(), m.Point) {
			inPods[[2]uint32{m.Major, m.Minor}] = true
		}
		if _, ok := node.ParseStaging(m.Point); ok {
			staging = append(staging, m)
		}
	}
	if len(staging) == 0 {
		return nil
	}
	uids, err := node.PodUIDs(ctx)
	if err != nil {
		return err
	}
	err = node.Do(ctx, func() error {
		records, doubt := i.readPods(node, table, uids)
		for _, m := range staging {
			top, visible := table.Top(m.Point)
			if inPods[[2]uint32{m.Major, m.Minor}] || !visible || top.ID != m.ID {
				continue
			}
			at := mountns.Mount{Mount: m, Namespace: ns}
			s := Staged{Top: faults.MountOf(at), Source: m.Source, mount: at}
			if csi, _ := node.ParseStaging(m.Point); csi {
				var err error
				if s.Record, err = kubelet.ReadVolumeRecordAt(table, m.Point); err != nil {
					continue // whose it is, is not known
				}
				if slices.ContainsFunc(records, func(r *kubelet.VolumeRecord) bool { return r.Same(s.Record) }) {
					continue
				}
			}
			e.Staged = append(e.Staged, s)
		}
		e.Doubt = doubt
		return ctx.Err()
	})
	if err != nil || e.Doubt != "" {
		return err
	}
	i.askAttachments(ctx, e.Staged)
	return ctx.Err()
}

// whyNotKnown says why a staging path is left alone whose attachment is not known.
const whyNotKnown = "whether the kubelet can stage the volume again meanwhile is not known: "

// askAttachments finds the staging paths that may be unmounted. An API server that does not answer is asked no more.
func (i *Inspector) askAttachments(ctx context.Context, all []Staged) {
	asked, failed := 0, ""
	if i.Attachments == nil {
		failed = whyNotKnown + "it can as long as the volume is attached to the node or in the node's volumesInUse"
	}
	for n := range all {
		s := &all[n]
		switch r := s.Record; {
		case r == nil:
			s.Kept = whyNotKnown + "it is of a plugin of the kubelet, which records nothing about it"
		case failed != "":
			s.Kept = failed
		case asked == maxAttachmentsRead:
			s.Kept = fmt.Sprintf("%sat most %d volumes are looked up at once", whyNotKnown, maxAttachmentsRead)
		default:
			asked++
			var err error
			if s.Kept, err = i.Attachments.WhyStaged(ctx, r.Driver, r.Handle); err != nil {
				failed = whyNotKnown + err.Error()
				s.Kept = failed
			}
			s.Unattached = s.Kept == ""
		}
	}
}

// readPods reads the records of the pods' CSI volumes, inside the kubelet's namespace. doubt is why a pod of the node may have a volume that
// neither a mount nor a record shows; empty: none has.
func (i *Inspector) readPods(node *kubelet.Node, table *mountinfo.Table, uids []string) (records []*kubelet.VolumeRecord, doubt string) {
	var specs []*corev1.Pod
	if i.Pods != nil {
		specs = i.Pods()
	}
	now := time.Now()
	for _, s := range mountstate.SourcesOf(uids, specs) {
		volumes, err := node.PodVolumes(s.UID)
		if err != nil {
			return nil, err.Error()
		}
		for _, v := range volumes {
			if v.Plugin != kubelet.CSIPlugin || v.Block { // a device is staged elsewhere
				continue
			}
			record, err := kubelet.ReadVolumeRecordAt(table, node.VolumePoint(v))
			if err != nil {
				return nil, err.Error()
			}
			records = append(records, record)
		}
		switch {
		case s.Spec == nil:
			return nil, fmt.Sprintf("the spec of the pod with UID %q is not known", s.UID)
		case !podinfo.Ended(s.Spec) && slices.ContainsFunc(s.Spec.Spec.Volumes, podinfo.FromClaim) && len(podinfo.Unstarted(s.Spec, "")) > 0:
			return nil, fmt.Sprintf("pod %s/%s has a claim and a container that is not started", s.Spec.Namespace, s.Spec.Name)
		}
	}
	// The directory of the pods changes when a pod comes or goes. The kubelet has its time after that.
	st, err := os.Stat(node.PodsDir())
	if err != nil {
		return nil, err.Error()
	}
	if age := now.Sub(st.ModTime()); age < mountstate.Grace {
		return nil, fmt.Sprintf("a pod of the node has come or gone within the last %s", mountstate.Grace)
	}
	return records, ""
}

// stagedFault is the fault of a staging path that no pod of the node has.
func (s *Staged) stagedFault() fault.Finding {
	f := fault.Finding{
		Code: fault.LeftoverStaging, Mount: s.Top,
		Details: fault.Details{Place: fault.PlaceStaging, Path: s.Top.Point},
		Evidence: []string{
			fmt.Sprintf("mountinfo: device %s, root %q, type %q from %q, at %q", s.Top.Device, s.Top.Root, s.Top.FSType, s.Source, s.Top.Point),
			"no mount in the directory of a pod shows this file system, and no record of a pod names its volume",
			"the specs of all pods with a directory are known, each container of a pod with a claim is started, and no pod has come or gone for " +
				mountstate.Grace.String(),
		},
	}
	if s.Unattached {
		f.Details.Repair = fault.Unmount
		f.Evidence = append(f.Evidence, "the API server has no VolumeAttachment of the volume for this node, the Node has it neither in volumesInUse nor in volumesAttached, "+
			"and its driver needs that: the kubelet cannot have it staged before a controller has attached it")
	} else {
		f.Details.Refusal = fault.Refuse(fault.NotProven, s.Kept)
	}
	if r := s.Record; r != nil {
		f.Volume, f.Holder = r.Handle, fmt.Sprintf("CSI driver %q", r.Driver)
		f.Details.Driver = r.Driver
		if r.PersistentVolume != "" {
			f.Volume, f.Details.PersistentVolume = r.PersistentVolume, r.PersistentVolume
		}
		f.Evidence = append(f.Evidence, "the kubelet's record names "+r.String())
	}
	return f
}
