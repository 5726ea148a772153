// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package verb

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/linux/bounded"
)

// Await makes a call that may wait for another program, and ends with ctx.
func Await[T any](ctx context.Context, call func() (T, error)) (T, error) {
	value, err := bounded.Do(ctx, &bounded.Calls{}, bounded.Call{}, call)
	if errors.Is(err, bounded.ErrLeft) {
		err = context.Cause(ctx)
	}
	return value, err
}

// Ask asks a question, and reports whether the answer is yes. Input that was typed before the question is dropped. If the
// input is no terminal, nothing is asked. With details, the answer d prints them, and the question is asked again. It is an
// error if ctx ends before the answer.
func Ask(ctx context.Context, in io.Reader, out io.Writer, question string, details func() string) (yes, asked bool, err error) {
	file, ok := in.(*os.File)
	if ok {
		_, ok = terminal.Size(file)
	}
	if !ok {
		return false, false, nil
	}
	keys := " [y/N] "
	if details != nil {
		keys = " [y/N/d=details] "
	}
	for {
		if err := terminal.FlushInput(file); err != nil {
			return false, true, fmt.Errorf("drop what was typed before the question: %w", err)
		}
		if err := Write(out, question+keys); err != nil {
			return false, true, err
		}
		line, err := Await(ctx, func() (string, error) { return bufio.NewReader(file).ReadString('\n') })
		if errors.Is(err, io.EOF) {
			err = nil
		}
		switch line = strings.ToLower(strings.TrimSpace(line)); {
		case err != nil:
			return false, true, err
		case line == "d" && details != nil:
			if err := Write(out, details()); err != nil {
				return false, true, err
			}
		default:
			return line == "y" || line == "yes", true, nil
		}
	}
}
