// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/fusedaemon"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/share"
)

// Keys of the results. Those that hold one of several hold the first.
const (
	keyHealthResult  = "diagnoser.kubernetes.volume_health.result"
	keyHealthResults = "diagnoser.kubernetes.volume_health.results"
	keyHealthCode    = "diagnoser.kubernetes.volume_health.code"
	keyHealthCodes   = "diagnoser.kubernetes.volume_health.codes"
	// keyHealthList holds all that was found out about every broken volume, as JSON.
	keyHealthList = "diagnoser.kubernetes.volume_health.list"
	// keyHealthSharedWith are the other pods that have one of the dead file systems, as JSON. It is absent if there
	// are none.
	keyHealthSharedWith = "diagnoser.kubernetes.volume_health.shares"
)

// ExitAnalyzer finds out why the daemons of volumes ended: a *fusedaemon.Analyzer.
type ExitAnalyzer interface {
	// AnalyzeAll returns one exit for each question, in their order.
	AnalyzeAll(ctx context.Context, questions []fusedaemon.Question) []fusedaemon.Exit
}

// Connections knows since when FUSE connections exist: a *fuse.Control.
type Connections interface {
	// Since asks for the connection of the mounts whose device is 0:minor; known is whether that can be told.
	Since(minor uint32) (at time.Time, known bool, err error)
}

// Diagnoser is the processor volumeHealthDiagnoser.
//
// It diagnoses dead volumes: their daemon is gone, their directory was deleted or belongs to another volume, they do
// not answer, or their server does not know them any more. It decides from the kubelet's directories and records, and
// from the kernel's answer about each mount. Parameters narrow the search and prove nothing; results of earlier
// operations are not read. It changes nothing, and asks file systems only through the prober, which never hangs. For
// each volume it names the source of a repair, or why there is none. It also names the other pods with the same dead
// file system, and why the daemon ended.
type Diagnoser struct {
	Pods      kubelet.Pods
	Inspector Surveyor
	// Exits is nil if nothing is known about daemons.
	Exits ExitAnalyzer
	// Connections is nil if the kernel reports nothing: then a daemon may be said to have ended that was not the
	// volume's.
	Connections Connections
}

// Name is volumeHealthDiagnoser.
func (*Diagnoser) Name() string { return "volumeHealthDiagnoser" }

// Parameters are those that it reads.
func (*Diagnoser) Parameters() []string {
	return []string{volume.ParamVolume}
}

// Run looks at the volumes of the request's pod, or at those that its container mounts if it names one. Without a pod
// it looks at all of the node.
func (d *Diagnoser) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	scope, elsewhere, err := scopeOf(ctx, d.Pods, r)
	if err != nil || elsewhere != "" {
		return processor.Result{NotApplicable: elsewhere}, err
	}
	survey, err := d.Inspector.Inspect(ctx, scope.Scope)
	if err != nil {
		return processor.Result{}, err
	}
	all := slices.DeleteFunc(slices.Clone(survey.Volumes), func(v *volume.Health) bool {
		return scope.pod != nil && !isMountedIn(v, scope.pod, scope.container)
	})
	var unjudged []string // the volumes and copies of which nothing can be said, and the parts of the node that could not be looked at
	for _, u := range survey.Unknown.Places {
		if scope.container == "" || u.Container == "" || u.Container == scope.container {
			unjudged = append(unjudged, u.String())
		}
	}
	for _, g := range survey.Unknown.Gaps {
		unjudged = append(unjudged, g.String())
	}
	broken := slices.DeleteFunc(slices.Clone(all), func(v *volume.Health) bool { return !v.Broken() })
	if len(broken) > 0 {
		if len(broken) > maxBrokenVolumes { // no namespace takes all places
			broken = share.InTurns(broken, func(h *volume.Health) share.Owner {
				return share.Owner{Namespace: h.Evidence.Pod.Namespace, Pod: h.Evidence.Pod.Name}
			})
		}
		result, err := faultResult(broken, d.daemonExits(ctx, broken), survey)
		result.Unjudged = unjudged
		return result, err
	}
	return processor.Result{NotApplicable: scope.noFaultReason(all, survey), Unjudged: unjudged}, nil
}

