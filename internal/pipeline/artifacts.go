// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/redact"
)

// maxCopied is how large a file may be that is copied, in bytes: for a larger one there is no room in any case.
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
		kept, below := artifact(*a), false
		if kept.Path, below = strings.CutPrefix(a.Path, f.base+"/"); !below {
			continue
		}
		text, err := f.load(kept)
		if err != nil {
			continue
		}
		var content bytes.Buffer // which takes all
		w := gzip.NewWriter(&content)
		_, _ = io.WriteString(w, printable.Text(redact.Text(text)))
		_ = w.Close()
		if content.Len() <= room {
			a.Content = content.Bytes()
			room -= content.Len()
		}
	}
}
