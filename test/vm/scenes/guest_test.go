// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build vm

package scenes

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/test/vm"
)

// guest is a machine in which scripts run.
type guest struct {
	*vm.Machine
	t *testing.T
}

func start(t *testing.T, o vm.Options) guest {
	t.Helper()
	m, err := vm.Start(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return guest{m, t}
}

// shell runs a script, whose exit status it gives with what was printed.
func (g guest) shell(script string) (string, int) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 3*time.Minute)
	defer cancel()
	out, err := g.Run(ctx, "sh", "-c", script)
	var exit *vm.ExitError
	if errors.As(err, &exit) && exit.Failed == "" {
		return out, exit.Status
	}
	if err != nil {
		g.t.Fatalf("%s: %v", script, err)
	}
	return out, 0
}

// run runs a script that must succeed.
func (g guest) run(script string) string {
	g.t.Helper()
	out, status := g.shell(script)
	if status != 0 {
		g.t.Fatalf("%s: status %d\n%s", script, status, out)
	}
	return strings.TrimSpace(out)
}
