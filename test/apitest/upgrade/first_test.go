// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package upgrade_test

import (
	"net/http"
	"testing"

	"kubediag.org/kubediag/test/apitest"
)

// TestUpgradeOfEveryKind replaces the first definitions of this project that had all seven kinds. Each object has every field that its kind had
// then. It keeps all of them, our types read it, and it can be written.
func TestUpgradeOfEveryKind(t *testing.T) {
	for version, env := range map[string]*apitest.Env{"1.37": apitest.Start(t), "1.18": apitest.StartOld(t)} {
		t.Run(version, func(t *testing.T) {
			s := &server{T: t, env: env}
			s.removeCRDs()
			stored := s.install("first")
			kinds := map[string]int{}
			for name, crd := range s.ours() {
				s.must(http.MethodPatch, crds+"v1/customresourcedefinitions/"+name, crd)
			}
			s.pruned()
			for _, want := range stored {
				s.kept(want)
				kinds[want.GetKind()]++
			}
			if len(kinds) != 7 || len(stored) != 19 {
				t.Errorf("%d objects of kinds %v, want 19 of 7", len(stored), kinds)
			}
		})
	}
}
