// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster || kernel

package cri

import (
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

func TestMain(m *testing.M) { kerneltest.Main(m, nil) }

var must = kerneltest.Must
