// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"encoding/json"
	"fmt"
	"strings"
)

// ExcerptList serves Excerpters whose value is a JSON list with what matters most at its head: it keeps whole entries for
// as long as there is room for them in a status. A value that is no list comes back as it is.
func ExcerptList(value string, limit int) string {
	var list []json.RawMessage
	if json.Unmarshal([]byte(value), &list) != nil {
		return value
	}
	room := limit - len(`"[]"`)
	var kept []string
	for _, one := range list {
		// A status has it as a string in JSON. The quotes pay for the comma.
		encoded, err := json.Marshal(string(one))
		if room -= len(encoded); err != nil || room < 0 {
			break
		}
		kept = append(kept, string(one))
	}
	return "[" + strings.Join(kept, ",") + "]"
}

// JoinReasons joins at most so many reasons, and says how many more there are.
func JoinReasons(reasons []string, most int) string {
	text := strings.Join(reasons[:min(len(reasons), most)], "; ")
	if more := len(reasons) - most; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}
