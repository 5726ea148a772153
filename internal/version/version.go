// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package version says which version of kubediag this program is, and how it was built.
package version

import (
	"runtime"
	"runtime/debug"
)

// unversioned is the version of a program that was built without one, and next the release that its manifests name.
const unversioned, next = "unversioned", "v0.1.0"

// The linker stamps both: the version, and the prefix of the names of its images.
var version, registry = unversioned, "localhost/kubediag"

// CLIImage is the image of the command for kubectl debug, of the same release as this program.
func CLIImage() string {
	if version == unversioned {
		return registry + "/cli:" + next
	}
	return registry + "/cli:" + version
}

// String is the version, such as v0.1.0, or "unversioned" where the program was built without one.
func String() string { return version }

// Info is a program's origin. The toolchain writes it into the program, see runtime/debug.ReadBuildInfo.
type Info struct {
	Version string `json:"version"`
	// Commit is the full hash of the revision, with "-dirty" behind it if files had been changed. Date is its time, in RFC 3339 and
	// UTC. Both are empty if the program was built outside of a repository.
	Commit string `json:"commit,omitempty"`
	Date   string `json:"date,omitempty"`
	// Go is the toolchain's version, such as go1.26.0.
	Go string `json:"go"`
	// Platform is operating system and architecture, such as linux/amd64.
	Platform string `json:"platform"`
}

// Read returns the origin of this program.
func Read() Info {
	var settings []debug.BuildSetting
	if build, ok := debug.ReadBuildInfo(); ok {
		settings = build.Settings
	}
	return infoOf(settings)
}

// infoOf is the origin of a program that was built with these settings.
func infoOf(settings []debug.BuildSetting) Info {
	info := Info{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	dirty := ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			info.Commit = s.Value
		case s.Key == "vcs.time":
			info.Date = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if info.Commit != "" {
		info.Commit += dirty
	}
	return info
}
