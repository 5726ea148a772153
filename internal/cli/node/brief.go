// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// maxBrief is how many bytes the line of --brief has at most, which is what node-problem-detector shows of one.
const maxBrief = 80

// brief is the report on one line of ASCII.
func (r *scanReport) brief() string {
	l := r.Looked
	text := ""
	switch {
	case len(r.Faults) > 0:
		text = verb.Count(len(r.Faults), "fault")
	case len(l.NotLookedAt) > 0:
		text = "no fault seen, but not everything was looked at"
	case !l.KubeletDown:
		text = fmt.Sprintf("no fault: %s, %s, %s", verb.Count(l.Pods, "pod"), verb.Count(l.Binds, "subPath bind"), verb.Count(l.Volumes, "volume"))
	}
	if l.KubeletDown {
		text = strings.TrimSuffix("no kubelet runs; "+text, "; ")
	}
	ascii := terminal.Screen{ASCII: true}
	places := placed(r.Faults)
	for i, p := range places {
		name := ascii.Text(fmt.Sprintf("%s %s", p.faults[0].Code, printable.Quoted(p.subject())))
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		rest := ""
		if left := len(places) - i - 1; left > 0 {
			rest = fmt.Sprintf("; +%d places", left)
		}
		room := maxBrief - len(text) - len(sep) - len(rest)
		if i == 0 {
			name = ascii.Cut(name, room)
		}
		if len(name) > room {
			return text + fmt.Sprintf("; +%d places", len(places)-i) + "\n"
		}
		text += sep + name
	}
	return text + "\n"
}
