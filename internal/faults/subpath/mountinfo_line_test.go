// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"os"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/mountinfo"
)

func TestLineIsWrittenAsTheKernelWritesIt(t *testing.T) {
	t.Parallel()
	recorded := ""
	for _, file := range []string{"disk.mountinfo", "walkthrough.mountinfo"} {
		text, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		recorded += string(text)
	}
	recorded += `7 6 0:3 /a\040b\011\012\134#x /m\040p ro,nosuid shared:1 master:2 propagate_from:3 unbindable - fuse.s\040x a\043b rw,x=#` + "\n" +
		"8 7 0:4 / /x rw - tmpfs  rw\n"
	for line := range strings.Lines(recorded) {
		line = strings.TrimSuffix(line, "\n")
		m, err := mountinfo.Line(line).Mount()
		if err != nil {
			t.Fatal(err)
		}
		if got := mountinfoLine(m); got != line {
			t.Errorf("written as\n%s, want\n%s", got, line)
		}
	}
}
