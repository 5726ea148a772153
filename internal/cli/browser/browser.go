// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package browser opens an address in the browser of the user's desktop, and keeps the address from all other users of the machine: it may hold
// a token. It starts no browser of its own choice, and none where no user sits before the screen.
package browser

import (
	"fmt"
	"html/template"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
)

// desktop is the place at which a browser may be opened.
type desktop struct {
	system   string // as runtime.GOOS
	getenv   func(string) string
	lookPath func(string) (string, error)
}

// opener is the command, without its last argument, that opens a file in the browser. It is empty if there is no screen, or if the
// user works from another machine: the address is not that of the machine there.
func (d desktop) opener() []string {
	if d.getenv("SSH_CONNECTION") != "" {
		return nil
	}
	var command []string
	switch d.system {
	case "darwin":
		command = []string{"open"}
	case "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler"}
	default:
		if d.getenv("DISPLAY") == "" && d.getenv("WAYLAND_DISPLAY") == "" {
			return nil
		}
		command = []string{"xdg-open"}
	}
	if _, err := d.lookPath(command[0]); err != nil {
		return nil
	}
	if _, err := d.lookPath("setsid"); err == nil { // a browser that it starts goes on after Ctrl-C
		command = append([]string{"setsid"}, command...)
	}
	return command
}

// leadingFile is a file that leads to the address. All users of the machine can read the arguments of a process, so the token is in
// the file, which the user alone can read.
var leadingFile = template.Must(template.New("start").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={{.}}">
<title>kubediag</title>
</head>
<body><a href="{{.}}">kubediag</a></body>
</html>
`))

// writeRedirect writes the file, and returns its path. The caller removes its directory.
func (d desktop) writeRedirect(address string) (string, error) {
	parent := d.getenv("XDG_RUNTIME_DIR")
	if parent == "" {
		var err error
		if parent, err = os.UserCacheDir(); err != nil {
			return "", err
		}
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return "", err
		}
	}
	dir, err := os.MkdirTemp(parent, "kubediag-ui-") // with mode 0700
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "start.html")
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = leadingFile.Execute(f, address)
		if closed := f.Close(); err == nil {
			err = closed
		}
	}
	if err != nil {
		_ = os.RemoveAll(dir) // the error that counts is the first
		return "", err
	}
	return name, nil
}

// Open has the browser open an address. The function that it returns removes the file that leads to the address. Without a screen,
// it opens nothing, and the function is nil.
func Open(address string) (remove func(), err error) {
	d := desktop{runtime.GOOS, os.Getenv, exec.LookPath}
	command := d.opener()
	if command == nil {
		return nil, nil
	}
	return d.openWith(command, address)
}

// openWith has a command open a file that leads to the address.
func (d desktop) openWith(command []string, address string) (remove func(), err error) {
	name, err := d.writeRedirect(address)
	if err != nil {
		return nil, fmt.Errorf("write page for the browser: %w", err)
	}
	remove = func() { _ = os.RemoveAll(filepath.Dir(name)) }                      // its token counts no more
	opens := exec.Command(command[0], append(slices.Clone(command[1:]), name)...) //nolint:gosec,noctx // it goes on after this program
	if err := opens.Start(); err != nil {
		remove()
		return nil, fmt.Errorf("open browser: %w", err)
	}
	go func() { _ = opens.Wait() }() // the address is printed in any case
	return remove, nil
}
