// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/cli/verb/verbtest"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelog"
)

// runDecode runs the verb.
func runDecode(t testing.TB, in io.Reader, args ...string) string {
	t.Helper()
	cmd := NewDecodeCommand()
	cmd.SetIn(in)
	out, err := verbtest.Run(t, cmd, args...)
	must(t, err)
	return out
}

// bytesOf writes text as fmt prints its bytes.
func bytesOf(text string) string { return fmt.Sprintf("%d", []byte(text)) }

func TestDecodeText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"nothing":                   {"", ""},
		"empty lines":               {"\n\n", "\n\n"},
		"no line break at the end":  {"a\nb", "a\nb\n"},
		"lines of Windows":          {"a\r\nb\r\n", "a\nb\n"},
		"array":                     {"output: " + bytesOf("unmap failed") + "\n", "output: unmap failed\n"},
		"what takes several lines":  {"output: " + bytesOf("one\ntwo\r\nthree") + "\n", "output: one\n    two\n    three\n"},
		"quotes of quotes":          {`caused \"a \\\"b\\\"\"` + "\n", `caused "a "b""` + "\n"},
		"colours in an array":       {bytesOf("\x1b[31mred\x1b[0m") + "\n", `\x1b[31mred\x1b[0m` + "\n"},
		"colours in the line":       {"\x1b]0;title\x07\n", `\x1b]0;title\a` + "\n"},
		"control of eight bits":     {"a\u009b31m\n", `a\u009b31m` + "\n"},
		"tab":                       {"a\tb\n", "a\tb\n"},
		"carriage return in a line": {"a\rb\n", `a\rb` + "\n"},
		"no UTF-8":                  {"a\xff\xe2\x82\n", `a\xff\xe2\x82` + "\n"},
		"300":                       {"[114 300 100]\n", "[114 300 100]\n"},
		"cut":                       {"rbd output: [114 98 1\n", "rbd output: [114 98 1\n"},
		"nul":                       {"a\x00b\n", `a\x00b` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, runDecode(t, strings.NewReader(c.in))); diff != "" {
				t.Errorf("written (-want +got):\n%s", diff)
			}
		})
	}
}

// decodedObjects reads the output of decode as JSON, an object a line.
func decodedObjects(t testing.TB, written string) []decodedLine {
	t.Helper()
	var found []decodedLine
	for line := range strings.Lines(written) {
		var o decodedLine
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		found = append(found, o)
	}
	return found
}

func TestDecodeJSON(t *testing.T) {
	t.Parallel()
	in := `rbd: failed to unmap device /dev/rbd3, error exit status 16, rbd output: ` + bytesOf("rbd: \x1b[1munmap failed: (16)\n") + "\n\xff"
	want := []decodedLine{
		{
			Text:     "rbd: failed to unmap device /dev/rbd3, error exit status 16, rbd output: rbd: \x1b[1munmap failed: (16)\n",
			Mentions: kubelog.Found{Devices: []string{"/dev/rbd3"}, Codes: []fault.Code{fault.HeldDevice}},
		},
		{Text: `\xff`},
	}
	written := runDecode(t, strings.NewReader(in), "-o", "json")
	if diff := cmp.Diff(want, decodedObjects(t, written)); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	if strings.ContainsFunc(written, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
		t.Errorf("a terminal finds something to act on in %q", written)
	}
	if !strings.HasSuffix(written, `{"text":"\\xff","mentions":{}}`+"\n") {
		t.Errorf("last line of %q", written)
	}
}

func TestDecodeLosesNothingOfLongLines(t *testing.T) {
	t.Parallel()
	// Characters of three bytes do not end where a piece does.
	for name, unit := range map[string]string{"ascii": "x", "three bytes": "字", "four bytes": "😀"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			long := strings.Repeat(unit, 3*maxLineBytes/len(unit)+1)
			got := runDecode(t, strings.NewReader("before\n"+long+"\nafter\n"))
			if want := "before\n" + long + "\nafter\n"; got != want {
				t.Errorf("%d bytes are written, want the %d that were read", len(got), len(want))
			}
			var text strings.Builder
			all := decodedObjects(t, runDecode(t, strings.NewReader(long+"\nafter"), "-o", "json"))
			for i, o := range all {
				if o.Cut != (i < len(all)-2) {
					t.Errorf("piece %d of %d: cut is %v", i, len(all), o.Cut)
				}
				text.WriteString(o.Text)
			}
			if text.String() != long+"after" || len(all) != 5 {
				t.Errorf("%d bytes in %d pieces, want %d in 5", text.Len(), len(all), len(long)+5)
			}
		})
	}
}

