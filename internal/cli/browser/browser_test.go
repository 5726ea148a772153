// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// desktopOf is a desktop with these variables and programs.
func desktopOf(system string, env map[string]string, programs ...string) desktop {
	return desktop{system, func(name string) string { return env[name] }, func(name string) (string, error) {
		if slices.Contains(programs, name) {
			return "/bin/" + name, nil
		}
		return "", exec.ErrNotFound
	}}
}

// TestOpener: a browser is opened where there is a screen, and the user sits before it.
func TestOpener(t *testing.T) {
	t.Parallel()
	screen := map[string]string{"DISPLAY": ":0"}
	for name, tc := range map[string]struct {
		of   desktop
		want string
	}{
		"Linux":               {desktopOf("linux", screen, "xdg-open", "setsid"), "setsid xdg-open"},
		"Wayland":             {desktopOf("linux", map[string]string{"WAYLAND_DISPLAY": "wayland-0"}, "xdg-open"), "xdg-open"},
		"no screen":           {desktopOf("linux", nil, "xdg-open", "setsid"), ""},
		"no opener":           {desktopOf("linux", screen, "setsid"), ""},
		"macOS":               {desktopOf("darwin", nil, "open"), "open"},
		"Windows":             {desktopOf("windows", nil), "rundll32 url.dll,FileProtocolHandler"},
		"macOS by SSH":        {desktopOf("darwin", map[string]string{"SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22"}, "open"), ""},
		"a screen behind SSH": {desktopOf("linux", map[string]string{"DISPLAY": ":10", "SSH_CONNECTION": "x"}, "xdg-open"), ""},
	} {
		if got := strings.Join(tc.of.opener(), " "); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestBrowserGetsAFile: the token is not among the arguments of the program that opens the browser, but in a file that no other user
// can read, and that is gone afterwards.
func TestBrowserGetsAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, program := filepath.Join(dir, "told"), filepath.Join(dir, "opener")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"$#\" \"$@\" > "+pipe+".new && mv "+pipe+".new "+pipe+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := desktopOf("linux", map[string]string{"DISPLAY": ":0", "XDG_RUNTIME_DIR": dir}, "xdg-open")
	const address = "http://127.0.0.1:7070/pod/shop/web-0?token=SECRET"
	name, err := d.writeRedirect(address)
	if err != nil {
		t.Fatal(err)
	}
	for of, want := range map[string]fs.FileMode{name: 0o600, filepath.Dir(name): 0o700} {
		if info, err := os.Stat(of); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, error %v", of, info.Mode(), err)
		}
	}
	text, err := os.ReadFile(name)
	if err != nil || !strings.Contains(string(text), `content="0; url=`+address+`"`) {
		t.Errorf("error %v:\n%s", err, text)
	}
	remove, err := d.openWith([]string{program, "first"}, address)
	if err != nil {
		t.Fatal(err)
	}
	got := awaitFile(t, pipe)
	if !strings.HasPrefix(got, "2 first "+dir+"/kubediag-ui-") || strings.Contains(got, "SECRET") {
		t.Errorf("the program has the arguments %q", got)
	}
	remove()
	if _, err := os.Stat(strings.TrimSpace(strings.TrimPrefix(got, "2 first "))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	if remove, err := d.openWith([]string{filepath.Join(dir, "none")}, address); err == nil || remove != nil {
		t.Errorf("without the program: error %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "kubediag-ui-*"))
	if err != nil || len(left) != 1 { // that of writeFile
		t.Errorf("left are %q, error %v", left, err)
	}
}

// awaitFile waits until another process has written a file.
func awaitFile(t *testing.T, name string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		text, err := os.ReadFile(name)
		if err == nil {
			return string(text)
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-ticker.C:
		}
	}
}
