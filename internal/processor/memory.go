// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"encoding/json"
	"fmt"
)

// MemoryNote is the key of the note that Remember writes.
const MemoryNote = "memory"

// Remember writes down what Verify has to know about the time of the plan, as JSON.
func (p *Plan) Remember(memory any) error {
	text, err := json.Marshal(memory)
	if err != nil {
		return fmt.Errorf("encode notes of plan: %w", err)
	}
	p.Notes = map[string]string{MemoryNote: string(text)}
	return nil
}

// Recall reads what Remember wrote. A failure is not worth another try.
func (p *Plan) Recall(memory any) error {
	if err := json.Unmarshal([]byte(p.Notes[MemoryNote]), memory); err != nil {
		return Stalled(fmt.Errorf("decode notes of plan: %w", err))
	}
	return nil
}
