// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command program stands for the programs of a release: it is made of a module of others.
package main

import (
	"fmt"

	"github.com/google/go-cmp/cmp"
)

func main() { fmt.Print(cmp.Diff(1, 2)) }
