// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

func TestEventMessage(t *testing.T) {
	t.Parallel()
	const command = "kubectl get diag -n ns d -o yaml"
	for name, c := range map[string]struct{ got, want string }{
		"short":           {EventMessage("all is well", command), "all is well"},
		"just fits":       {EventMessage(strings.Repeat("é", 200), command), strings.Repeat("é", 200)},
		"one too many":    {EventMessage(strings.Repeat("é", 201), command), strings.Repeat("é", 161) + "… See: " + command},
		"no command":      {EventMessage(strings.Repeat("é", 201), ""), strings.Repeat("é", 199) + "…"},
		"a long command":  {EventMessage(strings.Repeat("é", 201), strings.Repeat("c", 121)), strings.Repeat("é", 199) + "…"},
		"words":           {EventMessage(strings.Repeat("word, ", 99), command), strings.Repeat("word, ", 26) + "word… See: " + command},
		"one long word":   {EventMessage("a "+strings.Repeat("b", 300), ""), "a " + strings.Repeat("b", 197) + "…"},
		"not printable":   {EventMessage("a\x00b\n\tc\u202ed\x1b[31m\xff e", ""), "a b c d [31m e"},
		"blanks":          {EventMessage(strings.Repeat(" ", 5000)+"x", command), "x"},
		"advice":          {EventAdvice("it is broken.", command), "it is broken. See: " + command},
		"long advice":     {EventAdvice(strings.Repeat("é", 170), command), strings.Repeat("é", 161) + "… See: " + command},
		"advice of none":  {EventAdvice("it is broken", ""), "it is broken"},
		"nothing at all":  {EventMessage("", command), ""},
		"one MiB":         {EventMessage(strings.Repeat("x", 1<<20), command), strings.Repeat("x", 161) + "… See: " + command},
		"ideograph":       {EventMessage(strings.Repeat("\U0001F4A9", 201), ""), strings.Repeat("\U0001F4A9", 199) + "…"},
		"only unreadable": {EventMessage(strings.Repeat("\xff", 5000), command), ""},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", name, c.got, c.want)
		}
		if n := utf8.RuneCountInString(c.got); n > MaxEventCharacters || len(c.got) > 1024 || !utf8.ValidString(c.got) ||
			strings.ContainsFunc(c.got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%s: %d characters, %d bytes: %q", name, n, len(c.got), c.got)
		}
	}
}

// TestDiagnosisCommand: the command is whole, however long the names are.
func TestDiagnosisCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ namespace, name, want string }{
		{"ns", "d", "kubectl get diag -n ns d -o yaml"},
		{strings.Repeat("n", 63), strings.Repeat("d", 253), "kubectl get diag -n " + strings.Repeat("n", 63)},
	} {
		got := DiagnosisCommand(&v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.name}})
		if got != c.want || !strings.HasSuffix(EventAdvice(strings.Repeat("x ", 500), got), " See: "+got) {
			t.Errorf("%q, want %q, at the end of a message", got, c.want)
		}
	}
}

// TestApproveCommand: where the name is too long, the command shows the Diagnosis.
func TestApproveCommand(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("d", 253)
	for name, want := range map[string]string{"d": "kubectl kubediag approve d -n ns", long: "kubectl get diag -n ns"} {
		if got := ApproveCommand(&v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestWithoutPaths: an Event names devices, and no other path.
func TestWithoutPaths(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`unmount "/k/pods/u/a b\"c" in mnt:[7]: busy`: "unmount … in mnt:[7]: busy",
		"open /var/lib/kubelet/x: no such file":       "open …: no such file",
		"/k is read-only (/k/x), and/or pod ns/p":     "… is read-only (…), and/or pod ns/p",
		`device "/dev/rbd0" or /dev/rbd1 (252:16)`:    `device "/dev/rbd0" or /dev/rbd1 (252:16)`,
		`Post "https://[::1]:6443/api": EOF`:          `Post "https://[::1]:6443/api": EOF`,
		"":                                            "",
	} {
		if got := WithoutPaths(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
