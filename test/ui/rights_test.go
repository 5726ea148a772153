// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// TestOpensTheBrowser: with a desktop, the program that it has for this gets a file that leads a real browser to the first page, without a
// token among its arguments. The file is gone when the browser has come.
func TestOpensTheBrowser(t *testing.T) {
	program, err := plugin()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	got := filepath.Join(dir, "got")
	opener := "#!/bin/sh\necho \"$@\" > " + got + ".new && mv " + got + ".new " + got + "\n"
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(opener), 0o700); err != nil {
		t.Fatal(err)
	}
	s := &site{}
	s.api, s.server = newAPI(t)
	_ = s.serve(t, program, []string{"DISPLAY=:0", "SSH_CONNECTION=", "XDG_RUNTIME_DIR=" + dir, "PATH=" + dir + ":" + os.Getenv("PATH")})
	var arguments []byte
	for ticker := time.NewTicker(10 * time.Millisecond); arguments == nil; <-ticker.C {
		if t.Context().Err() != nil {
			t.Fatal("no browser was opened")
		}
		arguments, _ = os.ReadFile(got) // it is there soon
	}
	page := strings.TrimSpace(string(arguments))
	if strings.Contains(page, "token") || filepath.Dir(filepath.Dir(page)) != dir {
		t.Fatalf("the arguments are %q", page)
	}
	s.open(t)
	s.run(t, chromedp.Navigate("file://"+page), chromedp.WaitVisible("main"))
	if text := s.text(t); !strings.Contains(text, "No fault is known in all namespaces") {
		t.Errorf("the browser is led to:\n%s", text)
	}
	if _, err := os.Stat(page); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file with the token is still there: %v", err)
	}
	s.checkComplaints(t)
}