// searchScope is the part of the node that is looked at.
type searchScope struct {
	mountstate.Scope
	pod       *corev1.Pod // nil: the node
	container string      // empty: all of the pod
}

// scopeOf is the scope of a request. elsewhere, if it is not empty, says why there is nothing of the pod to be seen on
// this node.
func scopeOf(ctx context.Context, pods kubelet.Pods, r processor.Request) (scope searchScope, elsewhere string, err error) {
	scope = searchScope{container: r.Pod.Container, Scope: mountstate.Scope{Volume: r.Values[volume.ParamVolume]}}
	if r.Pod == (processor.Pod{}) {
		return scope, "", nil
	}
	if scope.pod, elsewhere, err = podref.Load(ctx, pods, r); err == nil {
		scope.PodUIDs = []string{string(scope.pod.UID)}
	}
	return scope, elsewhere, err
}

// isMountedIn reports whether a volume is one of a pod, and, if a container is named, whether that mounts it.
func isMountedIn(v *volume.Health, pod *corev1.Pod, container string) bool {
	return v.Evidence.Pod.UID == string(pod.UID) && (container == "" || slices.Contains(v.Evidence.Mounters(pod), container))
}

// String is the subject of a sentence.
func (s searchScope) String() string {
	if s.pod == nil {
		return "this node"
	}
	return podinfo.Subject(s.pod, s.container)
}

// Bounds of the answer.
const (
	maxDescribed      = 10  // volumes, in a reason
	maxBrokenVolumes  = 500 // in the results
	maxBrokenEvidence = 32  // sentences about one volume
	maxSharedWith     = 200
)

// noFaultReason says why this is not the fault.
func (s searchScope) noFaultReason(all []*volume.Health, survey *volume.Survey) string {
	var text string
	switch {
	case len(all) == 0 && s.Volume != "":
		text = fmt.Sprintf("%s has no volume %q that is mounted and lies on a file system that can die; a volume that comes from a claim is "+
			"known by the name of its PersistentVolume", s, s.Volume)
	case len(all) == 0:
		text = fmt.Sprintf("%s has no volume mounted that lies on a file system that can die", s)
	default:
		var said []string
		for _, v := range all {
			state := cmp.Or(string(v.Evidence.Answer.State), "was not asked") // and is not called healthy
			if v.Evidence.Answer.Errno != 0 {
				state = fmt.Sprintf("%s (%v)", v.Evidence.Answer.State, v.Evidence.Answer.Errno)
			}
			said = append(said, fmt.Sprintf("volume %q at %q: %s", v.Evidence.Name, v.Evidence.Point, state))
		}
		return fmt.Sprintf("no volume of %s is broken: %s", s, processor.JoinReasons(said, maxDescribed)+coverageGaps(survey))
	}
	return text + coverageGaps(survey)
}

// coverageGaps are the parts that were not looked at.
func coverageGaps(survey *volume.Survey) (text string) {
	if left := survey.Unknown.Sentences(); len(left) > 0 {
		text += "; not looked at: " + strings.Join(left[:min(len(left), maxDescribed)], "; ")
	}
	return text
}

