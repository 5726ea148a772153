// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// change makes an answer another one.
type change = func(*probe.Answer)

var (
	unlinked   change = func(a *probe.Answer) { a.Stat.Nlink = 0 }
	unbindable change = func(a *probe.Answer) { a.Bindable = probe.No }
	untried    change = func(a *probe.Answer) { a.Bindable = probe.Unknown }
	marked     change = func(a *probe.Answer) { a.Deleted = true }
	other      change = func(a *probe.Answer) { a.Stat.Inode = 8 }
	remembered change = func(a *probe.Answer) { a.Stat.Fresh = false }
	file       change = func(a *probe.Answer) { a.Stat.Dir = false }
)

// alive is the answer of a directory that is well.
func alive(changes ...change) probe.Answer {
	a := probe.Answer{State: probe.Alive, Bindable: probe.Yes, Stat: probe.Stat{Minor: 49, Inode: 7, Nlink: 2, Dir: true, Fresh: true}}
	for _, c := range changes {
		c(&a)
	}
	return a
}

func answer(s probe.State, errno sys.Errno) probe.Answer {
	return probe.Answer{State: s, Errno: errno, Took: time.Second}
}

func mountAt49(id int, root, point string) mountns.Mount {
	return mountns.Mount{Mount: mountinfo.Mount{ID: id, Minor: 49, Root: root, Point: point, FSType: "fuse.x", Source: "x"}}
}

// staged is a volume that is directory root of a FUSE file system, of which the driver has staged the whole: what the
// volume's mount, the staging path and the directory that belongs there have answered.
func staged(root string, own, staging, expected probe.Answer) *Evidence {
	evidence := &Evidence{
		Volume: Volume{
			Plugin: kubelet.CSIPlugin, Name: "pvc-1", Point: "/p", Mount: mountAt49(2, root, "/p"), Record: &kubelet.VolumeRecord{Driver: "d", Handle: "h"},
			Staging: &Staging{Point: "/g", Mount: mountAt49(1, "/", "/g")},
		},
		Answer: own, StagingAnswer: staging, ExpectedAnswer: expected,
	}
	below, _ := relativePath("/", unmarkedRoot(evidence.Mount.Mount))
	evidence.Staging.location = stagedLocation{known: true, pathBelowStaged: below}
	return evidence
}

func hostPath(point string, own, expected probe.Answer) *Evidence {
	return &Evidence{Volume: Volume{Plugin: HostPathPlugin, Point: point, Mount: mountAt49(2, "/", "/m")}, Answer: own, ExpectedAnswer: expected}
}

// onNodeDisk has the pod's mount be of the directory of the node's disk that the volume is mounted over.
func (e *Evidence) onNodeDisk() *Evidence {
	e.Mount.Minor, e.Mount.FSType = 1, "ext4"
	e.Staging.location = stagedLocation{known: true, pathBelowStaged: "v", onNodeDisk: true, nodeDisk: device{0, 1}, covered: "/k/v"}
	return e
}

func (e *Evidence) with(change func(*Evidence)) *Evidence {
	change(e)
	return e
}

