// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"fmt"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// Characters that the kernel escapes in paths, and in the names of types and sources.
var (
	pathEscaper = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)
	nameEscaper = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`)
)

// mountinfoLine writes a mount as the kernel writes it in mountinfo.
func mountinfoLine(m mountinfo.Mount) string {
	optional := ""
	for _, o := range []struct {
		name  string
		group int
	}{{"shared", m.Shared}, {"master", m.Master}, {"propagate_from", m.PropagateFrom}} {
		if o.group != 0 {
			optional += " " + o.name + ":" + strconv.Itoa(o.group)
		}
	}
	if m.Unbindable {
		optional += " unbindable"
	}
	return fmt.Sprintf("%d %d %d:%d %s %s %s%s - %s %s %s", m.ID, m.Parent, m.Major, m.Minor, pathEscaper.Replace(m.Root),
		pathEscaper.Replace(m.Point), m.Options, optional, nameEscaper.Replace(m.FSType), nameEscaper.Replace(m.Source), m.SuperOptions)
}
