// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelog"
	"kubediag.org/kubediag/internal/lint"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/manifests"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/inventory"
	"kubediag.org/kubediag/internal/redact"
	"kubediag.org/kubediag/test/growthtest"
)

// readers are all that read texts of others on the way to a report.
var readers = map[string]func(text string){
	"mount table": func(text string) {
		mounts, err := mountinfo.ParseBytes([]byte(text))
		if err != nil {
			return
		}
		table := mountinfo.NewTable(mounts)
		for _, m := range mounts {
			table.On(m.Point)
			table.HasDevice(m.Major, m.Minor)
		}
	},
	"path of a mount":       func(text string) { mountinfo.Unescape(text) },
	"control groups":        func(text string) { cri.ContainerIDs(text) },
	"place of a bind":       func(text string) { kubelet.Elsewhere("/k", "/k/pods").ParseSubPath("/k/pods/" + text) },
	"line of a log":         func(text string) { kubelog.Mentions(text) },
	"escapes of a log":      func(text string) { kubelog.Decode(text) },
	"documents":             func(text string) { documentsOf(text) },
	"manifests":             func(text string) { lintOf(text) },
	"pods":                  func(text string) { _, _ = parsePods(strings.NewReader(text)) },
	"credentials":           func(text string) { redact.Text(text) },
	"text for a terminal":   func(text string) { printable.Text(text) },
	"line for a terminal":   func(text string) { printable.Line(text) },
	"quoted for a terminal": func(text string) { printable.Quoted(text) },
	"word for a shell":      func(text string) { fault.Quote(text) },
	"line of a MountFault": func(text string) {
		composer.Compose(fault.Finding{Code: fault.StaleSubPath, Pod: fault.Pod{Namespace: "shop", Name: "web"}}, []fault.Command{{Line: text}})
	},
	"lines of a terminal": func(text string) { terminal.Screen{Width: 80}.Wrap("", text, 2) },
	"excerpt of a table": func(text string) {
		(&inventory.MountTableCollector{}).Excerpt(processor.Request{}, "collector.system.mountinfo", text, len(text)/2)
	},
	"log of the kubelet": func(text string) { _, _ = lastKubeletLines("-", strings.NewReader(text)) },
}

var composer = fault.NewComposer(fault.Known())

func documentsOf(text string) {
	for d, err := range manifests.Documents([]byte(text)) {
		_, _ = d, err
	}
}

func lintOf(text string) {
	var m lint.Manifests
	_ = m.Read("f", strings.NewReader(text))
	m.Check(lint.Options{})
}

// parts of texts, that readers take or stumble over.
var parts = []string{
	"# 1 8:1 /r# /m# rw shared:# master:# - ext4 /dev/sd# rw\n", "# # 0:# / /m rw - fuse.x x rw\n", `\040`, `\`, "//deleted", "# 1 8:1 / /m",
	"0::/kubepods/pod#/0123456789012345678901234567890123456789012345678901234567890123\n", "/", "u#/volume-subpaths/v/c/#/",
	"[114 98 100] ", "[", `\"`, `\\\"`, "rbd: unmap failed: (16) Device or resource busy pvc-# \"/k/pods/u#\" ", "device /dev/rbd# is busy\n", "E1126 ",
	"---\n", "---\na: #\n", "a#: {", "- ", " ", "- [", "&a# [*a#", "# ", "a: |\n  #\n", "\r\n", "? ", "'", "\"",
	`{"a#":"b"},`, "{", `{"a":`, `{"kind":"Pod","metadata":{"uid":"u#"}},`, "password=# ", "-----BEGIN PRIVATE KEY-----", "token: \"#\" ", "https://u:p@h# ", `"password":"`, "--pass # ",
	"/a# ", "'a#' ", `a'\''`, "''", "# # ", "Bearer ", "authorization: ", "eyJ#.", "\x1b[31m", "\u202e", "\xff", "é", "word# ", "x", "\t", "\n\n", ",", ":", "=", "$(A#)", "$", "()",
}

// FuzzTextsOfOthers holds that no text makes work that grows with the square of its length: of each parser that reads a bundle, a log, a table or a
// manifest, and of all that makes lines of it.
func FuzzTextsOfOthers(f *testing.F) {
	names := slices.Sorted(maps.Keys(readers))
	for _, part := range parts {
		f.Add("", part, uint8(len(names)))
	}
	f.Add(`{"kind":"List","apiVersion":"v1","items":[`, `{"kind":"Pod","metadata":{"uid":"u#"}},`, uint8(len(names)))
	f.Add("kind: List\nitems:\n", "- kind: Pod\n  metadata: {uid: u#}\n", uint8(len(names)))
	f.Add("a:\n", "- &a# {b: *a#}\n", uint8(len(names)))
	f.Fuzz(func(t *testing.T, before, part string, which uint8) {
		chosen := names
		if int(which) < len(names) {
			chosen = names[which : which+1]
		}
		for _, name := range chosen {
			t.Run(name, func(t *testing.T) {
				growthtest.Text(t, 1<<13, part, func(text string) { readers[name](before + text) })
			})
		}
	})
}
