// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"strings"
	"testing"
	"unicode/utf8"

	"kubediag.org/kubediag/internal/kubeclient"
)

// TestLongestEvent has the manager refuse a node whose name is as long as it can be.
func TestLongestEvent(t *testing.T) {
	t.Parallel()
	w := newDiagnosisWorld(t, diagnosisOn(strings.Repeat("n", 253), nil))
	w.reconcileOnce(t)
	e := w.nextEvent(t)
	_, message, _ := strings.Cut(strings.TrimPrefix(e, "Warning "), " ")
	if n := utf8.RuneCountInString(message); n > kubeclient.MaxEventCharacters || !strings.HasPrefix(message, "spec.nodeName: ") ||
		!strings.HasSuffix(message, "… See: kubectl get diag -n team d -o yaml") {
		t.Errorf("%d characters: %q", n, message)
	}
}
