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
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// answerChange makes an answer another one.
type answerChange = func(*probe.Answer)

var (
	unlinked   answerChange = func(a *probe.Answer) { a.Stat.Nlink = 0 }
	unbindable answerChange = func(a *probe.Answer) { a.Bindable = probe.No }
	untried    answerChange = func(a *probe.Answer) { a.Bindable = probe.Unknown }
	marked     answerChange = func(a *probe.Answer) { a.Deleted = true }
	other      answerChange = func(a *probe.Answer) { a.Stat.Inode = 8 }
	remembered answerChange = func(a *probe.Answer) { a.Stat.Fresh = false }
	file       answerChange = func(a *probe.Answer) { a.Stat.Dir = false }
)

// aliveAnswer is the answer of a directory that is well.
func aliveAnswer(changes ...answerChange) probe.Answer {
	a := probe.Answer{State: probe.Alive, Bindable: probe.Yes, Stat: probe.Stat{Minor: 49, Inode: 7, Nlink: 2, Dir: true, Fresh: true}}
	for _, c := range changes {
		c(&a)
	}
	return a
}

func errorAnswer(s probe.State, errno sys.Errno) probe.Answer {
	return probe.Answer{State: s, Errno: errno, Took: time.Second}
}

func mountAt49(id int, root, point string) mountns.Mount {
	return mountns.Mount{Mount: mountinfo.Mount{ID: id, Minor: 49, Root: root, Point: point, FSType: "fuse.x", Source: "x"}}
}

// stagedEvidence is a volume that is directory root of a FUSE file system, of which the driver has staged the whole:
// what the volume's mount, the staging path and the directory that belongs there have answered.
func stagedEvidence(root string, own, staging, expected probe.Answer) *Evidence {
	evidence := &Evidence{
		Volume: Volume{
			Plugin: kubelet.CSIPlugin, Name: "pvc-1", Point: "/p", Mount: mountAt49(2, root, "/p"), Record: &kubelet.VolumeRecord{Driver: "d", Handle: "h"},
			Staging: &Staging{Point: "/g", Mount: mountAt49(1, "/", "/g")},
		},
		Answer: own, Expected: ExpectedAnswers{StagingRoot: staging, Directory: expected},
	}
	below, _ := mountinfo.Below("/", unmarkedRoot(evidence.Mount.Mount))
	evidence.Staging.location = Location{Known: true, Below: below}
	return evidence
}

func hostPathEvidence(point string, own, expected probe.Answer) *Evidence {
	return &Evidence{Volume: Volume{Plugin: HostPathPlugin, Point: point, Mount: mountAt49(2, "/", "/m")}, Answer: own, Expected: ExpectedAnswers{Directory: expected}}
}

// onNodeDisk has the pod's mount be of the directory of the node's disk that the volume is mounted over.
func (e *Evidence) onNodeDisk() *Evidence {
	e.Mount.Minor, e.Mount.FSType = 1, "ext4"
	e.Staging.location = Location{Known: true, Below: "v", OnNodeDisk: true, Minor: 1, Covered: "/k/v"}
	return e
}

func (e *Evidence) changedBy(change func(*Evidence)) *Evidence {
	change(e)
	return e
}

// options has the mount and its file system have these options.
func (e *Evidence) options(of, super string) *Evidence {
	e.Mount.Options, e.Mount.SuperOptions = of, super
	return e
}

