// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubediag_test

import (
	"path"
	"strings"
	"testing"
)

func TestLicenceHeaders(t *testing.T) {
	t.Parallel()
	for _, x := range allTexts(t) {
		mark := commentMark(x)
		if mark == "" || x.generated() {
			continue
		}
		content := x.content
		if strings.HasPrefix(content, "#!") {
			_, content, _ = strings.Cut(content, "\n")
		}
		want := mark + " SPDX-FileCopyrightText: The kubediag Authors\n" + mark + " SPDX-License-Identifier: Apache-2.0\n"
		if !strings.HasPrefix(content, want) {
			t.Errorf("%s does not begin with\n%s", x.name, want)
		}
	}
}

// commentMark is how the file begins a comment; empty if it needs no header.
func commentMark(x text) string {
	switch path.Ext(x.name) {
	case ".go":
		return "//"
	case ".sh", ".yaml", ".yml":
		return "#"
	}
	if path.Base(x.name) == "Makefile" || strings.HasPrefix(x.content, "#!") {
		return "#"
	}
	return ""
}
