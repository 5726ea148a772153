// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// cappedOutput keeps the first maxOutput bytes that are written to it and counts the rest.
type cappedOutput struct {
	keptBytes []byte
	lostBytes int64
}

func (c *cappedOutput) Write(p []byte) (int, error) {
	n := min(len(p), maxOutput-len(c.keptBytes))
	c.keptBytes = append(c.keptBytes, p[:n]...)
	c.lostBytes += int64(len(p) - n)
	return len(p), nil
}

// String returns the kept bytes as valid UTF-8. A last line counts the others.
func (c *cappedOutput) String() string {
	s := strings.ToValidUTF8(string(c.keptBytes), string(utf8.RuneError))
	if c.lostBytes > 0 {
		s += fmt.Sprintf("\n[%d more bytes are left out]", c.lostBytes)
	}
	return s
}
