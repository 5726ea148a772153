// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bytes"
	"compress/gzip"
	"io"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/redact"
)

// maxCopied is how large a file may be that is copied, in bytes: what is larger has no room in any case.
const maxCopied = 16 << 20

// copyArtifacts copies the files that the operations have kept into the status, as far as there is room. A file that cannot
// be read has no copy.
func copyArtifacts(all []v1.Artifact, f *files) {
	room := v1.MaxArtifactBytes
	for i := range all {
		a := &all[i]
		if a.SizeBytes > maxCopied {
			continue
		}
		text, err := f.read(*a)
		if err != nil {
			continue
		}
		if content := compress(printable.Text(redact.Text(text))); len(content) <= room {
			a.Content = content
			room -= len(content)
		}
	}
}

func compress(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text) // memory takes all
	_ = w.Close()
	return b.Bytes()
}
