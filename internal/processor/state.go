// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"encoding/json"
	"fmt"
)

// StateNote is the key of the note that Remember writes.
const StateNote = "memory"

// SaveState writes down what Verify has to know about the time of the plan, as JSON.
func (p *Plan) SaveState(state any) error {
	text, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("encode notes of plan: %w", err)
	}
	p.Notes = map[string]string{StateNote: string(text)}
	return nil
}

// LoadState reads what Remember wrote. A failure is not worth another try.
func (p *Plan) LoadState(state any) error {
	if err := json.Unmarshal([]byte(p.Notes[StateNote]), state); err != nil {
		return Stalled(fmt.Errorf("decode notes of plan: %w", err))
	}
	return nil
}