// faultResult returns the faults. exits say of each volume why its daemon ended.
func faultResult(broken []*volume.Health, exits [][]string, survey *volume.Survey) (processor.Result, error) {
	var (
		results, codes []string
		documents      []brokenVolume
		findings       []fault.Finding
		shares         []fault.Pod
	)
	for i, health := range broken {
		own := health.Findings()
		if len(own) > 0 { // the fate of the daemon is evidence of the first
			own[0].Evidence = slices.Concat(own[0].Evidence, exits[i])
			own[0].Evidence = own[0].Evidence[:min(len(own[0].Evidence), maxBrokenEvidence)]
		}
		findings = append(findings, own...)
		for _, pod := range health.Surroundings.SharedWith {
			if !slices.Contains(shares, pod) && len(shares) < maxSharedWith {
				shares = append(shares, pod)
			}
		}
		if i < maxBrokenVolumes {
			documents = append(documents, describeBroken(health, slices.Concat(health.Surroundings.DaemonNotes, exits[i])))
			results, codes = append(results, describeVolume(health)), append(codes, string(faultCodeOf(health)))
		}
	}
	if more := len(broken) - maxBrokenVolumes; more > 0 {
		results = append(results, fmt.Sprintf("%d more volumes of %d are broken", more, len(survey.Volumes)))
	}
	values := map[string]string{keyHealthResult: results[0], keyHealthCode: codes[0]}
	lists := map[string]any{keyHealthResults: results, keyHealthCodes: codes, keyHealthList: documents}
	if len(shares) > 0 {
		lists[keyHealthSharedWith] = shares
	}
	err := processor.AddJSON(values, lists)
	return processor.Result{Values: values, Findings: findings}, err
}

// daemonExits asks about the fate of the daemons. A volume on a directory of its own that was deleted, or that hangs,
// has a daemon that lives.
func (d *Diagnoser) daemonExits(ctx context.Context, broken []*volume.Health) [][]string {
	exits := make([][]string, len(broken))
	if d.Exits == nil {
		return exits
	}
	asking := map[fusedaemon.Question][]int{} // one answer serves all volumes of a connection
	for i, v := range broken {
		if v.Evidence.Record != nil && faultCodeOf(v) == fault.DisconnectedFUSE {
			q := fusedaemon.Question{Driver: v.Evidence.Record.Driver, Mounted: d.mountTime(v)}
			asking[q] = append(asking[q], i)
		}
	}
	questions := slices.Collect(maps.Keys(asking))
	for n, analysis := range d.Exits.AnalyzeAll(ctx, questions) {
		for _, i := range asking[questions[n]] {
			exits[i] = analysis.Sentences
		}
	}
	return exits
}

// mountTime is when the file system of the broken mount was mounted, which the driver may have replaced at the staging
// path since. Zero: not known.
func (d *Diagnoser) mountTime(v *volume.Health) time.Time {
	m := v.Evidence.Mount
	if v.Verdict.Code == "" {
		m = v.Copies[0].Mount
	}
	if d.Connections == nil || m.Major != 0 {
		return time.Time{}
	}
	at, known, err := d.Connections.Since(m.Minor)
	if err != nil || !known {
		return time.Time{}
	}
	return at
}

// faultCodeOf is the fault of a volume, or of its first copy that has one.
func faultCodeOf(v *volume.Health) fault.Code {
	if v.Verdict.Code == "" && len(v.Copies) > 0 {
		return v.Copies[0].Verdict.Code
	}
	return v.Verdict.Code
}

// describeVolume describes a volume for people.
func describeVolume(health *volume.Health) string {
	text := fmt.Sprintf("volume %q of %s at %q: %s", health.Evidence.Name, describePod(health.Evidence.Pod), health.Evidence.Point, faultCodeOf(health))
	if health.Evidence.Origin.Container != "" {
		text = fmt.Sprintf("mount of container %q of %s at %q: %s", health.Evidence.Origin.Container, describePod(health.Evidence.Pod), health.Evidence.Point, faultCodeOf(health))
	}
	if health.Verdict.Code == "" {
		text += " in copies of it, though the volume itself is healthy"
	}
	if entry, ok := fault.Known().Lookup(faultCodeOf(health)); ok {
		text += fmt.Sprintf(" (%s)", entry.Title)
	}
	if n := len(health.Copies); n > 0 {
		text += fmt.Sprintf("; broken mounts of it at other places: %d", n)
	}
	switch {
	case health.Replacement.Source != nil:
		text += fmt.Sprintf("; %q belongs in its place: %s", health.Replacement.Source.Path, health.Replacement.Source.Reason)
	case health.Replacement.NoSourceReason != "":
		text += "; there is nothing that could take its place: " + health.Replacement.NoSourceReason
	}
	if health.Surroundings.SharedWithCount > 0 {
		text += fmt.Sprintf("; %d other pods of this node have the same file system", health.Surroundings.SharedWithCount)
	}
	return text
}

