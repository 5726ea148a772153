// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"encoding/json"
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
