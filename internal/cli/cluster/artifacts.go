// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// maxArtifact bounds what a copy may become when it is unpacked, in bytes. An agent copies no larger file.
const maxArtifact = 64 << 20

// noFileName is all that may not be in the name of a file.
var noFileName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// saveArtifacts writes the copies in a Diagnosis into a directory. It writes over no file.
func saveArtifacts(cmd *cobra.Command, c *client, d *v1.Diagnosis, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("--artifacts=%q: %w", dir, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return errors.Join(fmt.Errorf("--artifacts=%q: must be a new directory, or an empty one", dir), err)
	}
	saved := 0
	for i := range d.Status.Artifacts {
		a := &d.Status.Artifacts[i]
		if len(a.Content) == 0 {
			line := fmt.Sprintf("%s is only on node %s: %s\n", a.Key, d.Spec.NodeName, a.Path)
			if err := verb.Write(cmd.ErrOrStderr(), printable.Text(line)); err != nil {
				return err
			}
			continue
		}
		name := filepath.Join(dir, fmt.Sprintf("%d-%.100s", i+1, noFileName.ReplaceAllString(a.Key, "_")))
		if err := unpack(a.Content, name); err != nil {
			return fmt.Errorf("artifact %s: %w", a.Key, err)
		}
		saved++
		if err := verb.Write(cmd.OutOrStdout(), printable.Text(name+"\n")); err != nil {
			return err
		}
	}
	if saved == 0 {
		return fmt.Errorf("diagnosis %s/%s has no copies of artifacts: make one that has them: %s", d.Namespace, d.Name,
			c.command("run", "pod/NAME", "--heal=never", "--artifacts"))
	}
	return nil
}

// unpack writes a new file with what was compressed.
func unpack(content []byte, name string) error {
	r, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(r, maxArtifact+1))
	if n > maxArtifact {
		err = fmt.Errorf("unpack: it is larger than %d bytes", maxArtifact)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
