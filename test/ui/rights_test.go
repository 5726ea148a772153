// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestOneNamespace: a user who may read one namespace sees its faults, and on each other page the right that is missing.
func TestOneNamespace(t *testing.T) {
	s := newSite(t, "en", "--namespace=shop")
	s.api.change(func() {
		secret := mountFault("HungMount", "Now", "Person", "vault-0")
		secret["metadata"].(object)["namespace"] = "bank"
		s.api.faults, s.api.only = []object{mountFault("StaleSubPath", "NextStart", "Safe", "web-0"), secret}, "shop"
	})
	for address, want := range map[string]string{
		"/": "you may not list recoverypolicies", "/nodes": "It is not known which nodes are watched", "/policies": "dev cannot list recoverypolicies", "/pod/bank/vault-0": "dev cannot list mountfaults",
		"/fault/shop/stalesubpath-5": "1 fault in shop/web-0",
	} {
		s.run(t, chromedp.Navigate(s.origin+address), chromedp.WaitVisible("main", chromedp.ByQuery))
		if text := s.text(t); !strings.Contains(text, want) || address == "/" && !strings.Contains(text, "StaleSubPath") || strings.Contains(text, "HungMount") {
			t.Errorf("%s has not %q:\n%s", address, want, text)
		}
	}
}

// TestAPIServerGone: the first page then has the last answers with their age, and other pages say that they cannot ask.
func TestAPIServerGone(t *testing.T) {
	s := newSite(t, "en")
	s.api.change(func() { s.api.faults = []object{mountFault("StaleSubPath", "NextStart", "Safe", "web-0")} })
	s.await(t, `document.querySelector("main a")?.textContent === "StaleSubPath"`)
	s.server.CloseClientConnections()
	s.server.Listener.Close()
	s.run(t, chromedp.Navigate(s.origin+"/"), chromedp.WaitReady("main"))
	if text := s.text(t); !strings.Contains(text, "This is how it was") || !strings.Contains(text, "StaleSubPath") {
		t.Errorf("the first page:\n%s", text)
	}
	s.run(t, chromedp.Navigate(s.origin+"/fault/shop/stalesubpath-5"), chromedp.WaitReady("main"))
	if text := s.text(t); !strings.Contains(text, "connection refused") {
		t.Errorf("the page of a fault:\n%s", text)
	}
}
