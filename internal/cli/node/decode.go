// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelog"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// maxLineBytes bounds how much of a line is held at once, in bytes. A longer one is decoded in pieces.
const maxLineBytes = 1 << 20

// continuedMark begins each further line of one line of the log, so that it cannot pass for another entry.
const continuedMark = "\n    "

// NewDecodeCommand makes the verb decode.
func NewDecodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "decode [TEXT]",
		Short: "Make log lines readable: byte arrays such as [114 98 100], and quotes of quotes",
		Long: "decode copies TEXT, or lines from standard input, to standard output. Decimal byte arrays, as kubelets print\n" +
			"what a command has said, become text, and so do escaped quotes and line breaks. Text that came out of one line and\n" +
			"takes several is indented. With -o json every line becomes one object: its text, and which devices, volumes,\n" +
			"pods, paths and faults it mentions. TEXT is followed by the faults that it points to.\n\n" +
			"An invalid array stays as it is, and control characters of terminals are escaped. A line of more than 1 MiB is\n" +
			"decoded in pieces of that size: what lies across the end of a piece stays as it is, and in JSON all pieces but\n" +
			"the last have \"cut\": true.",
		Example: "  journalctl -u kubelet | kubediag decode\n" +
			"  journalctl -u kubelet -f | kubediag decode -o json\n" +
			"  kubediag decode 'MountVolume.SetUp failed for volume \"data\": transport endpoint is not connected'",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return nil
			}
			if _, err := os.Lstat(args[0]); err == nil {
				return fmt.Errorf("takes TEXT, and %q is a file: type %s < %s", args[0], cmd.CommandPath(), fault.Quote(args[0]))
			}
			return nil
		},
	}
	out := addFormat(cmd)
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, args []string) error {
		in := cmd.InOrStdin()
		if file, ok := in.(*os.File); ok && len(args) == 0 {
			if _, typed := terminal.Size(file); typed {
				fmt.Fprintln(cmd.ErrOrStderr(), "kubediag: decode: reads lines from this terminal; Ctrl-D ends")
			}
		}
		if len(args) > 0 {
			in = strings.NewReader(strings.Join(args, " "))
		}
		d := logDecoder{in: bufio.NewReaderSize(in, maxLineBytes), out: bufio.NewWriter(cmd.OutOrStdout()), render: decodedText}
		if *out == verb.JSON {
			d.render = func(line logLine) (string, error) {
				return render.JSON(decodedLine{kubelog.Decode(line.text), kubelog.Mentions(line.text), line.continues}, "")
			}
		}
		_, err := verb.Await(cmd.Context(), func() (struct{}, error) { return struct{}{}, d.copyLines() }) // the writer of the log may never end
		if err == nil && len(args) > 0 && *out != verb.JSON {
			_, err = fmt.Fprint(cmd.OutOrStdout(), "\n"+nextSteps(cmd.Root().Name(), kubelog.Mentions(strings.Join(args, " "))))
		}
		return err
	})
	return cmd
}

// nextSteps says which faults a pasted message points to, and which verbs of program prove or explain them.
func nextSteps(program string, found kubelog.Found) string {
	scan := fmt.Sprintf("  %s scan    # on the node of the pod, as root: looks at every mount\n", program)
	hints := strings.Join(append(slices.Clone(found.Hints), ""), "\n")
	if len(found.Codes) == 0 {
		return hints + "No fault that kubediag knows has these words.\n" + scan
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%sThese words are a clue to the following, and no proof:\n%s", hints, scan)
	for _, code := range found.Codes {
		fmt.Fprintf(&b, "  %s explain %s\n", program, code)
	}
	return b.String()
}

// logDecoder copies a log line by line.
type logDecoder struct {
	in     *bufio.Reader
	out    *bufio.Writer
	render func(logLine) (string, error)
}

// logLine is a line, or a piece of one that is too long.
type logLine struct {
	text      string // valid UTF-8, without the line's end
	continues bool   // the line goes on
}

// copyLines copies the lines however they end.
func (d *logDecoder) copyLines() error {
	var incomplete []byte // the beginning of a character at the end of the last piece
	for {
		part, err := d.in.ReadSlice('\n')
		content, line := append(incomplete, part...), logLine{continues: errors.Is(err, bufio.ErrBufferFull)}
		incomplete = nil
		switch {
		case line.continues:
			whole := len(content) - incompleteLength(content)
			incomplete, content = bytes.Clone(content[whole:]), content[:whole]
		case len(content) > 0:
			content = bytes.TrimSuffix(bytes.TrimSuffix(content, []byte("\n")), []byte("\r"))
		case errors.Is(err, io.EOF):
			return d.flushOutput()
		case err != nil:
			return errors.Join(fmt.Errorf("read standard input: %w", err), d.flushOutput())
		}
		line.text = escapeInvalid(content)
		rendered, err := d.render(line)
		if err != nil {
			return err
		}
		if _, err := d.out.WriteString(rendered); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		waiting, _ := d.in.Peek(d.in.Buffered())
		if bytes.IndexByte(waiting, '\n') >= 0 {
			continue // the next line is here already
		}
		if err := d.flushOutput(); err != nil {
			return err
		}
	}
}

func (d *logDecoder) flushOutput() error {
	if err := d.out.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// incompleteLength counts the bytes at the end of b that are the beginning of a character.
func incompleteLength(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// escapeInvalid writes bytes that are no text as \xff, so that they survive in JSON.
func escapeInvalid(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var s strings.Builder
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&s, `\x%02x`, b[0])
		} else {
			s.Write(b[:size])
		}
		b = b[size:]
	}
	return s.String()
}

// decodedText leaves tabs as they are, which do a terminal no harm.
func decodedText(line logLine) (string, error) {
	lines := strings.Split(kubelog.Decode(line.text), "\n")
	for i := range lines {
		parts := strings.Split(strings.TrimSuffix(lines[i], "\r"), "\t")
		for j := range parts {
			parts[j] = printable.Quoted(parts[j])
		}
		lines[i] = strings.Join(parts, "\t")
	}
	text := strings.Join(lines, continuedMark)
	if !line.continues {
		text += "\n"
	}
	return text, nil
}

// decodedLine is one line in JSON.
type decodedLine struct {
	Text     string        `json:"text"`
	Mentions kubelog.Found `json:"mentions"`
	// Cut says that the next object continues the same line.
	Cut bool `json:"cut,omitempty"`
}
