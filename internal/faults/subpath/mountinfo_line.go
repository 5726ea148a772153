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
func mountinfoLine(mount mountinfo.Mount) string {
	optional := ""
	for _, o := range []struct {
		name  string
		group int
	}{{"shared", mount.Shared}, {"master", mount.Master}, {"propagate_from", mount.PropagateFrom}} {
		if o.group != 0 {
			optional += " " + o.name + ":" + strconv.Itoa(o.group)
		}
	}
	if mount.Unbindable {
		optional += " unbindable"
	}
	return fmt.Sprintf("%d %d %d:%d %s %s %s%s - %s %s %s", mount.ID, mount.Parent, mount.Major, mount.Minor, pathEscaper.Replace(mount.Root),
		pathEscaper.Replace(mount.Point), mount.Options, optional, nameEscaper.Replace(mount.FSType), nameEscaper.Replace(mount.Source), mount.SuperOptions)
}
