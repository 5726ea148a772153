// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

func TestFindSource(t *testing.T) {
	t.Parallel()
	dead, missing := errorAnswer(probe.Disconnected, sys.ENOTCONN), errorAnswer(probe.Missing, sys.ENOENT)
	unstaged := func(e *Evidence) { e.Staging, e.NoStagingReason = nil, "nothing is staged" }
	for name, c := range map[string]struct {
		evidence *Evidence
		path     string // empty: there is none, for the reason
		reason   string
	}{
		"healthy":                     {stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()), "/p", ""},
		"healthy, not staged":         {stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).changedBy(unstaged), "/p", ""},
		"healthy, without record":     {stagedEvidence("/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).changedBy(unstaged).changedBy(func(e *Evidence) { e.Record = nil }), "", "nothing is staged"},
		"healthy, not tried to bind":  {stagedEvidence("/v", aliveAnswer(untried), aliveAnswer(), aliveAnswer()), "", "cannot be bound"},
		"healthy, inode not known":    {stagedEvidence("/v", aliveAnswer(remembered), aliveAnswer(), aliveAnswer()), "", "inode"},
		"dead":                        {stagedEvidence("/v", dead, aliveAnswer(), aliveAnswer()), "/g/v", ""},
		"dead, not staged":            {stagedEvidence("/v", dead, aliveAnswer(), aliveAnswer()).changedBy(unstaged), "", "nothing is staged"},
		"dead, and so is the staging": {stagedEvidence("/v", dead, dead, probe.Answer{}), "", "is not alive either"},
		"dead, staging without right": {stagedEvidence("/v", dead, errorAnswer(probe.Denied, sys.EACCES), probe.Answer{}), "", "is not alive either (access to it is denied"},
		"dead, and the way not known": {stagedEvidence("/v", dead, aliveAnswer(), aliveAnswer()).changedBy(func(e *Evidence) {
			e.Staging.location = Location{Reason: "it is not in what is staged"}
		}), "", "it is not in what is staged"},
		"dead, and another type is staged":   {stagedEvidence("/v", dead, aliveAnswer(), aliveAnswer()).changedBy(func(e *Evidence) { e.Staging.Mount.FSType = "tmpfs" }), "", "may be different volumes"},
		"dead, and another source is staged": {stagedEvidence("/v", dead, aliveAnswer(), aliveAnswer()).changedBy(func(e *Evidence) { e.Staging.Mount.Source = "y" }), "", "may be different volumes"},
		"dead, and the directory is gone":    {stagedEvidence("/v", dead, aliveAnswer(), missing), "", `there is no "/g/v"`},
		"dead, and the directory hangs":      {stagedEvidence("/v", dead, aliveAnswer(), errorAnswer(probe.Hung, 0)), "", "does not answer as it should"},
		"dead, and no bind of it was tried":  {stagedEvidence("/v", dead, aliveAnswer(), aliveAnswer(untried)), "", "cannot be bound"},
		"data is split":                      {stagedEvidence("/k/v", aliveAnswer(), aliveAnswer(), aliveAnswer()).onNodeDisk(), "/g/v", ""},
		"not known":                          {stagedEvidence("/v", errorAnswer(probe.Denied, sys.EACCES), aliveAnswer(), aliveAnswer()), "", "could not be judged: access to it is denied: permission denied"},
		"not known, not staged":              {stagedEvidence("/v", errorAnswer(probe.NotProbed, 0), aliveAnswer(), aliveAnswer()).changedBy(unstaged), "", "nothing is staged"},
		"hostPath":                           {hostPathEvidence("/m/x", aliveAnswer(), aliveAnswer()), "/m/x", ""},
		"hostPath of a mount":                {hostPathEvidence("/m", aliveAnswer(), probe.Answer{}), "/m", ""},
		"hostPath that is dead":              {hostPathEvidence("/m/x", dead, probe.Answer{}), "", "is not the kubelet's: the program that mounted it"},
		"hostPath without the right":         {hostPathEvidence("/m/x", aliveAnswer(), errorAnswer(probe.Denied, sys.EACCES)), "", "could not be judged: access to it is denied"},
	} {
		s, reason := findSource(c.evidence, Judge(*c.evidence))
		if (s == nil) != (c.path == "") || s != nil && (s.Path != c.path || s.Reason == "" || reason != "") || !strings.Contains(reason, c.reason) {
			t.Errorf("%s: %+v, %q; want %q, %q", name, s, reason, c.path, c.reason)
		}
	}
}

