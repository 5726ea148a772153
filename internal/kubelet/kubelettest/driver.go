// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelettest

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/kubelet"
)

// Driver is a kubelet with the directory of a CSI driver, dir, on whose socket the test listens if it is to. Both go
// with the test.
func Driver(t testing.TB, name string, listens bool) (node *kubelet.Node, dir string) {
	t.Helper()
	root, err := os.MkdirTemp("", "driver") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if node, err = kubelet.Local(root); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(node.Root, "plugins", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/csi.sock")
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() })
	if !listens {
		l.Close()
	}
	return node, dir
}
