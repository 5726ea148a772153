// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/processor"
)

var scriptRequest = processor.Request{
	Node: "node-1", Pod: processor.Pod{Namespace: "ns", Name: "pod"},
	Values: map[string]string{"param.a": "one $(id) `id` ; id", "param.b": "-rf /"},
}

func TestScriptResults(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text        string
		args        []string
		out, errOut string
	}{
		"output and error": {text: "echo a; echo b >&2", out: "a\n", errOut: "b\n"},
		"arguments are arguments": {
			text: `printf '%s|' "$0" "$@"`, args: []string{"param.a", "param.none", "param.b"},
			out: "op|one $(id) `id` ; id||-rf /|",
		},
		"environment is clean": {text: "env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= | sort", out: strings.Join([]string{
			"HOME=/", "KUBEDIAG_CONTAINER=", "KUBEDIAG_DIAGNOSIS_NAME=", "KUBEDIAG_DIAGNOSIS_NAMESPACE=", "KUBEDIAG_DIAGNOSIS_UID=",
			"KUBEDIAG_NODE=node-1", "KUBEDIAG_POD_NAME=pod", "KUBEDIAG_POD_NAMESPACE=ns", "LANG=C",
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "",
		}, "\n")},
		"no input":      {text: "cat; pwd", out: "/\n"},
		"not valid":     {text: `printf 'a\377b'`, out: "a\uFFFDb"},
		"too much":      {text: "head -c 10485760 /dev/zero | tr '\\0' x", out: strings.Repeat("x", maxOutput) + "\n[9437184 more bytes are left out]"},
		"a child stays": {text: "sleep 1000 & echo done", out: "done\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &scriptProcessor{Operation: "op", Text: tc.text, ArgKeys: tc.args, ResultKey: "key"}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			result, err := s.Run(ctx, scriptRequest)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"operation.key.output": tc.out, "operation.key.error": tc.errOut}
			if diff := cmp.Diff(want, result.Values); diff != "" {
				t.Errorf("%.2000s", diff)
			}
		})
	}
}

func TestFailureSaysCodeAndError(t *testing.T) {
	t.Parallel()
	s := &scriptProcessor{Operation: "op", Text: "echo the reason >&2; exit 7"}
	_, err := s.Run(t.Context(), scriptRequest)
	if err == nil || !strings.Contains(err.Error(), `operation "op": exit status 7: the reason`) {
		t.Errorf("error is %v", err)
	}
}

// TestTimeIsBounded runs a script that forks, and whose children would both write a file and hold its output open.
func TestTimeIsBounded(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "alive")
	script := &scriptProcessor{Operation: "op", Text: `(trap '' TERM HUP; while :; do echo x >>"$1"; sleep 0.01; done) & sleep 1000`, ArgKeys: []string{"file"}}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	over := make(chan time.Time, 1)
	go func() { // the time is up as soon as the child has run
		for begin := time.Now(); ctx.Err() == nil; time.Sleep(time.Millisecond) {
			if info, err := os.Stat(file); err == nil && info.Size() > 0 {
				over <- time.Now()
				cancel(context.DeadlineExceeded)
			} else if time.Since(begin) > time.Minute {
				cancel(errors.New("the child never ran"))
			}
		}
	}()
	r := scriptRequest
	r.Values = map[string]string{"file": file}
	_, err := script.Run(ctx, r)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error is %v", err)
	}
	if took := time.Since(<-over); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	// Were a child alive it would have written ten times by then.
	for deadline := time.Now().Add(200 * time.Millisecond); time.Now().Before(deadline); {
		if sizeOf(t, file) != 0 {
			t.Fatal("a child is still alive")
		}
	}
}

func sizeOf(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestEnterDecidesWhereScriptsRun(t *testing.T) {
	t.Parallel()
	entered := false
	script := &scriptProcessor{Operation: "op", Text: "true", Enter: func(fn func() error) error {
		entered = true
		return fn()
	}}
	if _, err := script.Run(t.Context(), scriptRequest); err != nil || !entered {
		t.Errorf("entered %v, error %v", entered, err)
	}
	refused := errors.New("refused")
	script.Enter = func(func() error) error { return refused }
	if _, err := script.Run(t.Context(), scriptRequest); !errors.Is(err, refused) {
		t.Errorf("error is %v", err)
	}
}