// healthOf judges a volume as an inspection does.
func healthOf(e *Evidence) *Health {
	v := &Health{Evidence: *e, Verdict: Judge(*e)}
	v.Replacement.Source, v.Replacement.NoSourceReason = findSource(e, v.Verdict)
	return v
}

// TestDecideCopy: whether a dead copy of a dead volume can be replaced.
func TestDecideCopy(t *testing.T) {
	t.Parallel()
	dead, missing, here, there := errorAnswer(probe.Disconnected, sys.ENOTCONN), errorAnswer(probe.Missing, sys.ENOENT), aliveAnswer(), aliveAnswer(other)
	for name, c := range map[string]struct {
		change      func(c *Copy)
		sub, inSpec *probe.Answer
		source      string // empty: there is none
		refusal     string // empty: it can be replaced
	}{
		"the whole volume":    {func(*Copy) {}, nil, nil, "/g/v", ""},
		"not to be replaced":  {func(c *Copy) { c.Decision = refuseReplacement("it is another's") }, nil, nil, "/g/v", "it is another's"},
		"no reason was given": {func(c *Copy) { c.Decision = Decision{} }, nil, nil, "/g/v", "connection to the daemon"},
		"no source":           {func(c *Copy) { c.volume.Replacement.Source = nil }, nil, nil, "", ""},
		"a subPath":           {func(c *Copy) { c.SubPath = "a" }, &here, nil, "/g/v/a", ""},
		"a subPath is gone":   {func(c *Copy) { c.SubPath = "a" }, &missing, nil, "", `there is no "/g/v/a"`},
		"another type":        {func(c *Copy) { c.Mount.FSType = "fuse.y" }, nil, nil, "/g/v", `of type "fuse.y", and the source of type "fuse.x"`},
		"another type, and a bind of the kubelet": {func(c *Copy) { c.Mount.FSType, c.origin.onHost = "fuse.y", true }, nil, nil, "/g/v", ""},
		"the spec's link leads there":             {func(c *Copy) { c.SubPath, c.origin.specSubPath = "a", "link" }, &here, &here, "/g/v/a", ""},
		"the spec's link leads elsewhere":         {func(c *Copy) { c.SubPath, c.origin.specSubPath = "a", "link" }, &here, &there, "/g/v/a", "does not lead there"},
		"the spec's link leads out of the volume": {func(c *Copy) { c.SubPath, c.origin.specSubPath = "a", "link" }, &here, &missing, "/g/v/a", "does not lead there"},
		"a file": {func(c *Copy) { c.Answer.Stat = probe.Stat{Inode: 9} }, nil, nil, "/g/v", "and the other is a file"},
	} {
		v := healthOf(stagedEvidence("/v", dead, aliveAnswer(), aliveAnswer()))
		x := &Copy{Mount: mountAt49(9, "/v", "/data"), volume: v, Answer: dead, Decision: Decision{Replaceable: true, Reason: "the runtime made it"}}
		c.change(x)
		x.judge(c.sub, c.inSpec)
		if (x.Source == nil) != (c.source == "") || x.Source != nil && x.Source.Path != c.source || x.Verdict.Code != fault.DisconnectedFUSE {
			t.Errorf("%s: %q, source %+v, want %q", name, x.Verdict.Code, x.Source, c.source)
		}
		if x.Decision.Replaceable != (c.refusal == "") || !strings.Contains(x.Decision.Reason, c.refusal) {
			t.Errorf("%s: %+v, want %q", name, x.Decision, c.refusal)
		}
	}
}
