// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/cluster"
	"kubediag.org/kubediag/test/freeport"
	"kubediag.org/kubediag/test/program"
)

// seaweedFS starts the servers of SeaweedFS with the files of the directory data, and returns the command line of its client.
func seaweedFS(t *testing.T, data, own string) []string {
	t.Helper()
	weed, err := cluster.Weed(t.Context())
	must(t, err)
	f := startFiler(t, weed)
	must(t, fs.WalkDir(os.DirFS(data), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			f.upload(t, filepath.Join(data, path), path)
		}
		return err
	}))
	return []string{weed, "-logtostderr=true", "mount", fmt.Sprintf("-filer=%s.%d", f.http, f.grpc.Port), "-dir={}", "-filer.path=/",
		"-cacheDir=" + own, "-localSocket=" + filepath.Join(own, "socket")}
}

// filer is the server of SeaweedFS that has the names of its files.
type filer struct {
	http, grpc *net.TCPAddr
}

// startFiler starts a master, a volume server and a filer in one process, which ends with the test.
func startFiler(t *testing.T, weed string) filer {
	t.Helper()
	names := []string{"master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"}
	ports, err := freeport.Find(net.IPv4(127, 0, 0, 1), len(names))
	must(t, err)
	dir := t.TempDir()
	args := []string{"-logtostderr=true", "server", "-filer", "-dir=" + dir, "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=4",
		"-master.peers=none", "-master.telemetry=false", "-filer.localSocket=" + filepath.Join(dir, "filer")}
	for i, name := range names {
		args = append(args, fmt.Sprintf("-%s=%d", name, ports[i].Port))
	}
	t.Cleanup(func() { // once the servers are gone: their sockets have names that no flag changes
		for i, server := range []string{"master", "volume", "filer"} {
			_ = os.Remove(fmt.Sprintf("/tmp/seaweedfs-%s-grpc-%d.sock", server, ports[2*i+1].Port))
		}
	})
	program.Start(t, exec.Command(weed, args...))
	return filer{ports[4], ports[5]}
}

// upload writes a file at the path of the file system. New servers need a while until they take it.
func (f filer) upload(t *testing.T, file, path string) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	apitest.Eventually(t, func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, fmt.Sprintf("http://%s/%s", f.http, path), bytes.NewReader(text))
		must(t, err)
		response, err := new(http.Transport).RoundTrip(request) // past any proxy
		if err != nil {
			return err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusCreated {
			err = fmt.Errorf("upload %q: %s: %s", path, response.Status, answer)
		}
		return err
	})
}