// on has the kernel say that of the device.
func (e *Evidence) on(device blockdev.Health) *Evidence {
	e.Device = device
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
		"well":                          {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer())},
		"no trial bind":                 {evidence: stagedEvidence("/v", aliveAnswer(untried), aliveAnswer(), aliveAnswer())},
		"not staged":                    {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).changedBy(func(e *Evidence) { e.Staging = nil })},
		"disconnected":                  {evidence: stagedEvidence("/v", errorAnswer(probe.Disconnected, sys.ENOTCONN), aliveAnswer(), aliveAnswer()), code: cut, reason: "is gone: " + sys.ENOTCONN.Error()},
		"session ended":                 {evidence: stagedEvidence("/v", errorAnswer(probe.Disconnected, sys.ESHUTDOWN), aliveAnswer(), aliveAnswer()), code: cut, reason: "session with the server was ended"},
		"disconnected, and replaced":    {evidence: stagedEvidence("/v", errorAnswer(probe.Disconnected, 0), aliveAnswer(), aliveAnswer(other)), code: cut, reason: "is gone: Disconnected"},
		"hung":                          {evidence: stagedEvidence("/v", errorAnswer(probe.Hung, 0), errorAnswer(probe.Hung, 0), probe.Answer{}), code: fault.HungMount, reason: "for 1s"},
		"hung since long":               {evidence: stagedEvidence("/v", probe.Answer{State: probe.Hung}, probe.Answer{}, probe.Answer{}), code: fault.HungMount, reason: "still waits"},
		"stale":                         {evidence: stagedEvidence("/v", errorAnswer(probe.Stale, sys.ESTALE), aliveAnswer(), probe.Answer{}), code: fault.StaleFileHandle, reason: "no longer knows"},
		"no longer exported":            {evidence: stagedEvidence("/v", errorAnswer(probe.Stale, sys.EACCES), aliveAnswer(), probe.Answer{}), code: fault.StaleFileHandle, reason: "lets this node"},
		"another error":                 {evidence: stagedEvidence("/v", errorAnswer(probe.Broken, sys.EIO), aliveAnswer(), aliveAnswer()), code: fault.VolumeIOError, reason: "answers with an error: input/output error"},
		"root is no more":               {evidence: stagedEvidence("/v", errorAnswer(probe.Missing, sys.ENOENT), aliveAnswer(), aliveAnswer()), code: gone, reason: "no longer exists"},
		"marked and refused":            {evidence: stagedEvidence("/v//deleted", aliveAnswer(marked, unbindable), aliveAnswer(), aliveAnswer()), code: gone, reason: "lost its name"},
		"marked, can be bound":          {evidence: stagedEvidence("/v//deleted", aliveAnswer(marked), aliveAnswer(), aliveAnswer())},
		"marked, not tried":             {evidence: stagedEvidence("/v//deleted", aliveAnswer(marked, untried), aliveAnswer(), aliveAnswer()), code: gone, reason: "lost its name"},
		"marked, and no links left":     {evidence: stagedEvidence("/v//deleted", aliveAnswer(marked, unlinked), aliveAnswer(unlinked), aliveAnswer()), code: gone, reason: "link count is 0"},
		"refused alone":                 {evidence: stagedEvidence("/v", aliveAnswer(unbindable), aliveAnswer(), aliveAnswer()), code: gone, reason: "above"},
		"a file that is refused":        {evidence: stagedEvidence("/v", aliveAnswer(unbindable, file), aliveAnswer(), aliveAnswer()), code: gone, reason: "bind the file"},
		"no links left":                 {evidence: stagedEvidence("/v", aliveAnswer(unlinked), aliveAnswer(), aliveAnswer()), code: gone, reason: "link count is 0"},
		"a server counts no links":      {evidence: stagedEvidence("/v", aliveAnswer(unlinked), aliveAnswer(unlinked), aliveAnswer(unlinked))},
		"root of the staged mount":      {evidence: stagedEvidence("/", aliveAnswer(unlinked), aliveAnswer(), aliveAnswer())},
		"links of once":                 {evidence: stagedEvidence("/v", aliveAnswer(unlinked, remembered), aliveAnswer(), aliveAnswer())},
		"another directory":             {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer(other)), code: gone, reason: "inode 8 by now"},
		"another, remembered":           {evidence: stagedEvidence("/v", aliveAnswer(remembered), aliveAnswer(), aliveAnswer(other))},
		"another, made up":              {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer(other)).changedBy(func(e *Evidence) { e.Expected.UnstableInodes = true })},
		"another file system is staged": {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer(other)).changedBy(func(e *Evidence) { e.Mount.Minor = 48 })},
		"not in the staged directory":   {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer(other)).changedBy(func(e *Evidence) { e.Staging.location = Location{} })},
		"no such directory":             {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), errorAnswer(probe.Missing, 0)), code: gone, reason: "no directory"},
		"the staging path hangs":        {evidence: stagedEvidence("/v", aliveAnswer(), errorAnswer(probe.Hung, 0), probe.Answer{})},
		"data is split":                 {evidence: stagedEvidence("/k/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).onNodeDisk(), code: gone, reason: "data is being split"},

		// Nothing is known of a mount that may not be asked, or could not be, whatever else was seen.
		"no right to ask":      {evidence: stagedEvidence("/v", errorAnswer(probe.Denied, sys.EACCES), aliveAnswer(), aliveAnswer(other)), unknown: "access to it is denied: permission denied"},
		"no right, data split": {evidence: stagedEvidence("/k/v", errorAnswer(probe.Denied, sys.EPERM), aliveAnswer(), aliveAnswer()).onNodeDisk(), unknown: "access to it is denied"},
		"no memory to ask":     {evidence: stagedEvidence("/v", errorAnswer(probe.Broken, sys.ENOMEM), aliveAnswer(), aliveAnswer()), unknown: "it answers with an error: cannot allocate memory"},
		"silent once":          {evidence: stagedEvidence("/v", errorAnswer(probe.Silent, 0), aliveAnswer(), aliveAnswer()), unknown: "a second look decides"},
		"could not be asked":   {evidence: stagedEvidence("/v", errorAnswer(probe.NotProbed, 0), aliveAnswer(), aliveAnswer()), unknown: "it could not be asked"},
		"went meanwhile":       {evidence: stagedEvidence("/v", errorAnswer(probe.Gone, 0), aliveAnswer(), aliveAnswer()), unknown: "it is gone now"},
		"was never asked":      {evidence: stagedEvidence("/v", probe.Answer{}, aliveAnswer(), aliveAnswer()), unknown: "it was not asked"},
		"nothing is mounted":   {evidence: stagedEvidence("/v", probe.Answer{}, aliveAnswer(), aliveAnswer()).changedBy(func(e *Evidence) { e.Mount = mountns.Mount{} }), unknown: `nothing is mounted at "/p"`},

		"shut down":                    {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).options("rw", "rw,shutdown"), code: fault.VolumeIOError, reason: "shut the file system down"},
		"shut down, and denied":        {evidence: stagedEvidence("/v", errorAnswer(probe.Denied, sys.EACCES), aliveAnswer(), aliveAnswer()).options("rw", "rw,shutdown"), code: fault.VolumeIOError, reason: "shut the file system down"},
		"shut down, and not connected": {evidence: stagedEvidence("/v", errorAnswer(probe.Disconnected, sys.ENOTCONN), aliveAnswer(), aliveAnswer()).options("rw", "rw,shutdown"), code: cut, reason: "is gone"},
		"read-only after an error":     {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).options("rw,relatime", "rw,emergency_ro"), unknown: "emergency_ro"},
		"read-only on Linux 6.12":      {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).options("rw,relatime", "ro,errors=remount-ro"), unknown: "read-only"},
		"read-only on purpose":         {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).options("ro,relatime", "ro")},
		"read-only by its type": {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).options("rw", "ro").changedBy(func(e *Evidence) {
			e.Mount.FSType = "squashfs"
		})},
		"read-only, and broken":         {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer(other)).options("rw", "ro"), code: gone, reason: "inode 8 by now"},
		"read-only with errors":         {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).options("ro,relatime", "ro").on(blockdev.Health{Errors: 3}), unknown: "has noted errors (3 since"},
		"errors in the past":            {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).options("rw,relatime", "rw").on(blockdev.Health{Errors: 3})},
		"its device became read-only":   {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).options("rw,relatime", "rw").on(blockdev.Health{ReadOnly: true}), unknown: "its device has become read-only"},
		"a device that is read":         {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).options("ro,relatime", "ro").on(blockdev.Health{ReadOnly: true})},
		"a disk of another volume":      {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).changedBy(func(e *Evidence) { e.Mismatch.AlsoFor = `volume "b" at "/b"` }), unknown: "mounted for two volumes"},
		"another disk than the staged":  {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).changedBy(func(e *Evidence) { e.Mount.Major, e.Staging.Mount.Major, e.Mount.Minor = 8, 8, 16 }), unknown: "one of them is of another volume"},
		"another share than the staged": {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).changedBy(func(e *Evidence) { e.Mount.Minor = 16 })},
		"a local volume, mounted on since": {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).changedBy(func(e *Evidence) {
			e.Plugin, e.Staging, e.Mismatch.Covered = kubelet.LocalPlugin, nil, `"/mnt/d1", where device 8:16 (ext4) is mounted now`
		}), code: gone, reason: `lies hidden below "/mnt/d1"`},
		"a link to a path that is gone": {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), errorAnswer(probe.Missing, sys.ENOENT)).changedBy(func(e *Evidence) {
			e.Link, e.Staging, e.Point, e.spec = "/k/mount", nil, "/p/below", podSpec{hostPath: linkedPath("/p/below")}
		}), code: fault.MissingBindSource, reason: `there is no "/p/below"`},
		"suspended":          {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).on(blockdev.Health{Suspended: "dm-3"}), unknown: `"dm-3" is suspended`},
		"suspended, frozen":  {evidence: stagedEvidence("/v", errorAnswer(probe.Frozen, 0), aliveAnswer(), aliveAnswer()).on(blockdev.Health{Suspended: "dm-3"}), unknown: `"dm-3" is suspended`},
		"suspended, hung":    {evidence: stagedEvidence("/v", errorAnswer(probe.Hung, 0), aliveAnswer(), aliveAnswer()).on(blockdev.Health{Suspended: "dm-3"}), code: fault.HungMount, reason: "for 1s"},
		"lost its device":    {evidence: stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).on(blockdev.Health{Lost: "unplugged"}), unknown: "its device is lost (unplugged)"},
		"lost, and an error": {evidence: stagedEvidence("/v", errorAnswer(probe.Broken, sys.EIO), aliveAnswer(), aliveAnswer()).on(blockdev.Health{Lost: "unplugged"}), code: fault.VolumeIOError, reason: "answers with an error"},
		"frozen":             {evidence: stagedEvidence("/v", errorAnswer(probe.Frozen, 0), aliveAnswer(), aliveAnswer()), unknown: "a write to it does not end"},

		"hostPath, a mount":                     {evidence: hostPathEvidence("/m", aliveAnswer(), probe.Answer{})},
		"hostPath, a mount without the right":   {evidence: hostPathEvidence("/m", errorAnswer(probe.Denied, sys.EACCES), probe.Answer{}), unknown: "access to it is denied"},
		"hostPath on a dead mount":              {evidence: hostPathEvidence("/m/x", errorAnswer(probe.Disconnected, sys.ENOTCONN), probe.Answer{}), code: cut, reason: "is gone"},
		"hostPath, well":                        {evidence: hostPathEvidence("/m/x", aliveAnswer(), aliveAnswer())},
		"hostPath that hangs below the root":    {evidence: hostPathEvidence("/m/x", aliveAnswer(), errorAnswer(probe.Hung, 0)), code: fault.HungMount, reason: "for 1s"},
		"hostPath, no right to ask at the path": {evidence: hostPathEvidence("/m/x", aliveAnswer(), errorAnswer(probe.Denied, sys.EACCES)), unknown: "access to it is denied"},
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
	v := Judge(*stagedEvidence("/k/v", aliveAnswer(marked, unbindable), aliveAnswer(), aliveAnswer()).onNodeDisk())
	if len(v.Reasons) != 2 || !strings.Contains(v.Reasons[0], "data is being split") || !strings.Contains(v.Reasons[1], "lost its name") {
		t.Errorf("reasons %q", v.Reasons)
	}
}

