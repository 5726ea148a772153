// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"encoding/json"
	"fmt"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

// ExcerptList serves Excerpters whose value is a JSON list with the important entries at its head: it keeps whole entries for
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

// AddJSON adds results to values, each as JSON.
func AddJSON(values map[string]string, results map[string]any) error {
	for key, result := range results {
		text, err := json.Marshal(result)
		if err != nil {
			return fmt.Errorf("encode %q: %w", key, err)
		}
		values[key] = string(text)
	}
	return nil
}

// SentenceValues are results of a recoverer by key: the first sentence as it is, and all of them as JSON.
func SentenceValues(firstKey, allKey string, sentences []string) (map[string]string, error) {
	values := map[string]string{firstKey: sentences[0]}
	return values, AddJSON(values, map[string]any{allKey: sentences})
}

// JoinReasons joins at most so many reasons, and says how many more there are.
func JoinReasons(reasons []string, most int) string {
	return strings.Join(fault.Most(reasons, most, "and %d more"), "; ")
}
