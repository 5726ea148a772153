// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestActionsAreReadBack from a journal as they were written, with any characters in paths and sentences.
func TestActionsAreReadBack(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Action{
		"mount": {
			Kind: Replace, Target: "/p", Mount: &Mount{ID: math.MaxUint64, Point: "/p q", Root: "/r//deleted"}, Pod: &Pod{UID: "u"},
			For: []Key{{DisconnectedFUSE, "u", "app", "v", "/p q"}, {Code: HungMount}}, Safety: "safe", Loss: "nothing", Lossless: true,
		},
		"device":    {Kind: Detach, Device: &Device{Name: "cciss!c0d0", Sequence: math.MaxUint64}},
		"image":     {Kind: Detach, Device: &Device{Name: "rbd3", Image: "0123456789abcdef"}},
		"file":      {Kind: RemoveFile, File: &File{Path: "/k/with (inode 3)\n\"quoted\"", Inode: math.MaxUint64, Made: math.MaxInt64}},
		"directory": {Kind: RemoveDirectory, File: &File{Path: "/k", Inode: 1}},
		"record":    {Kind: RemoveContainerRecord, Record: "c1", Container: "app"},
		"pod":       {Kind: Evict, Pod: &Pod{Namespace: "n", Name: "p", UID: "u"}},
	} {
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Action
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s (-written +read):\n%s", name, text, diff)
		}
	}
}
