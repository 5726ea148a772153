// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"strings"
	"testing"
)

// TestKeyFiles: only exact names and forms of the kubelet's are its own.
func TestKeyFiles(t *testing.T) {
	t.Parallel()
	const volume, time = "volumes/kubernetes.io~configmap/cfg/", "..2026_11_25_21_33_17.1234567890"
	for path, want := range map[string]bool{
		volume + time + "/key":                                 true,
		volume + time + "/dir/key":                             true,
		volume + "key":                                         false,
		volume + "..data/key":                                  false,
		volume + "..2026/key":                                  false,
		volume + time + "/..key":                               false,
		volume + time + "/a/..key":                             true,
		volume + time + "x/key":                                false,
		"volumes/kubernetes.io~empty-dir/cfg/" + time + "/key": false,
		"volume-subpaths/kubernetes.io~configmap/cfg/" + time:  false,
	} {
		if got := isKeyFilePath(strings.Split(path, "/")); got != want {
			t.Errorf("%q is a file of a key: %v, want %v", path, got, want)
		}
	}
	for link, want := range map[[2]string]bool{
		{volume + "..data", time}:                     true,
		{volume + "..data_tmp", time}:                 true,
		{volume + "key", "..data/key"}:                true,
		{volume + "..data", "/etc"}:                   false,
		{volume + "..data", "../" + time}:             false,
		{volume + "..data", time + "/key"}:            false,
		{volume + "key", "..data/other"}:              false,
		{volume + "key", "../..data/key"}:             false,
		{volume + "..key", "..data/..key"}:            false,
		{volume + time, "..data/" + time}:             false,
		{volume + "dir/key", "..data/dir/key"}:        false,
		{"volumes/kubernetes.io~csi/pv/..data", time}: false,
	} {
		if got := isKeyLink(strings.Split(link[0], "/"), link[1]); got != want {
			t.Errorf("%q to %q is a link of the kubelet's: %v, want %v", link[0], link[1], got, want)
		}
	}
}
