// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/probe"
)

// askTwice asks again what is told from what belongs there by its inode alone. Some servers make inode numbers up, and
// give another one every time: what they say proves nothing, and to replace their mounts would have no end.
func (l *look) askTwice(ctx context.Context) error {
	var questions []probeRequest
	for _, v := range l.survey.Volumes {
		if v.Plugin != HostPathPlugin && v.location.known && deviceOf(v.Staging.Mount.Mount) == deviceOf(v.Mount.Mount) && v.replaced() {
			questions = append(questions,
				probeRequest{of(v.Pod.UID, about(v.Mount, "", false)), v.expect(v.Answer)},
				probeRequest{of(v.Pod.UID, about(v.Staging.Mount, v.location.below, false)), v.expect(v.location.answer)})
		}
	}
	return l.ask(ctx, questions)
}

// askCopiesTwice does the same for copies that have been judged.
func (l *look) askCopiesTwice(ctx context.Context) error {
	var questions []probeRequest
	for _, v := range l.survey.Volumes {
		for _, c := range v.Copies {
			if c.Code == fault.DeletedVolumeSource && c.replaced() {
				questions = append(questions, probeRequest{of(c.owner(), about(c.Mount, "", false)), v.expect(c.Answer)})
			}
		}
	}
	if err := l.ask(ctx, questions); err != nil {
		return err
	}
	for _, v := range l.survey.Volumes {
		for _, c := range v.Copies {
			if d, _ := judgeRoot(c.Answer, v.countsLinks()); v.unstableInodes && c.Code == fault.DeletedVolumeSource && d.code == "" {
				c.Code = c.compare().code
			}
		}
		if v.unstableInodes {
			l.incomplete("the file system of volume %q of pod %q gives its directory another inode number every time, so that it cannot be told "+
				"whether the directory was replaced", v.Name, v.Pod.UID)
		}
	}
	return nil
}

// expect takes an answer that should have the inode that the first one had.
func (v *Volume) expect(was probe.Answer) func(probe.Answer) {
	return func(now probe.Answer) {
		v.unstableInodes = v.unstableInodes || now.State != probe.Alive || !now.Stat.Fresh || now.Stat.Inode != was.Stat.Inode
	}
}
