// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// capped keeps the first maxOutput bytes of what is written to it and counts the rest.
type capped struct {
	kept []byte
	lost int64
}

func (c *capped) Write(p []byte) (int, error) {
	n := min(len(p), maxOutput-len(c.kept))
	c.kept = append(c.kept, p[:n]...)
	c.lost += int64(len(p) - n)
	return len(p), nil
}

// String is what was kept, as valid UTF-8, with a last line that says how much was not.
func (c *capped) String() string {
	s := strings.ToValidUTF8(string(c.kept), string(utf8.RuneError))
	if c.lost > 0 {
		s += fmt.Sprintf("\n[%d more bytes are left out]", c.lost)
	}
	return s
}

// tail is the end of what was kept, for a message.
func (c *capped) tail() string {
	kept := c.kept[max(0, len(c.kept)-maxTail):]
	return strings.TrimSpace(strings.ToValidUTF8(string(kept), string(utf8.RuneError)))
}
