// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package integrations tries config/integrations in the parts of other programs that read it. It has no code outside its tests.
package integrations