func TestJudge(t *testing.T) {
	t.Parallel()
	const gone, cut = fault.DeletedVolumeSource, fault.DisconnectedFUSE
	for name, c := range map[string]struct {
		evidence *Evidence
		code     fault.Code
		reason   string
		unknown  string
	}{
		"well":                          {evidence: staged("/v", alive(), alive(), alive())},
		"no trial bind":                 {evidence: staged("/v", alive(untried), alive(), alive())},
		"not staged":                    {evidence: staged("/v", alive(), alive(), alive()).with(func(e *Evidence) { e.Staging = nil })},
		"disconnected":                  {evidence: staged("/v", answer(probe.Disconnected, sys.ENOTCONN), alive(), alive()), code: cut, reason: "is gone: " + sys.ENOTCONN.Error()},
		"session ended":                 {evidence: staged("/v", answer(probe.Disconnected, sys.ESHUTDOWN), alive(), alive()), code: cut, reason: "session with the server was ended"},
		"disconnected, and replaced":    {evidence: staged("/v", answer(probe.Disconnected, 0), alive(), alive(other)), code: cut, reason: "is gone: Disconnected"},
		"hung":                          {evidence: staged("/v", answer(probe.Hung, 0), answer(probe.Hung, 0), probe.Answer{}), code: fault.HungMount, reason: "for 1s"},
		"hung since long":               {evidence: staged("/v", probe.Answer{State: probe.Hung}, probe.Answer{}, probe.Answer{}), code: fault.HungMount, reason: "still waits"},
		"stale":                         {evidence: staged("/v", answer(probe.Stale, sys.ESTALE), alive(), probe.Answer{}), code: fault.StaleFileHandle, reason: "does not know"},
		"no longer exported":            {evidence: staged("/v", answer(probe.Stale, sys.EACCES), alive(), probe.Answer{}), code: fault.StaleFileHandle, reason: "lets this node"},
		"root is no more":               {evidence: staged("/v", answer(probe.Missing, sys.ENOENT), alive(), alive()), code: gone, reason: "is no more"},
		"marked and refused":            {evidence: staged("/v//deleted", alive(marked, unbindable), alive(), alive()), code: gone, reason: "lost its name"},
		"marked, can be bound":          {evidence: staged("/v//deleted", alive(marked), alive(), alive())},
		"marked, not tried":             {evidence: staged("/v//deleted", alive(marked, untried), alive(), alive()), code: gone, reason: "lost its name"},
		"marked, and no links left":     {evidence: staged("/v//deleted", alive(marked, unlinked), alive(unlinked), alive()), code: gone, reason: "link count is 0"},
		"refused alone":                 {evidence: staged("/v", alive(unbindable), alive(), alive()), code: gone, reason: "above"},
		"a file that is refused":        {evidence: staged("/v", alive(unbindable, file), alive(), alive()), code: gone, reason: "bind the file"},
		"no links left":                 {evidence: staged("/v", alive(unlinked), alive(), alive()), code: gone, reason: "link count is 0"},
		"a server counts no links":      {evidence: staged("/v", alive(unlinked), alive(unlinked), alive(unlinked))},
		"root of the staged mount":      {evidence: staged("/", alive(unlinked), alive(), alive())},
		"links of once":                 {evidence: staged("/v", alive(unlinked, remembered), alive(), alive())},
		"another directory":             {evidence: staged("/v", alive(), alive(), alive(other)), code: gone, reason: "inode 8 by now"},
		"another, remembered":           {evidence: staged("/v", alive(remembered), alive(), alive(other))},
		"another, made up":              {evidence: staged("/v", alive(), alive(), alive(other)).with(func(e *Evidence) { e.UnstableInodes = true })},
		"another file system is staged": {evidence: staged("/v", alive(), alive(), alive(other)).with(func(e *Evidence) { e.Mount.Minor = 48 })},
		"not in the staged directory":   {evidence: staged("/v", alive(), alive(), alive(other)).with(func(e *Evidence) { e.Staging.location = stagedLocation{} })},
		"no such directory":             {evidence: staged("/v", alive(), alive(), answer(probe.Missing, 0)), code: gone, reason: "no directory"},
		"the staging path hangs":        {evidence: staged("/v", alive(), answer(probe.Hung, 0), probe.Answer{})},
		"data is split":                 {evidence: staged("/k/v", alive(), alive(), alive()).onNodeDisk(), code: gone, reason: "data is being split"},

		// Nothing is known of a mount that may not be asked, or could not be, whatever else was seen.
		"no right to ask":      {evidence: staged("/v", answer(probe.Denied, sys.EACCES), alive(), alive(other)), unknown: "it may not be asked: permission denied"},
		"no right, data split": {evidence: staged("/k/v", answer(probe.Denied, sys.EPERM), alive(), alive()).onNodeDisk(), unknown: "it may not be asked"},
		"another error":        {evidence: staged("/v", answer(probe.Broken, sys.EIO), alive(), alive()), unknown: "it answers with an error: input/output error"},
		"could not be asked":   {evidence: staged("/v", answer(probe.NotProbed, 0), alive(), alive()), unknown: "it could not be asked"},
		"went meanwhile":       {evidence: staged("/v", answer(probe.Gone, 0), alive(), alive()), unknown: "it has gone meanwhile"},
		"was never asked":      {evidence: staged("/v", probe.Answer{}, alive(), alive()), unknown: "it was not asked"},
		"nothing is mounted":   {evidence: staged("/v", probe.Answer{}, alive(), alive()).with(func(e *Evidence) { e.Mount = mountns.Mount{} }), unknown: `nothing is mounted at "/p"`},

		"hostPath, a mount":                     {evidence: hostPath("/m", alive(), probe.Answer{})},
		"hostPath, a mount without the right":   {evidence: hostPath("/m", answer(probe.Denied, sys.EACCES), probe.Answer{}), unknown: "it may not be asked"},
		"hostPath on a dead mount":              {evidence: hostPath("/m/x", answer(probe.Disconnected, sys.ENOTCONN), probe.Answer{}), code: cut, reason: "is gone"},
		"hostPath, well":                        {evidence: hostPath("/m/x", alive(), alive())},
		"hostPath that hangs below the root":    {evidence: hostPath("/m/x", alive(), answer(probe.Hung, 0)), code: fault.HungMount, reason: "for 1s"},
		"hostPath, no right to ask at the path": {evidence: hostPath("/m/x", alive(), answer(probe.Denied, sys.EACCES))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := Judge(*c.evidence)
			if v.Code != c.code || !strings.Contains(v.Reason(), c.reason) || (v.Reason() == "") != (c.code == "") {
				t.Errorf("%q: %q; want %q: %q", v.Code, v.Reasons, c.code, c.reason)
			}
			if !strings.Contains(v.UnknownReason, c.unknown) || (v.UnknownReason == "") != (c.unknown == "") {
				t.Errorf("not known because %q, want %q", v.UnknownReason, c.unknown)
			}
		})
	}
}