func describePod(p fault.Pod) string {
	if p.Name == "" {
		return fmt.Sprintf("the pod with UID %q", p.UID)
	}
	return fmt.Sprintf("pod %s/%s", p.Namespace, p.Name)
}

// brokenVolume is one broken volume as it is written down.
type brokenVolume struct {
	Code fault.Code `json:"code,omitempty"` // empty if only copies are broken
	volumePlace
	// State is the answer of the mount.
	State    probe.State `json:"state,omitempty"`
	Evidence []string    `json:"evidence,omitempty"`
	volumeOrigin
	Copies []brokenCopy `json:"copies,omitempty"`
	// MoreCopies is how many others there are.
	MoreCopies int         `json:"moreCopies,omitempty"`
	SharedWith []fault.Pod `json:"shares,omitempty"`
	DaemonExit []string    `json:"fate,omitempty"`
	// WrittenToNodeDisk has names of entries that were written to the node's own disk instead of to the volume.
	WrittenToNodeDisk []string `json:"split,omitempty"`
}

// volumeOrigin has the known facts about the origin of a volume.
type volumeOrigin struct {
	// Record is the kubelet's own, or NoRecord says why there is none.
	Record   *kubelet.VolumeRecord `json:"record,omitempty"`
	NoRecord string                `json:"noRecord,omitempty"`
	// Staging is where the driver has mounted it for the node.
	Staging string `json:"staging,omitempty"`
	// Source is the mount that belongs in its place, or NoSource says why none is known.
	Source   *volume.Source `json:"source,omitempty"`
	NoSource string         `json:"noSource,omitempty"`
}

// brokenCopy is a broken mount of the volume at another place.
type brokenCopy struct {
	listedCopy
	SubPath string `json:"subPath,omitempty"`
	// Replaceable is whether it may be replaced if there is a source, and Reason why, or why not.
	Replaceable bool   `json:"replaceable"`
	Reason      string `json:"why,omitempty"`
}

func describeBroken(health *volume.Health, reasons []string) brokenVolume {
	d := brokenVolume{
		Code: health.Verdict.Code, volumePlace: volumePlaceOf(health), State: health.Evidence.Answer.State,
		volumeOrigin: volumeOrigin{
			Record: health.Evidence.Record, NoRecord: health.Evidence.NoRecordReason, Source: health.Replacement.Source, NoSource: health.Replacement.NoSourceReason,
		},
		WrittenToNodeDisk: health.Replacement.WrittenToNodeDisk, DaemonExit: reasons,
		Evidence:   health.Verdict.Reasons[:min(len(health.Verdict.Reasons), maxBrokenEvidence)],
		SharedWith: health.Surroundings.SharedWith[:min(len(health.Surroundings.SharedWith), maxSharedWith)],
		MoreCopies: max(0, len(health.Copies)-maxCopies),
	}
	if health.Evidence.Staging != nil {
		d.Staging = health.Evidence.Staging.Point
	}
	if health.Replacement.Source != nil {
		d.NoSource = ""
	}
	for _, c := range health.Copies[:min(len(health.Copies), maxCopies)] {
		d.Copies = append(d.Copies, brokenCopy{listedCopyOf(c), c.SubPath, c.Decision.Replaceable, c.Decision.Reason})
	}
	return d
}

// Excerpt keeps as many whole entries of a list as there is room for.
func (*Diagnoser) Excerpt(_ processor.Request, _, value string, limit int) string {
	return processor.ExcerptList(value, limit)
}
