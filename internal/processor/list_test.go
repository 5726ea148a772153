// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestExcerptList(t *testing.T) {
	t.Parallel()
	list := []string{strings.Repeat(`"<`, 20), strings.Repeat("\x01", 30), "c", strings.Repeat("d", 100)}
	value, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := json.Marshal(string(value))
	if err != nil {
		t.Fatal(err)
	}
	before := 0
	for limit := 4; limit <= len(whole)+8; limit++ {
		text := ExcerptList(string(value), limit)
		var kept []string
		if err := json.Unmarshal([]byte(text), &kept); err != nil {
			t.Fatalf("limit %d: %q is no list: %v", limit, text, err)
		}
		cost, err := json.Marshal(text)
		if err != nil || len(cost) > limit || len(kept) < before {
			t.Fatalf("limit %d: %d entries take %d bytes, %v; %d before", limit, len(kept), len(cost), err, before)
		}
		for i, one := range kept {
			if one != list[i] {
				t.Fatalf("limit %d: entry %d is %q", limit, i, one)
			}
		}
		before = len(kept)
	}
	if before != len(list) {
		t.Errorf("%d entries where there is room for all", before)
	}
	for _, value := range []string{"", "no list", `{"a":1}`, `["a"`} {
		if text := ExcerptList(value, 2); text != value {
			t.Errorf("%q became %q", value, text)
		}
	}
}
