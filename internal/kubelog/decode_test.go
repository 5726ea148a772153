// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelog

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// lines are from logs in the wild.
func lines(t testing.TB) []string {
	t.Helper()
	content, err := os.ReadFile("testdata/lines.txt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
}

// bytesOf writes text as fmt prints its bytes.
func bytesOf(text string) string { return fmt.Sprintf("%v", []byte(text)) }

// quote puts text in quotes of quotes.
func quote(text string, times int) string {
	for range times {
		text = strconv.Quote(text)
	}
	return text
}

func TestDecode(t *testing.T) {
	t.Parallel()
	const busy = "rbd: sysfs write failed\nrbd: unmap failed: (16) Device or resource busy\n"
	for name, c := range map[string]struct{ in, want string }{
		"empty":                             {"", ""},
		"nothing to decode":                 {"umount: /x: target is busy.", "umount: /x: target is busy."},
		"array":                             {"rbd output: " + bytesOf(busy), "rbd output: " + busy},
		"arrays side by side":               {bytesOf("one ") + bytesOf("two"), "one two"},
		"array in quotes":                   {`Error: "x: ` + bytesOf("busy") + `"`, `Error: "x: busy"`},
		"array of two":                      {bytesOf("ok"), "ok"},
		"array of other letters":            {bytesOf("é 字 😀"), "é 字 😀"},
		"array with colours":                {bytesOf("\x1b[31mred\x1b[0m"), "\x1b[31mred\x1b[0m"},
		"what is in an array stays":         {bytesOf(`a\nb [1 2]`), `a\nb [1 2]`},
		"array in brackets":                 {"[x " + bytesOf("busy") + "]", "[x busy]"},
		"two brackets":                      {"[" + bytesOf("busy") + "]", "[busy]"},
		"cut, then whole":                   {"[114 98 " + bytesOf("busy"), "[114 98 busy"},
		"300":                               {"[114 98 300 100]", "[114 98 300 100]"},
		"256":                               {"[114 256]", "[114 256]"},
		"a number of many digits":           {"[114 99999999999999999999999]", "[114 99999999999999999999999]"},
		"cut in the middle":                 {"rbd output: [114 98 100 58", "rbd output: [114 98 100 58"},
		"cut in a number":                   {"rbd output: [114 9", "rbd output: [114 9"},
		"cut behind a space":                {"rbd output: [114 ", "rbd output: [114 "},
		"cut at once":                       {"rbd output: [", "rbd output: ["},
		"cut and continued by another text": {"[114 98 1… busy", "[114 98 1… busy"},
		"no numbers":                        {"[]", "[]"},
		"one number":                        {"goroutine [65]", "goroutine [65]"},
		"leading zeros":                     {"[114 098]", "[114 098]"},
		"two spaces":                        {"[114  98]", "[114  98]"},
		"space before the end":              {"[114 98 ]", "[114 98 ]"},
		"commas":                            {"[114,98]", "[114,98]"},
		"negative":                          {"[114 -98]", "[114 -98]"},
		"signal numbers":                    {"[1 2 15]", "[1 2 15]"},
		"other numbers":                     {"[33 44 55]", "[33 44 55]"},
		"no UTF-8":                          {"[114 98 255 254]", "[114 98 255 254]"},
		"cut in a character":                {"[114 98 229 173]", "[114 98 229 173]"},
		"mostly control characters":         {"[114 0 1 2 3 4]", "[114 0 1 2 3 4]"},

		"quote, once":                    {`volume \"pvc\"`, `volume "pvc"`},
		"quote, twice":                   {`volume \\\"pvc\\\"`, `volume "pvc"`},
		"quote, three times":             {`volume \\\\\\\"pvc\\\\\\\"`, `volume "pvc"`},
		"line break":                     {`failed\nrbd`, "failed\nrbd"},
		"line break, three times":        {`failed\\\\nrbd`, "failed\nrbd"},
		"tab and carriage return":        {`a\tb\\r\\nc`, "a\tb\r\nc"},
		"a backslash before a quote":     {`C:\\"`, `C:\\"`},
		"a backslash before a backslash": {`a\\\\b`, `a\\\\b`},
		"three before a line break":      {`a\\\nb`, `a\\\nb`},
		"systemd":                        {`var-lib-kubelet\x2dpods.mount`, `var-lib-kubelet\x2dpods.mount`},
		"mount table":                    {`/a\040b\134c`, `/a\040b\134c`},
		"hidden character":               {`\u001b[31m\x1b`, `\u001b[31m\x1b`},
		"other escape":                   {`kubernetes.io\~csi`, `kubernetes.io\~csi`},
		"backslash at the end":           {`cut \\\`, `cut \\\`},
		"real ends of lines":             {"a\r\nb\n", "a\r\nb\n"},
		"invalid UTF-8":                  {"a\xff\\\"\xe2\x82", "a\xff\"\xe2\x82"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Decode(c.in); got != c.want {
				t.Errorf("%q becomes %q, want %q", c.in, got, c.want)
			}
		})
	}
}

func TestDecodeUndoesQuotingOfQuotes(t *testing.T) {
	t.Parallel()
	const text = "rbd: unmap failed:\n\tvolume pvc: \"Device\"\r\n"
	for times := range 4 {
		got := Decode("Error: " + quote(text, times) + " end")
		if want := strings.Repeat(`"`, times) + text + strings.Repeat(`"`, times); got != "Error: "+want+" end" {
			t.Errorf("quoted %d times: %q, want %q", times, got, want)
		}
	}
}

func TestDecodeOfMegabytes(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	for name, in := range map[string]string{
		"brackets":              strings.Repeat("[", size),
		"backslashes":           strings.Repeat(`\`, size),
		"array that has no end": "[" + strings.Repeat("65 ", size/3),
		"arrays that have none": strings.Repeat("[65 66 ", size/7),
		"plain":                 strings.Repeat("x", size),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Decode(in); got != in {
				t.Errorf("%d bytes become %d others", len(in), len(got))
			}
		})
	}
	long := strings.Repeat("busy\n", size/20)
	if got := Decode(bytesOf(long)); got != long {
		t.Errorf("%d bytes in an array become %d others", len(long), len(got))
	}
}

func FuzzDecode(f *testing.F) {
	for _, line := range lines(f) {
		f.Add(line)
	}
	f.Add("[114 300] [104 105] [114 \\\\\\\"\\n\xff\r\n")
	f.Fuzz(func(t *testing.T, in string) {
		got := Decode(in)
		if len(got) > len(in) || utf8.ValidString(in) && !utf8.ValidString(got) {
			t.Errorf("%q becomes %q", in, got)
		}
		if !strings.ContainsAny(in, `[\`) && got != in {
			t.Errorf("%q, in which nothing is written otherwise, becomes %q", in, got)
		}
		// Text outside of arrays and escapes is kept, in its order.
		if want := strings.Map(kept, in); strings.Map(kept, got) != want && !strings.Contains(in, " ") {
			t.Errorf("%q becomes %q, and something is lost", in, got)
		}
	})
}

// kept leaves out what escapes consist of, and stand for.
func kept(r rune) rune {
	if strings.ContainsRune("\\\"ntr\n\t\r", r) {
		return -1
	}
	return r
}

func FuzzDecodeUndoes(f *testing.F) {
	f.Add("rbd: unmap failed:\n(16) \"Device\" or\tresource busy", uint8(3))
	f.Fuzz(func(t *testing.T, text string, times uint8) {
		if strings.ContainsAny(text, `[\`) || strings.ContainsFunc(text, unprintable) || !utf8.ValidString(text) {
			return
		}
		times %= 4
		want := strings.Repeat(`"`, int(times)) + text + strings.Repeat(`"`, int(times))
		if got := Decode(quote(text, int(times))); got != want {
			t.Errorf("quoted %d times: %q, want %q", times, got, want)
		}
		if in := bytesOf(text); len(text) > 1 && strings.ContainsFunc(text, unicode.IsLetter) && Decode(in) != text {
			t.Errorf("%s becomes %q, want %q", in, Decode(in), text)
		}
	})
}

func unprintable(r rune) bool {
	return !strconv.IsPrint(r) && r != '\n' && r != '\t' && r != '\r' || r == utf8.RuneError
}