func TestJudgeHostPath(t *testing.T) {
	t.Parallel()
	missing := errorAnswer(probe.Missing, sys.ENOENT)
	for name, c := range map[string]struct {
		kind   corev1.HostPathType
		answer probe.Answer
		code   fault.Code
	}{
		"well":                   {corev1.HostPathDirectory, aliveAnswer(), ""},
		"a file":                 {corev1.HostPathFile, aliveAnswer(file), ""},
		"not there":              {corev1.HostPathDirectory, missing, fault.MissingBindSource},
		"not there, and made":    {corev1.HostPathDirectoryOrCreate, missing, ""},
		"not there, no type":     {corev1.HostPathUnset, missing, ""},
		"a file for a directory": {corev1.HostPathDirectory, aliveAnswer(file), fault.SourceTypeMismatch},
		"a directory for a file": {corev1.HostPathFile, aliveAnswer(), fault.SourceTypeMismatch},
		"a directory, no type":   {corev1.HostPathUnset, aliveAnswer(), ""},
	} {
		e := hostPathEvidence("/m/x", aliveAnswer(), c.answer)
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
		if v := JudgeAnswer(aliveAnswer(unlinked, func(a *probe.Answer) { a.FSType = fsType }), mountinfo.Mount{}); v.Code != want {
			t.Errorf("%s: %q, want %q", fsType, v.Code, want)
		}
	}
	if v := JudgeAnswer(errorAnswer(probe.Denied, sys.EACCES), mountinfo.Mount{}); v.UnknownReason == "" || v.Code != "" {
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
		"well":                         {evidence: copyEvidence{answer: aliveAnswer(), source: source}},
		"no source":                    {evidence: copyEvidence{answer: aliveAnswer(other)}},
		"disconnected":                 {evidence: copyEvidence{answer: errorAnswer(probe.Disconnected, sys.ENOTCONN), source: source}, code: fault.DisconnectedFUSE, reason: "is gone"},
		"unlinked":                     {evidence: copyEvidence{answer: aliveAnswer(unlinked), countsLinks: true}, code: fault.DeletedVolumeSource, reason: "link count is 0"},
		"unlinked, links not counted":  {evidence: copyEvidence{answer: aliveAnswer(unlinked)}},
		"another directory":            {evidence: copyEvidence{answer: aliveAnswer(other), source: source}, code: fault.DeletedVolumeSource, reason: "(inode 7) than the one that is mounted (inode 8)"},
		"another, remembered":          {evidence: copyEvidence{answer: aliveAnswer(other, remembered), source: source}},
		"another, made up":             {evidence: copyEvidence{answer: aliveAnswer(other), source: source, unstableInodes: true}},
		"another file system":          {evidence: copyEvidence{answer: aliveAnswer(), source: moved}},
		"of the node's disk":           {evidence: copyEvidence{answer: aliveAnswer(), source: source, onNodeDisk: true}, code: fault.DeletedVolumeSource, reason: "data is being split"},
		"dead, and of the node's disk": {evidence: copyEvidence{answer: aliveAnswer(unbindable), onNodeDisk: true}, code: fault.DeletedVolumeSource, reason: "refuses to bind"},
		"no right to ask":              {evidence: copyEvidence{answer: errorAnswer(probe.Denied, sys.EACCES), source: source, onNodeDisk: true}, unknown: true},
	} {
		v := judgeCopy(c.evidence)
		if v.Code != c.code || !strings.Contains(v.Reason(), c.reason) || (v.UnknownReason != "") != c.unknown {
			t.Errorf("%s: %+v; want %q: %q, not known: %v", name, v, c.code, c.reason, c.unknown)
		}
	}
}

// TestUnstableInodes: a server that makes up inode numbers proves nothing by them.
func TestUnstableInodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		now  probe.Answer
		same bool
	}{
		"the same": {aliveAnswer(), true}, "another": {aliveAnswer(other), false}, "remembered": {aliveAnswer(remembered), false},
		"no answer": {errorAnswer(probe.Hung, 0), false},
	} {
		var e Evidence
		e.recheckRequest("", mountns.Mount{}, "", aliveAnswer()).receive(c.now)
		if e.Expected.UnstableInodes == c.same {
			t.Errorf("%s: unstable %v", name, e.Expected.UnstableInodes)
		}
	}
}