func TestDecodeWritesWhenALineIsThere(t *testing.T) {
	t.Parallel()
	in, feed := io.Pipe()
	read, out := io.Pipe()
	cmd := NewDecodeCommand()
	cmd.SetArgs(nil)
	cmd.SetIn(in)
	cmd.SetOut(out)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(t.Context()) }()
	for _, c := range []struct{ written, want string }{{"one\n", "one\n"}, {"two\nthr", "two\n"}, {"ee\nfour\n", "three\nfour\n"}} {
		if _, err := io.WriteString(feed, c.written); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(c.want))
		if _, err := io.ReadFull(read, got); err != nil || string(got) != c.want {
			t.Fatalf("%q, %v, want %q before the next line is there", got, err, c.want)
		}
	}
	feed.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestDecodeOfText decodes a message that was pasted, in one argument or several, says which faults it points to, and reads
// nothing from standard input.
func TestDecodeOfText(t *testing.T) {
	t.Parallel()
	const scan = "  decode scan    # on the node of the pod, as root: looks at every mount\n"
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"quoted":   {[]string{"umount: [114 98 100]"}, "umount: rbd\n\nNo fault that kubediag knows has these words.\n" + scan},
		"unquoted": {[]string{"umount:", "[114", "98", "100]"}, "umount: rbd\n\nNo fault that kubediag knows has these words.\n" + scan},
		"a fault": {
			[]string{"stat /mnt: transport endpoint is not connected"},
			"stat /mnt: transport endpoint is not connected\n\nThese words are a clue to the following, and no proof:\n" +
				scan + "  decode explain DisconnectedFUSE\n",
		},
		"of several lines": {[]string{"a\nb"}, "a\nb\n\nNo fault that kubediag knows has these words.\n" + scan},
		"objects":          {[]string{"-o", "json", "a"}, `{"text":"a","mentions":{}}` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, runDecode(t, iotest.ErrReader(errBroken), c.args...)); diff != "" {
				t.Errorf("written (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeThatCannot(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	silent, writer := io.Pipe()
	t.Cleanup(func() { writer.Close() })
	for name, c := range map[string]struct {
		ctx  context.Context
		in   io.Reader
		out  io.Writer
		want error
	}{
		"input breaks":    {t.Context(), io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(errBroken)), io.Discard, errBroken},
		"output breaks":   {t.Context(), strings.NewReader("a\n"), brokenPipe{}, errBroken},
		"nobody writes":   {canceled, silent, io.Discard, verb.ErrInterrupted},
		"a lot of output": {t.Context(), strings.NewReader(strings.Repeat("a\n", maxLineBytes)), brokenPipe{}, errBroken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := NewDecodeCommand()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(nil)
			cmd.SetIn(c.in)
			cmd.SetOut(c.out)
			if err := cmd.ExecuteContext(c.ctx); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

func FuzzDecodeCommand(f *testing.F) {
	f.Add([]byte("a\r\n[114 98 100]\\\\n\xff\x1b"))
	f.Fuzz(func(t *testing.T, in []byte) {
		written := runDecode(t, bytes.NewReader(in))
		if strings.ContainsFunc(written, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' }) {
			t.Errorf("a terminal finds something to act on in %q", written)
		}
		lines := bytes.Count(in, []byte("\n"))
		if len(in) > 0 && in[len(in)-1] != '\n' {
			lines++
		}
		if got := decodedObjects(t, runDecode(t, bytes.NewReader(in), "-o", "json")); len(got) != lines {
			t.Errorf("%d objects for %d lines", len(got), lines)
		}
	})
}
