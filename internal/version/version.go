// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package version says which version of kubediag this program is.
package version

// CLIImage is the image of the command for kubectl debug, with the tag of this release.
const CLIImage = "docker.io/kubediag/cli:v0.1.0"

// version is stamped by the linker.
var version = "unversioned"

// String is the version, such as v0.1.0, or "unversioned" where the program was built without one.
func String() string { return version }