// TestJudgeGivesAllReasons: the one that decided comes first.
func TestJudgeGivesAllReasons(t *testing.T) {
	t.Parallel()
	v := Judge(*staged("/k/v", alive(marked, unbindable), alive(), alive()).onNodeDisk())
	if len(v.Reasons) != 2 || !strings.Contains(v.Reasons[0], "data is being split") || !strings.Contains(v.Reasons[1], "lost its name") {
		t.Errorf("reasons %q", v.Reasons)
	}
}

func TestJudgeHostPath(t *testing.T) {
	t.Parallel()
	missing := answer(probe.Missing, sys.ENOENT)
	for name, c := range map[string]struct {
		kind   corev1.HostPathType
		answer probe.Answer
		code   fault.Code
	}{
		"well":                   {corev1.HostPathDirectory, alive(), ""},
		"a file":                 {corev1.HostPathFile, alive(file), ""},
		"not there":              {corev1.HostPathDirectory, missing, fault.MissingBindSource},
		"not there, and made":    {corev1.HostPathDirectoryOrCreate, missing, ""},
		"not there, no type":     {corev1.HostPathUnset, missing, ""},
		"a file for a directory": {corev1.HostPathDirectory, alive(file), fault.SourceTypeMismatch},
		"a directory for a file": {corev1.HostPathFile, alive(), fault.SourceTypeMismatch},
		"a directory, no type":   {corev1.HostPathUnset, alive(), ""},
	} {
		e := hostPath("/m/x", alive(), c.answer)
		e.spec.hostPath = &corev1.HostPathVolumeSource{Path: "/m/x", Type: &c.kind}
		if v := Judge(*e); v.Code != c.code {
			t.Errorf("%s: %q (%q), want %q", name, v.Code, v.Reasons, c.code)
		}
	}
}

// TestJudgeAnswer: of a mount alone, a link count of 0 means nothing if FUSE gives it.
func TestJudgeAnswer(t *testing.T) {
	t.Parallel()
	for fsType, want := range map[string]fault.Code{"fuse.x": "", "ext4": fault.DeletedVolumeSource} {
		if v := JudgeAnswer(alive(unlinked, func(a *probe.Answer) { a.FSType = fsType })); v.Code != want {
			t.Errorf("%s: %q, want %q", fsType, v.Code, want)
		}
	}
	if v := JudgeAnswer(answer(probe.Denied, sys.EACCES)); v.UnknownReason == "" || v.Code != "" {
		t.Errorf("without the right to ask: %+v", v)
	}
}

func TestJudgeCopy(t *testing.T) {
	t.Parallel()
	source := &Source{Path: "/g/v", Device: "0:49", Inode: 7}
	moved := &Source{Path: "/g/v", Device: "0:50", Inode: 8}
	for name, c := range map[string]struct {
		evidence copyEvidence
		code     fault.Code
		reason   string
		unknown  bool
	}{
		"well":                         {evidence: copyEvidence{answer: alive(), source: source}},
		"no source":                    {evidence: copyEvidence{answer: alive(other)}},
		"disconnected":                 {evidence: copyEvidence{answer: answer(probe.Disconnected, sys.ENOTCONN), source: source}, code: fault.DisconnectedFUSE, reason: "is gone"},
		"unlinked":                     {evidence: copyEvidence{answer: alive(unlinked), countsLinks: true}, code: fault.DeletedVolumeSource, reason: "link count is 0"},
		"unlinked, links not counted":  {evidence: copyEvidence{answer: alive(unlinked)}},
		"another directory":            {evidence: copyEvidence{answer: alive(other), source: source}, code: fault.DeletedVolumeSource, reason: "(inode 7) than the one that is mounted (inode 8)"},
		"another, remembered":          {evidence: copyEvidence{answer: alive(other, remembered), source: source}},
		"another, made up":             {evidence: copyEvidence{answer: alive(other), source: source, unstableInodes: true}},
		"another file system":          {evidence: copyEvidence{answer: alive(), source: moved}},
		"of the node's disk":           {evidence: copyEvidence{answer: alive(), source: source, onNodeDisk: true}, code: fault.DeletedVolumeSource, reason: "data is being split"},
		"dead, and of the node's disk": {evidence: copyEvidence{answer: alive(unbindable), onNodeDisk: true}, code: fault.DeletedVolumeSource, reason: "refuses to bind"},
		"no right to ask":              {evidence: copyEvidence{answer: answer(probe.Denied, sys.EACCES), source: source, onNodeDisk: true}, unknown: true},
	} {
		v := judgeCopy(c.evidence)
		if v.Code != c.code || !strings.Contains(v.Reason(), c.reason) || (v.UnknownReason != "") != c.unknown {
			t.Errorf("%s: %+v; want %q: %q, not known: %v", name, v, c.code, c.reason, c.unknown)
		}
	}
}

// TestSameInode: a server that makes up inode numbers proves nothing by them.
func TestSameInode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		now  probe.Answer
		same bool
	}{
		"the same": {alive(), true}, "another": {alive(other), false}, "remembered": {alive(remembered), false},
		"no answer": {answer(probe.Hung, 0), false},
	} {
		if got := sameInode(alive(), c.now); got != c.same {
			t.Errorf("%s: %v", name, got)
		}
	}
}
