// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const token = "a-secret-of-the-right-length"

func TestSecretFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	for name, tc := range map[string]struct {
		content []byte
		given   string
		want    error // nil and not ok: another error
		ok      bool
	}{
		"right":     {[]byte(token + "\n"), token, nil, true},
		"wrong":     {[]byte(token), token + "x", ErrUnauthenticated, false},
		"shorter":   {[]byte(token), token[:20], ErrUnauthenticated, false},
		"no secret": {[]byte("\n"), "", nil, false},
		"too short": {[]byte("abc"), "abc", nil, false},
		"too long":  {bytes.Repeat([]byte("x"), maxSecretBytes+1), strings.Repeat("x", maxSecretBytes+1), nil, false},
		"not there": {nil, token, nil, false},
	} {
		_ = os.Remove(path)
		if tc.content != nil {
			if err := os.WriteFile(path, tc.content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := SecretFile(path).Authenticate(t.Context(), tc.given)
		if (err == nil) != tc.ok || tc.want != nil && !errors.Is(err, tc.want) || tc.want == nil && errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
