// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// settings are flags as a command has them.
type settings struct {
	ttl       time.Duration
	namespace string
	verbosity verbosityValue
}

func read(t *testing.T, args []string, vars map[string]string) (settings, Env, error) {
	t.Helper()
	var s settings
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.DurationVar(&s.ttl, "keep-for", time.Hour, "")
	f.StringVar(&s.namespace, "namespace", "", "")
	f.Bool("version", false, "")
	s.verbosity.Bind(f)
	if err := f.Parse(args); err != nil {
		return s, nil, err
	}
	env, err := FromEnv(f, map[string]string{"namespace": "POD_NAMESPACE"}, func(name string) (string, bool) {
		value, ok := vars[name]
		return value, ok
	})
	return s, env, err
}

func TestFromEnv(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	for name, tc := range map[string]struct {
		args []string
		vars map[string]string
		want settings
	}{
		"nothing":   {want: settings{ttl: hour}},
		"variables": {vars: map[string]string{"KUBEDIAG_KEEP_FOR": "2h", "KUBEDIAG_VERBOSITY": "3"}, want: settings{ttl: 2 * hour, verbosity: 3}},
		"the flag wins": {
			args: []string{"--keep-for=3h", "-v", "10"}, vars: map[string]string{"KUBEDIAG_KEEP_FOR": "x"},
			want: settings{ttl: 3 * hour, verbosity: 10},
		},
		"another's": {vars: map[string]string{"POD_NAMESPACE": "pod"}, want: settings{ttl: hour, namespace: "pod"}},
		"ours before it": {
			vars: map[string]string{"POD_NAMESPACE": "pod", "KUBEDIAG_NAMESPACE": "ours"}, want: settings{ttl: hour, namespace: "ours"},
		},
		"an empty flag wins": {args: []string{"--namespace="}, vars: map[string]string{"POD_NAMESPACE": "pod"}, want: settings{ttl: hour}},
		"no setting":         {vars: map[string]string{"KUBEDIAG_VERSION": "v0.1.0"}, want: settings{ttl: hour}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, _, err := read(t, tc.args, tc.vars); err != nil || got != tc.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}

func TestErrorsNameVariableAndValue(t *testing.T) {
	t.Parallel()
	_, _, err := read(t, nil, map[string]string{"KUBEDIAG_KEEP_FOR": "soon", "KUBEDIAG_VERBOSITY": "11"})
	for _, part := range []string{`KUBEDIAG_KEEP_FOR="soon" for --keep-for`, `KUBEDIAG_VERBOSITY="11" for --verbosity`, "0 to 10"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not contain %q", err, part)
		}
	}
	_, env, err := read(t, nil, map[string]string{"KUBEDIAG_KEEP_FOR": "-1h", "POD_NAMESPACE": "pod"})
	if err != nil {
		t.Fatal(err)
	}
	invalid := Invalid("keep-for", -time.Hour, "must be at least 0s")
	both := errors.Join(errors.New("--keep-for=1: no flag is meant"), errors.Join(invalid, invalid, Invalid("other", 1, "x")))
	for _, err := range []error{invalid, both} {
		got := env.Explain(err)
		if want := err.Error() + ` (read from KUBEDIAG_KEEP_FOR="-1h")`; got == nil || got.Error() != want || !errors.Is(got, invalid) {
			t.Errorf("explained as %v, want %s", got, want)
		}
	}
	text := errors.New("--keep-for=-1h0m0s: must be at least 0s")
	if got := env.Explain(text); got.Error() != text.Error() {
		t.Errorf("explained by its text: %v", got)
	}
	if got := env.Explain(nil); got != nil {
		t.Errorf("explained nothing as %v", got)
	}
}

func TestVerbosity(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"-1", "11", "many", ""} {
		_, _, err := read(t, []string{"--verbosity=" + value}, nil)
		if err == nil || !strings.Contains(err.Error(), "--verbosity") || !strings.Contains(err.Error(), `"`+value+`"`) {
			t.Errorf("%q: error %v, want one that names flag and value", value, err)
		}
	}
	if v := verbosityValue(4); v.Level() != slog.Level(-4) {
		t.Errorf("level %v", v.Level())
	}
}
